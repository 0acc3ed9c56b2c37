// Package plugintest is a device plugin for tests. It speaks the real device plugin API on a real unix socket, keeps
// count of what it is asked, and behaves badly to order: it hangs, fails, dawdles, ends its streams, vanishes with or
// without its socket, and comes back.
//
//	p := plugintest.New(t, dir, "vendor.example/gpu", plugintest.Devices(4)...)
//	p.Before(plugintest.Allocate, plugintest.Hang)
//	p.Serve()
//	p.MustRegister()
//	plugintest.Eventually(t, "four devices are offered", func() bool { ... })
package plugintest
