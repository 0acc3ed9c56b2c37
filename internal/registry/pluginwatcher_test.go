package registry_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// announced makes a plugin that serves in the socket directory and waits to be called at reg.sock.
func announced(f *harness, devices ...*plugintest.Device) (*plugintest.Plugin, *plugintest.Announcement) {
	f.t.Helper()
	return announcedAt(f, "reg.sock", devices...)
}

// announcedAt is announced for a socket that may be in a directory below, which is made.
func announcedAt(f *harness, socket string, devices ...*plugintest.Device) (*plugintest.Plugin, *plugintest.Announcement) {
	f.t.Helper()
	path := filepath.Join(f.watched, socket)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	p := plugintest.New(f.t, f.dir, gpu, devices...)
	p.Serve()
	return p, p.Announce(path)
}

// wasNotified reports whether the latest notification of the plugin has this result, and an error with these parts.
func wasNotified(p *plugintest.Plugin, registered bool, parts ...string) func() bool {
	return func() bool {
		notified := p.Told()
		if len(notified) == 0 || notified[len(notified)-1].PluginRegistered != registered {
			return false
		}
		return !slices.ContainsFunc(parts, func(s string) bool { return !strings.Contains(notified[len(notified)-1].Error, s) })
	}
}

// eager makes a registry that runs, watches, and calls again almost at once.
func eager(t testing.TB, change ...func(*registry.Config)) *harness {
	t.Helper()
	f := prepare(t, append([]func(*registry.Config){watches(socketDir(t))}, change...)...)
	f.SetCallPause(10 * time.Millisecond)
	return f.run()
}

// The SR-IOV plugin: one socket in the registry directory for both, which it names as its own container has it.
func TestWatcher(t *testing.T) {
	t.Parallel()
	for name, there := range map[string]bool{"there at the start": true, "made later": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := prepare(t, watches(socketDir(t)))
			p := plugintest.New(t, f.watched, gpu, plugintest.Devices(2)...)
			p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, Endpoint: kubeletRegistry + "/" + p.Endpoint,
				SupportedVersions: []string{"v1alpha1", "v1beta1"}}
			if there {
				p.Serve()
				f.run()
			} else {
				f.run()
				p.Serve()
			}
			f.eventually("the plugin serves", f.servesNumber(2))
			f.eventually("it is notified", wasNotified(p, true))
			f.eventually("it is remembered by its path here", func() bool { r, _ := f.memory.last(); return r.Endpoint == p.Socket() && r.Reported })
			if f.metric("device_plugin_registration_total", gpu) != 1 || f.metric("devmgrd_plugin_up", gpu) != 1 {
				t.Error("metrics do not tell of one registration and one plugin that is up")
			}
			f.eventually("only the stream's connection is left", func() bool { return p.Connections() == 1 })
			if _, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"dev-000000"}); err != nil {
				t.Error(err)
			}
			p.SetHealth("dev-000001", plugintest.Unhealthy)
			f.eventually("it is heard", func() bool { return !f.offer().Inventory.Devices[1].Healthy })
			for _, m := range []plugintest.Method{plugintest.GetInfo, plugintest.GetOptions, plugintest.ListAndWatch, plugintest.Notify} {
				if n := p.Calls(m); n != 1 {
					t.Errorf("%d calls of %s", n, m)
				}
			}
		})
	}
}

// Where a plugin serves, however it says so.
func TestWatcherEndpoints(t *testing.T) {
	t.Parallel()
	elsewhere := socketDir(t)
	for name, endpoint := range map[string]func(f *harness, p *plugintest.Plugin) (says string){
		"none":                      func(f *harness, p *plugintest.Plugin) string { p.Dir = f.watched; return "" },
		"in the kubelet's registry": func(f *harness, p *plugintest.Plugin) string { p.Dir = f.watched; return kubeletRegistry + "/a.sock" },
		"in a directory below": func(f *harness, p *plugintest.Plugin) string {
			p.Dir = f.watched + "/sub"
			return kubeletRegistry + "/sub//./a.sock"
		},
		"in the registry":            func(f *harness, p *plugintest.Plugin) string { p.Dir = f.watched; return f.watched + "/a.sock" },
		"in the kubelet's directory": func(f *harness, p *plugintest.Plugin) string { return kubeletDir + "/a.sock" },
		"in our directory":           func(f *harness, p *plugintest.Plugin) string { return f.dir + "/a.sock" },
		"elsewhere":                  func(f *harness, p *plugintest.Plugin) string { p.Dir = elsewhere; return elsewhere + "/a.sock" },
		"through a link elsewhere": func(f *harness, p *plugintest.Plugin) string {
			link := filepath.Join(elsewhere, "way")
			if err := os.Symlink(f.watched, link); err != nil {
				f.t.Fatal(err)
			}
			p.Dir = f.watched
			return link + "/a.sock"
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := prepare(t, watches(socketDir(t)))
			if err := os.Mkdir(filepath.Join(f.watched, "sub"), 0o755); err != nil {
				t.Fatal(err)
			}
			p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
			p.Endpoint = "a.sock"
			p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}}
			p.Info.Endpoint = endpoint(f, p)
			p.Serve()
			f.run()
			if strings.HasPrefix(p.Socket(), f.watched) {
				f.eventually("the socket is called", wasNotified(p, true))
			} else {
				p.Announce(filepath.Join(f.watched, "reg.sock"))
			}
			f.eventually("the plugin serves", f.servesNumber(1))
			f.eventually("its path is remembered", func() bool { r, _ := f.memory.last(); return r.Endpoint == p.Socket() })
		})
	}
}

