package registry_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// ownDirs configures a directory for each plugin pod.
func ownDirs(dir string) func(*registry.Config) {
	return func(c *registry.Config) { c.PluginsDir = dir }
}

func pluginPod(name string) device.Pod {
	return device.Pod{UID: device.PodUID("uid-" + name), Namespace: "kube-system", Name: name}
}

// directory makes a plugin pod's directory, as the hook does.
func (f *harness) directory(name string) device.PluginDir {
	f.t.Helper()
	dir, err := f.Directory(pluginPod(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return dir
}

// owner returns the pod of gpu's plugin.
func (f *harness) owner() device.PluginPod { return f.Registrations()[gpu].Pod }

type accounts map[string]string

func (a accounts) ServiceAccount(p device.Pod) string      { return a[p.Name] }
func (a accounts) Fetch(context.Context, device.Pod) error { return nil }
func (a accounts) Named(uid device.PodUID) (device.Pod, bool) {
	return device.Pod{UID: uid, Namespace: "kube-system", Name: string(uid)}, a[string(uid)] != ""
}

// Who registers in a pod's own directory is that pod's plugin: in what is shown, recorded and measured.
func TestDirectory_Registration_HasItsPod(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)))
	f.with.Accounts = accounts{"a": "plugins"}
	f.run()
	p := plugintest.Start(t, f.directory("a").Sockets, gpu, plugintest.Devices(2)...)
	f.eventually("it serves", f.servesNumber(2))
	want := device.PluginPod{Pod: pluginPod("a"), ServiceAccount: "plugins"}
	if got := f.owner(); got != want {
		t.Errorf("its pod is %+v, want %+v", got, want)
	}
	f.eventually("it is recorded", func() bool { r, ok := f.memory.last(); return ok && r.Pod == want && r.Endpoint == p.Endpoint })
	if text := f.logs.String(); !strings.Contains(text, `msg="plugin registered" resource=vendor.example/gpu endpoint=`+p.Endpoint+" pod=kube-system/a service_account=plugins") {
		t.Errorf("the log does not name its pod:\n%s", text)
	}
	if n := f.metric("devmgrd_plugin_info", "kube-system"); n != 1 {
		t.Errorf("devmgrd_plugin_info is %v", n)
	}
	// A plugin of the host has none.
	plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the host's serves", f.servesNumber(1))
	if got := f.owner(); got.Known() {
		t.Errorf("the host's plugin has pod %+v", got)
	}
	if n := f.metric("devmgrd_plugin_info", "kube-system"); n != -1 {
		t.Errorf("devmgrd_plugin_info of the former is %v", n)
	}
}

// Under the kubelet, too, a plugin that makes its socket for all users is out of their reach.
func TestDirectory_Common_OtherUsersHaveNoAccess(t *testing.T) {
	t.Parallel()
	above := socketDir(t)
	f := start(t, at(filepath.Join(above, "device-plugins")), watches(filepath.Join(above, "plugins_registry")))
	f.eventually("both are made", func() bool { _, err := os.Stat(f.watched); return err == nil })
	for _, dir := range []string{f.dir, f.watched} {
		info, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o750 {
			t.Errorf("%s has mode %v", dir, info.Mode())
		}
	}
}

// Two plugins with a socket of one name do not meet. Neither sees what the other one has.
func TestDirectory_TwoPods_AreApart(t *testing.T) {
	t.Parallel()
	f := start(t, ownDirs(socketDir(t)))
	a, b := f.directory("a"), f.directory("b")
	for n, dir := range []string{a.Sockets, b.Sockets} {
		p := plugintest.New(t, dir, fmt.Sprintf("vendor.example/r%d", n), plugintest.Devices(n+1)...)
		p.Endpoint = "plugin.sock"
		p.Serve()
		p.MustRegister()
	}
	f.eventually("both serve", func() bool {
		o := f.Offers()
		return len(o["vendor.example/r0"].Inventory.Devices) == 1 && len(o["vendor.example/r1"].Inventory.Devices) == 2
	})
	if n := f.logs.count("socket taken from another resource"); n != 0 {
		t.Error("one has taken the other one's socket")
	}
	// Nothing but its own is in reach of b, whatever it names.
	for _, endpoint := range []string{"../../uid-a/device-plugins/plugin.sock", "/" + a.Sockets + "/plugin.sock", "nothing/../plugin.sock"} {
		err := plugintest.Register(t.Context(), b.Sockets, &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: "evil.example/x", Endpoint: endpoint})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("endpoint %q: %v", endpoint, err)
		}
	}
	if err := os.Symlink(filepath.Join(a.Sockets, "plugin.sock"), filepath.Join(b.Sockets, "link.sock")); err != nil {
		t.Fatal(err)
	}
	err := plugintest.Register(t.Context(), b.Sockets, &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: "evil.example/x", Endpoint: "link.sock"})
	if err == nil || !strings.Contains(err.Error(), "out of the socket directory") {
		t.Errorf("through a link: %v", err)
	}
	dirs, _ := f.Directories()
	var got []string
	for _, d := range dirs {
		got = append(got, fmt.Sprint(d.Owner, d.Resources))
	}
	slices.Sort(got)
	if want := []string{"kube-system/a [vendor.example/r0]", "kube-system/b [vendor.example/r1]"}; !slices.Equal(got, want) {
		t.Errorf("directories are %q, want %q", got, want)
	}
}

