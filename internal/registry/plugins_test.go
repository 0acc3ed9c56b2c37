package registry_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Each kind of plugin in use registers and serves without a change: plugins were written for the kubelet.

// seen returns what happens to the file of that name, as a plugin's own watch sees it.
func seen(t *testing.T, dir, name string, what dirwatch.Op) <-chan struct{} {
	t.Helper()
	watcher, err := dirwatch.Start()
	if err != nil {
		t.Fatal(err)
	}
	if err := watcher.AddPath(dir); err != nil {
		t.Fatal(err)
	}
	events := make(chan struct{}, 100)
	var done sync.WaitGroup
	done.Go(func() {
		for e := range watcher.Events {
			if filepath.Base(e.Name) == name && e.Has(what) {
				events <- struct{}{}
			}
		}
	})
	t.Cleanup(func() { watcher.Close(); done.Wait() })
	return events
}

func wait(t *testing.T, limit time.Duration, what string, events <-chan struct{}) {
	t.Helper()
	select {
	case <-events:
	case <-time.After(limit):
		t.Fatalf("not within %s: %s", limit, what)
	}
}

// We restart. Some plugins start again when they see kubelet.sock again; others only when their own socket vanishes, which
// it does not; and some watch nothing at all.
func TestPluginKinds(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"watches kubelet.sock", "watches its own socket", "watches nothing"} {
		t.Run(kind, func(t *testing.T) {
			first := start(t)
			p := plugintest.Start(t, first.dir, gpu, plugintest.Devices(3)...)
			first.eventually("the plugin serves", first.servesNumber(3))
			before, err := os.Lstat(p.Socket())
			if err != nil {
				t.Fatal(err)
			}
			created, removed := seen(t, first.dir, "kubelet.sock", dirwatch.Create), seen(t, first.dir, p.Endpoint, dirwatch.Remove)
			first.stop()
			record, _ := first.memory.last()
			second := start(t, at(first.dir), known(record))
			if kind == "watches kubelet.sock" {
				wait(t, 10*time.Second, "kubelet.sock is created", created)
				p.Stop()
				p.Set(plugintest.Devices(4)...)
				p.Serve()
				p.MustRegister()
				second.eventually("it serves again", second.servesNumber(4))
				return
			}
			second.eventually("it serves again", second.servesNumber(3))
			after, err := os.Lstat(p.Socket())
			if err != nil || !os.SameFile(before, after) || len(removed) != 0 {
				t.Errorf("its socket was touched: %v", err)
			}
			if kind == "watches its own socket" {
				if err := os.Remove(p.Socket()); err != nil { // as another process would
					t.Fatal(err)
				}
				wait(t, 10*time.Second, "its own socket is gone", removed)
				p.Stop()
				p.Set(plugintest.Devices(5)...)
				p.Serve()
				p.MustRegister()
				second.eventually("it serves again", second.servesNumber(5))
			}
		})
	}
}

// Plugins that watch for kubelet.sock dial it when they see it, and some end if they cannot register within 12 s.
func TestDirectoryIsWiped(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
	f.eventually("registration is served", func() bool { return f.Check() == nil })
	created := seen(t, f.dir, "kubelet.sock", dirwatch.Create)
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Remove(filepath.Join(f.dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	wait(t, 10*time.Second, "kubelet.sock is back", created)
	conn, err := net.Dial("unix", filepath.Join(f.dir, "kubelet.sock"))
	if err != nil {
		t.Fatalf("it is seen before it can be dialled: %v", err)
	}
	conn.Close()
	p.Stop()
	p.Set(plugintest.Devices(2)...)
	p.Serve()
	p.MustRegister()
	f.eventually("it serves again", f.servesNumber(2))
}

// Register fails neither while devmgrd starts, nor because the store is slow, nor because a call hangs.
func TestRegister_DaemonBusy_Waits(t *testing.T) {
	f := prepare(t)
	f.memory.hold = make(chan struct{})
	defer close(f.memory.hold)
	if err := f.Listen(); err != nil {
		t.Fatal(err)
	}
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	p.Before(plugintest.Allocate, plugintest.Hang)
	p.Serve()
	registered := make(chan error, 1)
	go func() { registered <- p.Register() }()
	// It is queued: it neither fails nor is answered before we run.
	f.eventually("Register waits for the server, or returns", func() bool { return stacks(t, `\.readServerPreface\(`) || len(registered) > 0 })
	if len(registered) > 0 {
		t.Fatalf("Register returned before devmgrd served: %v", <-registered)
	}
	f.serve()
	if err := <-registered; err != nil {
		t.Fatal(err)
	}
	f.eventually("the plugin serves", f.servesNumber(1))
	hung := make(chan error, 1)
	go func() {
		_, err := f.Allocate(context.Background(), pod, container, gpu, nil)
		hung <- err
	}()
	f.eventually("the call is there", func() bool { return p.Calls(plugintest.Allocate) == 1 })
	p.MustRegister()
	<-hung
}

// Some register twice, some milliseconds apart, without a reason.
func TestRegisterTwiceInARow(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(2)...)
	p.Serve()
	for round := range 6 {
		stage := []plugintest.Method{plugintest.GetOptions, plugintest.ListAndWatch}[round%2] // of the first when the second comes
		both, before := make(chan error, 2), p.Calls(stage)
		go func() { both <- p.Register() }()
		f.eventually("the plugin is called", func() bool { return p.Calls(stage) > before })
		go func() { both <- p.Register() }()
		for range 2 {
			if err := <-both; err != nil {
				t.Fatal(err)
			}
		}
		f.eventually("it serves on one stream", func() bool { return f.servesNumber(2)() && p.Streams() == 1 && p.Connections() == 1 })
	}
	p.SetHealth("dev-000001", plugintest.Unhealthy)
	f.eventually("the stream is heard", func() bool { return !f.offer().Inventory.Devices[1].Healthy })
	if f.logs.count("plugin disconnected") != 0 {
		t.Error("there was a gap")
	}
}

// A registration that the next one replaces before its stream is opened leaves no connection behind.
func TestRegisterInAFlood(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(2)...)
	p.Serve()
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if err := p.Register(); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	f.eventually("it serves on one stream", func() bool { return f.servesNumber(2)() && p.Streams() == 1 && p.Connections() == 1 })
}