func TestWatcherRefuses(t *testing.T) {
	t.Parallel()
	f := prepare(t, watches(socketDir(t)))
	f.SetRegisterTimeout(time.Second)
	f.run()
	first := plugintest.Start(t, f.dir, gpu, plugintest.Devices(2)...)
	f.eventually("the first plugin serves", f.servesNumber(2))
	elsewhere := socketDir(t)
	for _, err := range []error{
		os.WriteFile(filepath.Join(f.watched, "file"), nil, 0o600),
		os.Symlink(first.Socket(), filepath.Join(f.watched, "link.sock")),
		os.Symlink(elsewhere, filepath.Join(f.watched, "way")),
		os.Link(filepath.Join(f.dir, "kubelet.sock"), filepath.Join(elsewhere, "kubelet")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	good := func(change func(i *plugintest.Info)) *plugintest.Info {
		i := &plugintest.Info{Type: "DevicePlugin", Name: gpu, Endpoint: first.Socket(), SupportedVersions: []string{"v1beta1"}}
		change(i)
		return i
	}
	at := func(endpoint string) *plugintest.Info {
		return good(func(i *plugintest.Info) { i.Endpoint = endpoint })
	}
	for _, c := range []struct {
		name string
		info *plugintest.Info
		says []string
	}{
		{"CSI", good(func(i *plugintest.Info) { i.Type = "CSIPlugin" }), []string{`"CSIPlugin"`, "register with the kubelet", "devmgrd.io/redirect"}},
		{"DRA", good(func(i *plugintest.Info) { i.Type = "DRAPlugin" }), []string{`"DRAPlugin"`, "register with the kubelet"}},
		{"version", good(func(i *plugintest.Info) { i.SupportedVersions = []string{"v1alpha1", "v1"} }), []string{`"v1alpha1, v1"`, "supported: v1beta1"}},
		{"no version", good(func(i *plugintest.Info) { i.SupportedVersions = nil }), []string{"supported: v1beta1"}},
		{"name", good(func(i *plugintest.Info) { i.Name = "gpu" }), []string{"no slash"}},
		{"relative", at("a.sock"), []string{`"a.sock" is not an absolute path`}},
		{"dots", at(kubeletDir + "/../a.sock"), []string{`has ".." in it`}},
		{"NUL", at("/a\x00.sock"), []string{"NUL"}},
		{"too long", at("/" + strings.Repeat("x", 4095)), []string{"4095 bytes"}},
		{"our own socket", at(kubeletDir + "/kubelet.sock"), []string{"a socket of its own"}},
		{"our own socket under another name", at(elsewhere + "/kubelet"), []string{"our own kubelet.sock"}},
		{"link", at(kubeletRegistry + "/link.sock"), []string{"is a link; name the socket itself"}},
		{"link on the way", at(kubeletRegistry + "/way/a.sock"), []string{"leads through a link"}},
		{"file", at(kubeletRegistry + "/file"), []string{"is not a socket"}},
		{"directory", at(elsewhere), []string{"is not a socket"}},
		{"nothing there", at(kubeletDir + "/none.sock"), []string{"there is no socket", f.dir + "/none.sock"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := plugintest.New(t, f.watched, gpu)
			bad.Endpoint, bad.Info = "bad.sock", c.info
			bad.Serve()
			f.eventually("it is notified of the error", func() bool { return len(bad.Told()) > 0 })
			if !wasNotified(bad, false, c.says...)() {
				t.Errorf("notified %v, want %q", bad.Told()[0], c.says)
			}
			f.eventually("no connection is left", func() bool { return bad.Connections() == 0 })
			if !f.servesNumber(2)() || first.Streams() != 1 || f.metric("device_plugin_registration_total", gpu) != 1 {
				t.Errorf("the refusal has changed something: %+v", f.Offers())
			}
			bad.Stop()
		})
	}
}

// What fails is tried again for as long as the socket is there, and is logged when it changes.
func TestWatcherCallsAgain(t *testing.T) {
	t.Parallel()
	f := eager(t)
	p := plugintest.New(t, f.watched, gpu, plugintest.Devices(1)...)
	p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1"}}
	p.Before(plugintest.GetInfo, plugintest.Fail("still booting"))
	p.Serve()
	f.eventually("it is called again", func() bool { return p.Calls(plugintest.GetInfo) >= 4 && wasNotified(p, false, "still booting")() })
	p.Before(plugintest.GetInfo, nil)
	f.eventually("it is notified of its error", wasNotified(p, false, "supported: v1beta1"))
	p.SetInfo(&plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}})
	f.eventually("it serves in the end", f.servesNumber(1))
	f.eventually("it is notified", wasNotified(p, true))
	for _, fault := range []string{"still booting", "supported: v1beta1"} {
		warned := 0
		for line := range strings.Lines(f.logs.String()) {
			if strings.Contains(line, "level=WARN") && strings.Contains(line, fault) {
				warned++
			}
		}
		if warned != 1 {
			t.Errorf("%d warnings that it says %s", warned, fault)
		}
	}
}