// A plugin that waits to be asked names paths as its container has them. It reaches no other plugin's socket by them.
func TestDirectory_RegistryDirectory(t *testing.T) {
	t.Parallel()
	f := start(t, ownDirs(socketDir(t)), watches(socketDir(t)))
	a, b := f.directory("a"), f.directory("b")
	p := plugintest.New(t, a.Sockets, gpu, plugintest.Devices(2)...)
	p.Endpoint = "gpu.sock"
	p.SetInfo(&plugintest.Info{Type: "DevicePlugin", Name: gpu, Endpoint: kubeletDir + "/gpu.sock", SupportedVersions: []string{"v1beta1"}})
	p.Serve()
	p.Announce(filepath.Join(a.Registry, "reg.sock"))
	f.eventually("it serves", f.servesNumber(2))
	if got := f.owner().Pod; got != pluginPod("a") {
		t.Errorf("its pod is %v", got)
	}
	evil := plugintest.New(t, b.Sockets, "evil.example/x")
	for n, endpoint := range []string{p.Socket(), filepath.Join(f.dir, "host.sock")} {
		evil.SetInfo(&plugintest.Info{Type: "DevicePlugin", Name: "evil.example/x", Endpoint: endpoint, SupportedVersions: []string{"v1beta1"}})
		evil.Announce(filepath.Join(b.Registry, fmt.Sprintf("%d.sock", n)))
		f.eventually("it is notified", func() bool { return len(evil.Told()) > n })
		if result := evil.Told()[n]; !strings.Contains(result.GetError(), "in a directory of other plugins") {
			t.Errorf("endpoint %q: notified %v", endpoint, result)
		}
	}
}

// A restart of devmgrd finds the directories and their plugins again, and shows each a new kubelet.sock.
func TestDirectory_Restart_FindsPlugins(t *testing.T) {
	t.Parallel()
	own, common := socketDir(t), socketDir(t)
	f := start(t, ownDirs(own), at(common))
	dir := f.directory("a")
	p := plugintest.Start(t, dir.Sockets, gpu, plugintest.Devices(2)...)
	f.eventually("it serves", f.servesNumber(2))
	f.eventually("it is recorded", func() bool { r, ok := f.memory.last(); return ok && len(r.Devices) == 2 })
	f.stop()
	record, _ := f.memory.last()
	second := start(t, ownDirs(own), at(common), known(record))
	second.eventually("it serves again", second.servesNumber(2))
	if got := second.owner().Pod; got != pluginPod("a") {
		t.Errorf("its pod is %v", got)
	}
	if err := p.Register(); err != nil {
		t.Errorf("it cannot register again: %v", err)
	}
	// The runtime has not had the pod since.
	second.PodsPresent(func(device.PodUID) bool { return false })
	second.eventually("its directory is removed", func() bool { _, err := os.Stat(dir.Sockets); return os.IsNotExist(err) })
	second.eventually("it is away", second.is(device.Stale))
}