// Some register from several processes at once, for resources of their own and for the same one. Some listen long before
// they register, and are left alone until then.
func TestRegisterAllAtOnce(t *testing.T) {
	t.Parallel()
	const n = 8
	f := start(t)
	early := plugintest.New(t, f.dir, "vendor.example/early", plugintest.Devices(1)...)
	early.Serve()
	var own, same []*plugintest.Plugin
	for i := range n {
		p := plugintest.New(t, f.dir, fmt.Sprintf("vendor.example/own%d", i), plugintest.Devices(i+1)...)
		q := plugintest.New(t, f.dir, gpu, plugintest.Dev(fmt.Sprint("of", i), plugintest.Healthy))
		q.Endpoint = fmt.Sprintf("same%d.sock", i)
		p.Serve()
		q.Serve()
		own, same = append(own, p), append(same, q)
	}
	var calls sync.WaitGroup
	for _, p := range append(slices.Clone(own), same...) {
		calls.Go(func() {
			if err := p.Register(); err != nil {
				t.Errorf("%s at %s: %v", p.Resource, p.Endpoint, err)
			}
		})
	}
	calls.Wait()
	f.eventually("each serves what is its own", func() bool {
		for i, p := range own {
			o := f.Offers()[device.ResourceName(p.Resource)]
			if o.State != device.Serving || len(o.Inventory.Devices) != i+1 {
				return false
			}
		}
		return true
	})
	f.eventually("one of them serves what is common", func() bool {
		streams, serves := 0, false
		for i, p := range same {
			streams += p.Streams()
			serves = serves || p.Streams() == 1 && f.serves(fmt.Sprint("of", i))()
		}
		return serves && streams <= 4 // with those in reserve
	})
	if f.metric("device_plugin_registration_total", gpu) < 1 || len(early.Requests()) != 0 {
		t.Error("registrations are not counted, or one was called that has not registered")
	}
}

// Some keep their previous stream, and keep sending on it, even when they were told to stop.
func TestReRegistration_OldStream_IsIgnored(t *testing.T) {
	t.Parallel()
	f := start(t)
	old := plugintest.New(t, f.dir, gpu, plugintest.Dev("old", plugintest.Healthy))
	old.Stubborn = true
	old.Serve()
	old.MustRegister()
	f.eventually("the old plugin serves", f.serves("old"))
	fresh := plugintest.New(t, f.dir, gpu, plugintest.Dev("new", plugintest.Healthy))
	fresh.Endpoint, fresh.Stubborn = "fresh.sock", true
	fresh.Serve()
	fresh.MustRegister()
	f.eventually("the new plugin serves", f.serves("new"))
	for i := range 20 {
		old.Set(plugintest.Dev(fmt.Sprint("older", i), plugintest.Healthy))
	}
	if old.Streams() != 1 {
		t.Fatalf("%d streams: it should have clung to one", old.Streams())
	}
	fresh.MustRegister() // and so does the new one now, on the same socket
	f.eventually("it has two streams", func() bool { return fresh.Streams() == 2 })
	fresh.Set(plugintest.Dev("newer", plugintest.Healthy), plugintest.Dev("newest", plugintest.Healthy))
	f.eventually("the current one is heard", f.serves("newer", "newest"))
	f.eventually("we are at the other end of one, and of the one in reserve", func() bool { return old.Connections() == 1 && fresh.Connections() == 1 })
	old.Stop()
	if !f.serves("newer", "newest")() || f.logs.count("plugin disconnected") != 0 {
		t.Errorf("the old plugin was heard: %+v", f.offer())
	}
}