// Plugins of other types are not asked twice, before they make their socket again.
func TestWatcherLeavesOtherTypesAlone(t *testing.T) {
	t.Parallel()
	f := eager(t)
	csi := plugintest.New(t, f.watched, "csi")
	csi.Info = &plugintest.Info{Type: "CSIPlugin", Name: "csi.vendor.example"}
	csi.Serve()
	f.eventually("it is notified", wasNotified(csi, false, "CSIPlugin"))
	bad := plugintest.New(t, f.watched, "bad")
	bad.Info = &plugintest.Info{Type: "DevicePlugin", Name: "bad"}
	bad.Serve()
	f.eventually("another one is called again and again", func() bool { return bad.Calls(plugintest.GetInfo) >= 5 })
	if n := csi.Calls(plugintest.GetInfo); n != 1 || f.logs.count("ignoring socket of another plugin type") != 1 {
		t.Errorf("it was asked %d times", n)
	}
	csi.Stop()
	csi.Serve()
	f.eventually("it is asked once more", func() bool { return csi.Calls(plugintest.GetInfo) == 2 })
}

// A plugin that cannot be notified of its registration is not registered, as with the kubelet, and replaces no other plugin.
func TestWatcherNotifyFails(t *testing.T) {
	t.Parallel()
	f := eager(t)
	old, _ := announced(f, plugintest.Dev("old", plugintest.Healthy))
	f.eventually("the old plugin serves", f.serves("old"))
	p := plugintest.New(t, f.watched, gpu, plugintest.Dev("new", plugintest.Healthy))
	p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}}
	p.Before(plugintest.Notify, plugintest.Fail("not now"))
	p.Serve()
	f.eventually("it is called again and again", func() bool { return p.Calls(plugintest.GetInfo) >= 4 })
	f.eventually("the reason is logged", func() bool { return f.logs.count("not now") > 0 })
	if !f.serves("old")() || old.Calls(plugintest.ListAndWatch) != 1 || p.Calls(plugintest.ListAndWatch) != 0 {
		t.Errorf("the old plugin's place was taken: %+v", f.offer())
	}
	f.eventually("nothing of it is left open", func() bool { return p.Connections() == 0 })
	p.Before(plugintest.Notify, nil)
	f.eventually("it serves when it listens", f.serves("new"))
	f.eventually("it is notified", wasNotified(p, true))
	f.eventually("each has a stream", func() bool { return p.Streams() == 1 && old.Streams() == 1 }) // the old one's in reserve
}