// The pod's end is its directory's. Another pod of the DaemonSet takes the resource over.
func TestDirectory_PodGone(t *testing.T) {
	t.Parallel()
	f := start(t, ownDirs(socketDir(t)))
	dir := f.directory("a")
	p := plugintest.Start(t, dir.Sockets, gpu, plugintest.Devices(2)...)
	f.eventually("it serves", f.servesNumber(2))
	p.Stop()
	f.PodGone("uid-a")
	f.PodGone("uid-a")
	f.PodGone("uid-never")
	f.eventually("the directory is removed", func() bool { _, err := os.Stat(filepath.Dir(dir.Sockets)); return os.IsNotExist(err) })
	f.eventually("the plugin's socket is given up", func() bool { return f.Registrations()[gpu].Endpoint == "" })
	if o := f.offer(); o.State != device.Stale || o.LastError != "its pod is gone" {
		t.Errorf("the offer is %s: %q", o.State, o.LastError)
	}
	f.eventually("it has no directory", func() bool {
		_, has := f.OwnDirectory("uid-a")
		dirs, _ := f.Directories()
		return !has && len(dirs) == 0
	})
	plugintest.Start(t, f.directory("b").Sockets, gpu, plugintest.Devices(3)...)
	f.eventually("the next one serves", f.servesNumber(3))
	// The same pod in a new sandbox.
	f.eventually("it may have another directory", func() bool { _, err := f.Directory(pluginPod("a")); return err == nil })
	plugintest.Start(t, dir.Sockets, gpu, plugintest.Devices(1)...)
	f.eventually("it serves again", f.servesNumber(1))
}

// After a reboot runDir is empty. The plugin is found when its pod is back, though it never registers.
func TestDirectory_Reboot(t *testing.T) {
	t.Parallel()
	f := start(t, ownDirs(socketDir(t)), known(device.PluginRecord{
		Resource: gpu, Endpoint: "gpu.sock", Pod: device.PluginPod{Pod: pluginPod("a")}, Reported: true, Devices: []device.Device{{ID: "dev-0", Healthy: true}},
	}))
	f.eventually("it cannot be dialled", func() bool { return f.offer().LastError != "" })
	p := plugintest.New(t, f.directory("a").Sockets, gpu, plugintest.Devices(2)...)
	p.Endpoint = "gpu.sock"
	p.Serve()
	f.eventually("it serves", f.servesNumber(2))
}

// kubelet.sock comes back, as often as a plugin removes it, and a pod that keeps it from coming back harms itself only.
func TestDirectory_KubeletSocketIsKept(t *testing.T) {
	t.Parallel()
	f := start(t, ownDirs(socketDir(t)))
	dir, other := f.directory("a"), f.directory("b")
	for range 3 {
		if err := os.Remove(filepath.Join(dir.Sockets, "kubelet.sock")); err != nil {
			t.Fatal(err)
		}
		f.eventually("it is back", func() bool { _, err := os.Lstat(filepath.Join(dir.Sockets, "kubelet.sock")); return err == nil })
	}
	plugintest.Start(t, dir.Sockets, gpu, plugintest.Devices(1)...)
	f.eventually("its plugin serves", f.servesNumber(1))
	if err := os.Rename(other.Sockets, other.Sockets+".old"); err != nil {
		t.Fatal(err)
	}
	f.eventually("a directory is back", func() bool { _, err := os.Lstat(filepath.Join(other.Sockets, "kubelet.sock")); return err == nil })
	if err := f.Check(); err != nil {
		t.Errorf("registration: %v", err)
	}
}

// All processes of a pod count as one client: they may fork.
func TestDirectory_Flood_OthersRegister(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)))
	f.SetRegisterTimeout(2 * time.Second)
	f.run()
	evil, good := f.directory("evil"), f.directory("good")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	silent := plugintest.New(t, evil.Sockets, "silent.example/x")
	silent.Before(plugintest.GetOptions, plugintest.Hang)
	silent.Serve()
	go func() {
		defer close(done)
		calls := make(chan struct{}, 300)
		for i := 0; ctx.Err() == nil; i++ {
			calls <- struct{}{}
			go func() {
				defer func() { <-calls }()
				plugintest.Register(ctx, evil.Sockets, &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: fmt.Sprintf("silent.example/r%d", i), Endpoint: silent.Endpoint})
			}()
		}
		for range cap(calls) {
			calls <- struct{}{}
		}
	}()
	f.eventually("the flood has begun", func() bool { return silent.Calls(plugintest.GetOptions) >= 32 })
	plugintest.Start(t, good.Sockets, gpu, plugintest.Devices(1)...)
	f.eventually("a good plugin serves", f.servesNumber(1))
	cancel()
	<-done
}