// About half of the plugins leave their socket behind when they end. It does not stop the next plugin, at that path or another.
func TestPluginLeavesSocketBehind(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
	p.Kill()
	f.eventually("the offer is stale", f.is(device.Stale))
	other := plugintest.New(t, f.dir, gpu, plugintest.Devices(2)...)
	other.Endpoint = "other.sock"
	other.Serve()
	other.MustRegister()
	f.eventually("another one serves", f.servesNumber(2))
	other.Kill()
	f.eventually("the offer is stale", f.is(device.Stale))
	p.Set(plugintest.Devices(3)...)
	p.Serve()
	p.MustRegister()
	f.eventually("the first is back in its place", f.servesNumber(3))
}

// A registered plugin may never list, or list nothing. The first has no number on the node, the second has zero.
func TestNothingIsListed(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu)
	listing := make(chan struct{})
	p.Before(plugintest.ListAndWatch, plugintest.HoldUntil(listing))
	p.Serve()
	p.MustRegister()
	f.eventually("its list is asked for", func() bool { return p.Calls(plugintest.ListAndWatch) == 1 })
	if o := f.offer(); o.Reported || o.State != device.Serving || o.Status() != device.StatusConnected {
		t.Errorf("offer = %+v", o)
	}
	close(listing)
	f.eventually("nothing is offered", f.servesNumber(0))
	p.Set(plugintest.Devices(1)...)
	f.eventually("and then something", f.servesNumber(1))
	p.Set()
	f.eventually("and nothing again", f.servesNumber(0))
}

// IDs are any text, and may all be others after a restart.
func TestDeviceIDs(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu)
	list := func(ids ...string) {
		var devices []*plugintest.Device
		for _, id := range ids {
			devices = append(devices, plugintest.Dev(id, plugintest.Healthy))
		}
		p.Set(devices...)
	}
	odd := []string{" ", "0000:3b:00.0", "GPU-fef8089b::0", "GPU-fef8089b::1", "a,b=c;d", "{\"id\":1}", "é\n", strings.Repeat("x", 1024)}
	slices.Sort(odd)
	list(odd...)
	p.Serve()
	p.MustRegister()
	f.eventually("all are taken", f.serves(odd...))
	var all []device.ID
	for _, id := range odd {
		all = append(all, device.ID(id))
	}
	if _, err := f.Allocate(t.Context(), pod, container, gpu, all); err != nil {
		t.Fatal(err)
	}
	requests := p.Requests()
	if got := requests[len(requests)-1].IDs; !slices.Equal(got, odd) {
		t.Errorf("Allocate is asked for %q", got)
	}
	p.Stop()
	f.eventually("the offer is stale", f.is(device.Stale))
	list("GPU-11111111::0", "GPU-11111111::1")
	p.Serve()
	p.MustRegister()
	f.eventually("the new ones are in their place", f.serves("GPU-11111111::0", "GPU-11111111::1"))
}

// A topology may be there and say nothing, or name nodes that no machine has.
func TestTopologies(t *testing.T) {
	t.Parallel()
	f := start(t)
	with := func(id string, nodes ...*pluginapi.NUMANode) *plugintest.Device {
		return &plugintest.Device{ID: id, Health: plugintest.Healthy, Topology: &pluginapi.TopologyInfo{Nodes: nodes}}
	}
	plugintest.Start(t, f.dir, gpu,
		with("empty"), with("negative", &pluginapi.NUMANode{ID: -1}), with("none"), with("zero", &pluginapi.NUMANode{}),
		with("far", &pluginapi.NUMANode{ID: 1 << 40}), with("near", &pluginapi.NUMANode{ID: 1}, &pluginapi.NUMANode{ID: 4096}),
		plugintest.Dev("plain", plugintest.Healthy))
	f.eventually("all are offered", f.servesNumber(7))
	got := map[string]string{}
	for _, d := range f.offer().Inventory.Devices {
		got[string(d.ID)] = fmt.Sprint(d.NUMA)
	}
	want := map[string]string{"empty": "[]", "negative": "[]", "none": "[]", "zero": "[0]", "far": "[]", "near": "[1]", "plain": "[]"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("nodes %v, want %v", got, want)
	}
}

// Answers name the same node twice, directories, and permissions in any order. They are given on as they are.
func TestAllocateOddAnswers(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	same := &pluginapi.DeviceSpec{HostPath: "/dev/vfio/1", ContainerPath: "/dev/vfio/1", Permissions: "mrw"}
	p.OnAllocate = plugintest.Grants(&plugintest.Answer{Devices: []*pluginapi.DeviceSpec{
		same, same, {HostPath: "/dev/dri", ContainerPath: "/dev/dri", Permissions: "rw"}, {HostPath: "/dev/a", Permissions: "r"},
	}})
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(1))
	got, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"dev-000000"})
	want := []device.Node{
		{ContainerPath: "/dev/vfio/1", HostPath: "/dev/vfio/1", Permissions: "mrw"}, {ContainerPath: "/dev/vfio/1", HostPath: "/dev/vfio/1", Permissions: "mrw"},
		{ContainerPath: "/dev/dri", HostPath: "/dev/dri", Permissions: "rw"}, {HostPath: "/dev/a", Permissions: "r"},
	}
	if err != nil || !slices.Equal(got.Nodes, want) {
		t.Errorf("nodes = %+v, %v", got.Nodes, err)
	}
}