// A registration socket that is removed takes with it the plugin that came through it, and no other.
func TestWatcherSocketRemoved(t *testing.T) {
	t.Parallel()
	withdraw := func(_ string, a *plugintest.Announcement) error { a.Withdraw(); return nil }
	for name, test := range map[string]struct {
		socket string
		remove func(top string, a *plugintest.Announcement) error
	}{
		"in the directory itself": {"reg.sock", withdraw},
		"in a directory below":    {"top/sub/reg.sock", withdraw},
		"with its directory":      {"top/sub/reg.sock", func(top string, _ *plugintest.Announcement) error { return os.RemoveAll(top) }},
		"its directory is hidden": {"top/sub/reg.sock", func(top string, _ *plugintest.Announcement) error {
			return os.Rename(top, filepath.Join(filepath.Dir(top), ".top"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := eager(t, grace(300*time.Millisecond))
			const other = "vendor.example/other"
			stays := plugintest.New(t, f.watched, other, plugintest.Devices(1)...)
			stays.Info = &plugintest.Info{Type: "DevicePlugin", Name: other, SupportedVersions: []string{"v1beta1"}}
			stays.Serve()
			p, a := announcedAt(f, test.socket, plugintest.Devices(2)...)
			f.eventually("the plugin serves", f.servesNumber(2))
			f.eventually("both are notified", func() bool { return wasNotified(p, true)() && wasNotified(stays, true)() })
			if err := test.remove(filepath.Join(f.watched, "top"), a); err != nil {
				t.Fatal(err)
			}
			f.eventually("the offer is stale or lost", func() bool { return f.offer().State != device.Serving })
			f.eventually("the stream is closed", func() bool { return p.Streams() == 0 && p.Connections() == 0 })
			_, err := f.Allocate(t.Context(), pod, container, gpu, nil)
			if refusal := new(device.Refusal); !errors.As(err, &refusal) || !strings.Contains(err.Error(), "its registration socket was removed") {
				t.Errorf("err = %v", err)
			}
			f.eventually("the offer is lost", f.is(device.Lost))
			f.eventually("it is not dialled after a restart", func() bool { r, _ := f.memory.last(); return r.Endpoint == "" && r.Reported })
			if n := len(f.offer().Inventory.Devices); n != 2 {
				t.Errorf("the last inventory was not kept: %d devices", n)
			}
			if n := f.logs.count("plugin withdrawn"); n != 1 || f.Offers()[other].State != device.Serving {
				t.Errorf("%d plugins were withdrawn; %+v", n, f.Offers()[other])
			}
			p.Announce(filepath.Join(f.watched, "other.sock"))
			f.eventually("it is welcome again", f.servesNumber(2))
		})
	}
}

// A plugin that ends in order closes its stream and removes its socket. That is one event and one warning.
func TestWatcher_PluginEndsInOrder_IsOneWarning(t *testing.T) {
	t.Parallel()
	f := eager(t)
	p, a := announced(f, plugintest.Devices(2)...)
	f.eventually("the plugin serves", f.servesNumber(2))
	f.eventually("it is notified", wasNotified(p, true))
	p.Kill()
	f.eventually("the end is logged", func() bool { return f.logs.loud("plugin disconnected; allocation paused") == 1 })
	a.Withdraw()
	f.eventually("the removal is logged", func() bool { return f.logs.count("plugin withdrawn; allocation paused") == 1 })
	if n := f.logs.loud("plugin withdrawn; allocation paused"); n != 0 {
		t.Errorf("a second warning:\n%s", f.logs)
	}
}

func TestWatcherOldSocketRemoved(t *testing.T) {
	t.Parallel()
	f := eager(t)
	old, a := announced(f, plugintest.Dev("old", plugintest.Healthy))
	f.eventually("the old plugin serves", f.serves("old"))
	f.eventually("it is notified", wasNotified(old, true))
	fresh := plugintest.New(t, f.dir, gpu, plugintest.Dev("new", plugintest.Healthy))
	fresh.Endpoint = "fresh.sock"
	fresh.Serve()
	fresh.Announce(filepath.Join(f.watched, "fresh.sock"))
	f.eventually("the new plugin serves", f.serves("new"))
	f.eventually("it is notified", wasNotified(fresh, true))
	a.Withdraw()
	called := plugintest.New(t, f.watched, "called") // what happens afterwards is seen afterwards
	called.Info = &plugintest.Info{}
	called.Serve()
	f.eventually("the removal was seen", func() bool { return called.Calls(plugintest.GetInfo) > 0 })
	if !f.serves("new")() || fresh.Streams() != 1 || f.logs.count("plugin withdrawn") != 0 {
		t.Errorf("the new plugin was touched: %+v", f.offer())
	}
}

// A plugin that was replaced, and still waits to be called when its successor goes, has its turn again.
func TestWatcherReplacedPluginComesBack(t *testing.T) {
	t.Parallel()
	f := eager(t)
	old, _ := announced(f, plugintest.Dev("old", plugintest.Healthy))
	f.eventually("the old plugin serves", f.serves("old"))
	fresh := plugintest.New(t, f.dir, gpu, plugintest.Dev("new", plugintest.Healthy))
	fresh.Endpoint = "fresh.sock"
	fresh.Serve()
	b := fresh.Announce(filepath.Join(f.watched, "fresh.sock"))
	f.eventually("the new plugin serves", f.serves("new"))
	f.eventually("both are notified", func() bool { return wasNotified(old, true)() && wasNotified(fresh, true)() })
	b.Withdraw()
	f.eventually("the old plugin serves", f.serves("old"))
}

// A plugin that waits to be called never calls Register: when its resource is forgotten, devmgrd calls it again.
func TestWatcherForgottenPluginComesBack(t *testing.T) {
	t.Parallel()
	f := eager(t, func(c *registry.Config) { c.GracePeriod = time.Millisecond })
	p, _ := announced(f, plugintest.Dev("a", plugintest.Healthy))
	f.eventually("the plugin serves", f.serves("a"))
	ill := errors.New("out of paper")
	p.Before(plugintest.ListAndWatch, func(context.Context) error { return ill })
	p.EndStreams(ill)
	f.eventually("the plugin is lost", f.is(device.Lost))
	p.Before(plugintest.GetInfo, func(context.Context) error { return ill }) // else it is back before the test has looked
	if err := f.Forget(gpu); err != nil {
		t.Fatal(err)
	}
	if len(f.Offers()) > 0 {
		t.Errorf("it is not forgotten: %v", f.Offers())
	}
	p.Before(plugintest.ListAndWatch, nil)
	p.Before(plugintest.GetInfo, nil)
	f.eventually("the plugin serves again", f.serves("a"))
}

// What is left of a plugin that has gone is older than any that comes, even one that called before it.
func TestWatcherOlderPluginAfterNewer(t *testing.T) {
	t.Parallel()
	f := eager(t)
	gate := make(chan struct{})
	old := plugintest.New(t, f.dir, gpu, plugintest.Dev("old", plugintest.Healthy))
	old.Before(plugintest.GetOptions, plugintest.HoldUntil(gate))
	old.Serve()
	old.Announce(filepath.Join(f.watched, "reg.sock"))
	f.eventually("the old plugin is called", func() bool { return old.Calls(plugintest.GetOptions) == 1 })
	fresh := plugintest.New(t, f.dir, gpu, plugintest.Dev("new", plugintest.Healthy))
	fresh.Endpoint = "fresh.sock"
	fresh.Serve()
	b := fresh.Announce(filepath.Join(f.watched, "fresh.sock"))
	f.eventually("the new plugin serves", f.serves("new"))
	b.Withdraw()
	f.eventually("the new plugin is withdrawn", f.is(device.Stale))
	close(gate)
	f.eventually("the old plugin serves", f.serves("old"))
	if n := old.Calls(plugintest.GetInfo); n != 1 || len(old.Told()) != 1 {
		t.Errorf("it was asked %d times, and notified %v before it was taken", n, old.Told())
	}
}

// A plugin that dies leaves its socket behind, and the next one puts its own there.
func TestWatcherSocketLeftBehind(t *testing.T) {
	t.Parallel()
	f := eager(t)
	p := plugintest.New(t, f.watched, gpu, plugintest.Devices(2)...)
	p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}}
	p.Serve()
	f.eventually("the plugin serves", f.servesNumber(2))
	f.eventually("it is notified", wasNotified(p, true))
	p.Kill()
	f.eventually("the offer is stale", f.is(device.Stale))
	p.Set(plugintest.Devices(3)...)
	p.Serve()
	f.eventually("the next one serves", f.servesNumber(3))
}