// A plugin that waits to be called is called when the one that has replaced it goes, in whatever directory that was.
func TestDirectory_Replacement_Goes_FormerServes(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(f *harness, p *plugintest.Plugin, a *plugintest.Announcement){
		"its socket is removed": func(_ *harness, p *plugintest.Plugin, a *plugintest.Announcement) { p.Stop(); a.Withdraw() },
		"its pod is gone":       func(f *harness, p *plugintest.Plugin, _ *plugintest.Announcement) { p.Stop(); f.PodGone("uid-b") },
	} {
		t.Run(name, func(t *testing.T) {
			f := start(t, ownDirs(socketDir(t)), watches(socketDir(t)))
			announce := func(dir device.PluginDir, devices int) (*plugintest.Plugin, *plugintest.Announcement) {
				p := plugintest.New(t, dir.Sockets, gpu, plugintest.Devices(devices)...)
				p.Endpoint = "gpu.sock"
				p.SetInfo(&plugintest.Info{Type: "DevicePlugin", Name: gpu, Endpoint: kubeletDir + "/gpu.sock", SupportedVersions: []string{"v1beta1"}})
				p.Serve()
				a := p.Announce(filepath.Join(dir.Registry, "reg.sock"))
				f.eventually("it serves", f.servesNumber(devices))
				return p, a
			}
			announce(f.directory("a"), 1)
			p, a := announce(f.directory("b"), 2)
			end(f, p, a)
			f.eventually("the former one serves", f.servesNumber(1))
		})
	}
}

// A pod exchanges directories below its registry directory while they are watched, and ends. Another pod is served on.
func TestDirectory_ExchangedDirectories_OthersServe(t *testing.T) {
	t.Parallel()
	f := start(t, ownDirs(socketDir(t)))
	evil, good := f.directory("evil"), f.directory("good")
	p, q := filepath.Join(evil.Registry, "p"), filepath.Join(evil.Registry, "q")
	for _, dir := range []string{p, q} {
		if err := os.MkdirAll(filepath.Join(dir, "x"), 0o700); err != nil {
			t.Fatal(err)
		}
		caller := plugintest.New(t, evil.Sockets, "evil.example/"+filepath.Base(dir))
		caller.SetInfo(&plugintest.Info{Type: "Other"})
		caller.Announce(filepath.Join(dir, "x", "reg.sock"))
		f.eventually("the directory is watched", func() bool { return len(caller.Told()) > 0 })
	}
	if err := unix.Renameat2(unix.AT_FDCWD, p, unix.AT_FDCWD, q, unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	f.PodGone("uid-evil")
	f.eventually("its directory is removed", func() bool { _, err := os.Stat(evil.Sockets); return os.IsNotExist(err) })
	plugintest.Start(t, good.Sockets, gpu, plugintest.Devices(1)...)
	f.eventually("a good plugin serves", f.servesNumber(1))
}

// Nothing is made once the registry stops.
func TestDirectory_AfterTheEnd(t *testing.T) {
	t.Parallel()
	f := start(t, ownDirs(socketDir(t)))
	f.directory("a")
	f.stop()
	if dir, err := f.Directory(pluginPod("b")); err == nil {
		t.Errorf("made %+v", dir)
	}
	f.PodGone("uid-a") // its directory stays for the next start
	if _, err := os.Stat(filepath.Join(filepath.Dir(f.directoryOf("a")), "owner.json")); err != nil {
		t.Error(err)
	}
}

// directoryOf returns the path of a directory that is there.
func (f *harness) directoryOf(name string) string {
	f.t.Helper()
	dir, has := f.OwnDirectory(device.PodUID("uid-" + name))
	if !has {
		f.t.Fatalf("%s has no directory", name)
	}
	return dir.Sockets
}

// What the hook waits for: the first directory of a pod, and the look-up of one that is there.
func BenchmarkDirectory(b *testing.B) {
	f := start(b, ownDirs(socketDir(b)))
	b.Run("made", func(b *testing.B) {
		for n := range b.N {
			f.directory(fmt.Sprintf("%d-%d", b.N, n))
		}
	})
	f.directory("there")
	b.Run("there", func(b *testing.B) {
		for range b.N {
			f.OwnDirectory("uid-there")
		}
	})
}
