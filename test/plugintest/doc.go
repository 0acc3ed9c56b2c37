// Package plugintest is a device plugin for tests. It speaks the real device plugin API on a real unix socket, counts
// its calls, and has faults on demand: it hangs, fails, is slow, ends its streams or keeps them open, vanishes with or
// without its socket, and returns. It registers by calling the manager (Register), or waits to be
// found by its plugin watcher: on a socket of its own (Announce), or on the one that it serves (Info).
//
//	p := plugintest.New(t, dir, "vendor.example/gpu", plugintest.Devices(4)...)
//	p.Before(plugintest.Allocate, plugintest.Hang)
//	p.Serve()
//	p.MustRegister()
//	plugintest.Eventually(t, "four devices are offered", func() bool { ... })
package plugintest