// A plugin that starts again makes its socket again, perhaps by renaming, and is another one from then on.
func TestWatcher_SocketRecreated_IsAnotherPlugin(t *testing.T) {
	t.Parallel()
	f := eager(t)
	p := plugintest.New(t, f.watched, gpu, plugintest.Devices(2)...)
	p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}}
	p.Serve()
	f.eventually("the plugin serves", f.servesNumber(2))
	for n := 3; n < 6; n++ {
		p.Stop()
		p.Set(plugintest.Devices(n)...)
		p.Serve()
		f.eventually("it serves again", f.servesNumber(n))
	}
	twin := plugintest.New(t, f.watched, gpu, plugintest.Devices(7)...)
	twin.Endpoint, twin.Info = ".twin.sock", p.Info
	twin.Serve()
	if err := os.Rename(twin.Socket(), p.Socket()); err != nil {
		t.Fatal(err)
	}
	f.eventually("who takes the name takes the place", f.servesNumber(7))
	f.eventually("the former's stream is closed", func() bool { return p.Streams() == 0 })
}

// The kubelet would wait until the socket is recreated: we dial back.
func TestWatcherStreamEnds(t *testing.T) {
	t.Parallel()
	f := eager(t)
	p, _ := announced(f, plugintest.Devices(2)...)
	f.eventually("the plugin serves", f.servesNumber(2))
	f.eventually("it is notified", wasNotified(p, true))
	p.EndStreams(errors.New("out of paper"))
	f.eventually("the stream is opened again", func() bool { return p.Calls(plugintest.ListAndWatch) == 2 && f.servesNumber(2)() })
	if n := p.Calls(plugintest.GetInfo); n != 1 {
		t.Errorf("it was asked %d times who it is", n)
	}
	// Its service socket may come and go, too, while its registration socket stays.
	p.Before(plugintest.GetInfo, plugintest.Fail("must not be asked"))
	if err := os.Remove(p.Socket()); err != nil {
		t.Fatal(err)
	}
	p.EndStreams(nil)
	f.eventually("the offer is stale", f.is(device.Stale))
	other := plugintest.New(t, f.dir, gpu, plugintest.Devices(3)...)
	other.Serve()
	f.eventually("it is found where it serves", f.servesNumber(3))
}

func TestWatcher_Subdirectories(t *testing.T) {
	t.Parallel()
	f := prepare(t, watches(filepath.Join(socketDir(t), "made", "for us")))
	if err := os.MkdirAll(filepath.Join(f.watched, "there"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.run()
	plugin := func(dirs ...string) *plugintest.Plugin {
		dir := filepath.Join(append([]string{f.watched}, dirs...)...)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		p := plugintest.New(t, dir, gpu)
		p.Endpoint, p.Info = "a.sock", &plugintest.Info{Type: "CSIPlugin"}
		p.Serve()
		return p
	}
	hidden, deep := plugin(".hidden"), plugin("1", "2", "3", "4", "5")
	dot := plugintest.New(t, f.watched, gpu)
	dot.Endpoint, dot.Info = ".dot.sock", &plugintest.Info{}
	dot.Serve()
	if err := os.Symlink(dot.Socket(), filepath.Join(f.watched, "link.sock")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(hidden.Dir, filepath.Join(f.watched, "way")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*plugintest.Plugin{plugin("there"), plugin("new"), plugin("new", "er"), plugin("1", "2", "3", "4")} {
		f.eventually("the plugin in "+p.Dir+" is called", func() bool { return p.Calls(plugintest.GetInfo) == 1 })
	}
	if len(hidden.Requests())+len(deep.Requests())+len(dot.Requests()) != 0 {
		t.Error("one is called that must not be")
	}
	f.eventually("the directory that is too deep is logged", func() bool { return f.logs.count("plugin registry too large") == 1 })
	hidden.Info.Type = "DevicePlugin"
	if err := os.Rename(hidden.Dir, filepath.Join(f.watched, "shown")); err != nil {
		t.Fatal(err)
	}
	f.eventually("a directory that is renamed is seen", func() bool { return hidden.Calls(plugintest.GetInfo) > 0 })
}

// A plugin may move its directory and remove it at once.
func TestWatcher_DirectoriesMovedAndRemoved_WatchGoesOn(t *testing.T) {
	t.Parallel()
	f := eager(t)
	for round := range 3 {
		dirs := make([]string, 100)
		for i := range dirs {
			dirs[i] = filepath.Join(f.watched, fmt.Sprint(round, "-", i))
			if err := os.Mkdir(dirs[i], 0o755); err != nil {
				t.Fatal(err)
			}
		}
		announcedAt(f, fmt.Sprint(round, ".sock"), plugintest.Devices(round+1)...)
		f.eventually("the plugin serves, and the directories are watched", f.servesNumber(round+1))
		for _, dir := range dirs {
			moved := dir + ".moved"
			if err := errors.Join(os.Rename(dir, moved), os.Remove(moved)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := f.logs.count("plugin directory watch failed"); n > 0 {
		t.Errorf("the watch failed %d times", n)
	}
}

// As the socket directory is.
func TestWatcherDirectoryRemoved(t *testing.T) {
	t.Parallel()
	f := eager(t)
	for n := 1; n < 4; n++ {
		p := plugintest.New(t, f.watched, gpu, plugintest.Devices(n)...)
		p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}}
		p.Serve()
		f.eventually("the plugin serves", f.servesNumber(n))
		f.eventually("it is notified", wasNotified(p, true))
		if err := os.RemoveAll(f.watched); err != nil {
			t.Fatal(err)
		}
		f.eventually("the plugin is withdrawn", f.is(device.Stale))
		f.eventually("the directory is back", func() bool { _, err := os.Stat(f.watched); return err == nil })
	}
	// inotify does not report the end of an empty directory while a process has a socket that was bound in it.
	p := plugintest.New(t, f.watched, gpu, plugintest.Devices(4)...)
	p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}}
	p.Serve()
	f.eventually("the plugin serves", f.servesNumber(4))
	if err := os.Remove(p.Socket()); err != nil {
		t.Fatal(err)
	}
	f.eventually("the plugin is withdrawn", f.is(device.Stale))
	if err := os.Remove(f.watched); err != nil {
		t.Fatal(err)
	}
	f.eventually("the directory is back", func() bool { _, err := os.Stat(f.watched); return err == nil })
	p.Stop()
	p.Serve()
	f.eventually("the plugin serves", f.servesNumber(4))
}

// After a restart of ours a plugin that waits to be called is called, and not dialled before that.
func TestWatcherRestarts(t *testing.T) {
	t.Parallel()
	for name, here := range map[string]func(f *harness) string{
		"serves in the registry":         func(f *harness) string { return f.watched },
		"serves in the socket directory": func(f *harness) string { return f.dir },
	} {
		t.Run(name, func(t *testing.T) {
			first := eager(t)
			p := plugintest.New(t, here(first), gpu, plugintest.Devices(2)...)
			p.Endpoint = ".service.sock"
			p.Serve()
			p.Announce(filepath.Join(first.watched, "reg.sock"))
			first.eventually("the plugin serves", first.servesNumber(2))
			first.eventually("it is notified", wasNotified(p, true))
			first.stop()
			record, _ := first.memory.last()
			if record.Endpoint != p.Socket() {
				t.Fatalf("record = %+v", record)
			}
			slow := make(chan struct{})
			p.Before(plugintest.GetInfo, plugintest.HoldUntil(slow))
			second := prepare(t, at(first.dir), watches(first.watched), known(record))
			second.SetHoldTime(time.Hour)
			second.run()
			second.eventually("it is called", func() bool { return p.Calls(plugintest.GetInfo) == 2 })
			if n := p.Calls(plugintest.ListAndWatch); n != 1 {
				t.Errorf("it was dialled: %d streams", n)
			}
			close(slow)
			second.eventually("it serves again", second.servesNumber(2))
			second.eventually("it is notified", func() bool { return len(p.Told()) == 2 })
			if n := p.Calls(plugintest.ListAndWatch); n != 2 {
				t.Errorf("%d streams were opened in two lives of ours", n)
			}
			second.stop()

			// It does not wait to be called any longer, but serves.
			if err := os.Remove(filepath.Join(first.watched, "reg.sock")); err != nil {
				t.Fatal(err)
			}
			third := prepare(t, at(first.dir), watches(first.watched), known(record))
			third.SetHoldTime(time.Hour)
			third.run()
			third.eventually("it is dialled", third.servesNumber(2))
			if n := p.Calls(plugintest.GetInfo); n != 2 {
				t.Errorf("it was asked %d times who it is", n)
			}
			third.stop()

			// Without the watcher it is dialled as others are.
			fourth := start(t, at(first.dir), known(record))
			fourth.eventually("it serves", fourth.servesNumber(2))
		})
	}
}

// So is one that has one socket for both.
func TestWatcherRestartsWithOneSocket(t *testing.T) {
	t.Parallel()
	first := eager(t)
	p := plugintest.New(t, first.watched, gpu, plugintest.Devices(2)...)
	p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}}
	p.Serve()
	first.eventually("the plugin serves", first.servesNumber(2))
	first.eventually("it is notified", wasNotified(p, true))
	first.stop()
	record, _ := first.memory.last()
	second := start(t, at(first.dir), watches(first.watched), known(record))
	second.eventually("it serves again", func() bool { return second.servesNumber(2)() && len(p.Told()) == 2 })
	if n := p.Calls(plugintest.ListAndWatch); n != 2 {
		t.Errorf("%d streams were opened in two lives of ours", n)
	}
}

// A plugin that does not answer holds up no other for long.
func TestWatcher_RestartWithHungPlugin_OthersServe(t *testing.T) {
	t.Parallel()
	dir, registryDir := socketDir(t), socketDir(t)
	hung := plugintest.New(t, registryDir, "hung")
	hung.Info = &plugintest.Info{}
	hung.Before(plugintest.GetInfo, plugintest.Hang)
	hung.Serve()
	p := plugintest.New(t, dir, gpu, plugintest.Devices(2)...)
	p.Serve()
	f := prepare(t, at(dir), watches(registryDir), known(device.PluginRecord{Resource: gpu, Endpoint: p.Socket(), Reported: true}))
	f.SetInfoTimeout(time.Hour)
	f.SetHoldTime(100 * time.Millisecond)
	f.run()
	f.eventually("the other is called", func() bool { return hung.Calls(plugintest.GetInfo) == 1 })
	f.eventually("it is dialled", f.servesNumber(2))
}

// At the start the newest socket wins, even if an older one answers first.
func TestWatcherNewestSocketWins(t *testing.T) {
	t.Parallel()
	f := prepare(t, watches(socketDir(t)))
	gate := make(chan struct{})
	plugin := func(name string, age time.Duration, gate <-chan struct{}) *plugintest.Plugin {
		p := plugintest.New(t, f.watched, gpu, plugintest.Dev(name, plugintest.Healthy))
		p.Endpoint, p.Gate = name+".sock", gate
		p.Info = &plugintest.Info{Type: "DevicePlugin", Name: gpu, SupportedVersions: []string{"v1beta1"}}
		p.Serve()
		made := time.Now().Add(-age)
		if err := os.Chtimes(p.Socket(), made, made); err != nil {
			t.Fatal(err)
		}
		return p
	}
	fresh, old := plugin("new", time.Minute, nil), plugin("old", time.Hour, gate)
	f.run()
	f.eventually("the new one serves", f.serves("new"))
	close(gate)
	f.eventually("both are notified of their registration", func() bool { return wasNotified(fresh, true)() && wasNotified(old, true)() })
	if !f.serves("new")() || fresh.Streams() != 1 {
		t.Errorf("offer = %+v", f.offer())
	}
}

// With RejectDuplicates a second plugin is notified of the reason, and takes over when the first has gone.
func TestWatcherRejectDuplicates(t *testing.T) {
	t.Parallel()
	f := eager(t, func(c *registry.Config) { c.RejectDuplicates = true })
	first, a := announced(f, plugintest.Dev("first", plugintest.Healthy))
	f.eventually("the first plugin serves", f.serves("first"))
	f.eventually("it is notified", wasNotified(first, true))
	second := plugintest.New(t, f.dir, gpu, plugintest.Dev("second", plugintest.Healthy))
	second.Endpoint = "second.sock"
	second.Serve()
	second.Announce(filepath.Join(f.watched, "second.sock"))
	f.eventually("the second is notified of the reason, and called again", func() bool {
		return wasNotified(second, false, "is served by the plugin at", first.Socket())() && second.Calls(plugintest.GetInfo) > 1
	})
	if n := second.Calls(plugintest.GetOptions); n != 0 || !f.serves("first")() {
		t.Errorf("it was dialled %d times; %+v", n, f.offer())
	}
	a.Withdraw()
	f.eventually("it takes over", f.serves("second"))
	f.eventually("it is notified", wasNotified(second, true))
}

// The same plugin may register in both ways.
func TestWatcherNoDuplicateOfItself(t *testing.T) {
	t.Parallel()
	f := eager(t, func(c *registry.Config) { c.RejectDuplicates = true })
	p, _ := announced(f, plugintest.Devices(1)...)
	f.eventually("it is notified of its registration", wasNotified(p, true))
	f.eventually("the plugin serves", f.servesNumber(1))
	p.MustRegister()
	f.eventually("it serves on one stream", func() bool { return f.servesNumber(1)() && p.Streams() == 1 })
}

// One socket belongs to one resource, however its path is given.
func TestWatcherOneSocketOneResource(t *testing.T) {
	t.Parallel()
	const other = "vendor.example/other"
	f := eager(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(2)...)
	f.eventually("the plugin serves", f.servesNumber(2))
	p.SetInfo(&plugintest.Info{Type: "DevicePlugin", Name: other, Endpoint: kubeletDir + "/" + p.Endpoint, SupportedVersions: []string{"v1beta1"}})
	p.Announce(filepath.Join(f.watched, "reg.sock"))
	f.eventually("the other resource is served", func() bool { o := f.Offers()[other]; return o.State == device.Serving && o.Reported })
	if !f.is(device.Stale)() {
		t.Errorf("both are offered: %+v", f.Offers())
	}
	f.eventually("it is notified", wasNotified(p, true))
	p.MustRegister()
	f.eventually("and back", f.servesNumber(2))
	if f.Offers()[other].State == device.Serving {
		t.Errorf("both are offered: %+v", f.Offers())
	}
	f.eventually("one stream is left", func() bool { return p.Streams() == 1 })

	// The state file of such a time, after a crash between two saves.
	second := start(t, known(
		device.PluginRecord{Resource: gpu, Endpoint: "same.sock"}, device.PluginRecord{Resource: other, Endpoint: "same.sock"}))
	second.stop()
	third := start(t, at(second.dir), known(
		device.PluginRecord{Resource: gpu, Endpoint: "same.sock"}, device.PluginRecord{Resource: other, Endpoint: second.dir + "/same.sock"}))
	if n := third.logs.count("recorded resources share a socket"); n != 2 {
		t.Errorf("%d warnings", n)
	}
}

// When Run returns everything has ended, and no plugin has been withdrawn by that.
func TestWatcherEnds(t *testing.T) {
	before := runtime.NumGoroutine()
	f := eager(t)
	p, _ := announced(f, plugintest.Devices(2)...)
	f.eventually("the plugin serves", f.servesNumber(2))
	f.eventually("it is notified", wasNotified(p, true))
	var hung []*plugintest.Plugin
	for i, m := range []plugintest.Method{plugintest.GetInfo, plugintest.GetOptions, plugintest.Notify} {
		h := plugintest.New(t, f.watched, fmt.Sprintf("vendor.example/hung%d", i))
		h.Info = &plugintest.Info{Type: "DevicePlugin", Name: h.Resource, SupportedVersions: []string{"v1beta1"}}
		h.Before(m, plugintest.Hang)
		h.Serve()
		f.eventually("it hangs in "+string(m), func() bool { return h.Calls(m) == 1 })
		hung = append(hung, h)
	}
	f.stop()
	if r, _ := f.memory.last(); r.Endpoint != p.Socket() {
		t.Errorf("the state file says %+v", r)
	}
	for _, h := range append(hung, p) {
		h.Stop()
	}
	plugintest.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}
