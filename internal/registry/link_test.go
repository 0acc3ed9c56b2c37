package registry_test

import (
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
	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/internal/registry"
)

func TestStreamEnd(t *testing.T) {
	f := start(t, grace(150*time.Millisecond))
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
	f.eventually("the plugin serves", f.servesNumber(3))
	p.Stop()
	f.eventually("the offer is stale or lost", func() bool { return f.offer().State != device.Serving })
	f.eventually("the offer is lost", f.is(device.Lost))
	if n := len(f.offer().Inventory.Devices); n != 3 {
		t.Errorf("the last inventory was not kept: %d devices", n)
	}
	if f.metric("devmgrd_plugin_up", gpu) != 0 {
		t.Error("devmgrd_plugin_up is not 0")
	}
	p.Serve()
	p.MustRegister()
	f.eventually("it serves again", f.servesNumber(3))
	if f.metric("devmgrd_plugin_up", gpu) != 1 {
		t.Error("devmgrd_plugin_up is not 1")
	}
}

// A plugin that is back within the grace period was never lost.
func TestGraceEndsWithReturn(t *testing.T) {
	f := start(t, grace(time.Second))
	begin := time.Now()
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
	f.eventually("the plugin serves", f.servesNumber(3))
	served := f.offer().Since
	p.Stop()
	f.eventually("the offer is stale", f.is(device.Stale))
	went := f.offer().Since
	p.Serve()
	p.MustRegister()
	f.eventually("it serves again", f.servesNumber(3))
	if back := f.offer().Since; !served.After(begin) || !went.After(served) || !back.After(went) {
		t.Errorf("begun at %v, it serves since %v, is away since %v and back since %v", begin, served, went, back)
	}
	deadline := time.Now().Add(1200 * time.Millisecond) // past the first clock's end
	f.eventually("the grace period is over", func() bool {
		if !f.servesNumber(3)() {
			t.Fatalf("offer = %+v", f.offer())
		}
		return time.Now().After(deadline)
	})
	if f.logs.count("plugin is lost") != 0 {
		t.Error("the clock ran on")
	}
}

// The stream has ended but the plugin still serves: we dial back.
func TestStreamIsOpenedAgain(t *testing.T) {
	for name, end := range map[string]error{"in good order": nil, "with an error": errors.New("out of paper")} {
		t.Run(name, func(t *testing.T) {
			f := start(t)
			p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
			f.eventually("the plugin serves", f.servesNumber(3))
			p.EndStreams(end)
			f.eventually("the stream is opened again", func() bool { return p.Calls(plugintest.ListAndWatch) == 2 })
			f.eventually("it serves again", f.servesNumber(3))
			if n := p.Calls(plugintest.GetOptions); n != 2 {
				t.Errorf("options were asked for %d times, want once in each life", n)
			}
		})
	}
}

// A plugin that starts again on the same socket, and never registers again, is found by its socket.
func TestPluginRestartsWithoutRegistering(t *testing.T) {
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
	f.eventually("the plugin serves", f.servesNumber(3))
	p.Stop()
	f.eventually("the offer is stale", f.is(device.Stale))
	p.Set(plugintest.Devices(4)...)
	p.Serve()
	f.eventually("it is resumed", f.servesNumber(4))
}

// A plugin that starts again and registers gets one stream, not one that we open and another that it asks for.
func TestPluginRestartsAndRegisters(t *testing.T) {
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
	f.eventually("the plugin serves", f.servesNumber(3))
	// We wait a moment for the plugin to register by itself. A busy machine may take longer over it than that moment, and
	// then tells nothing: so once more.
	for range 50 {
		before := p.Calls(plugintest.ListAndWatch)
		p.Stop()
		began := time.Now()
		p.Serve()
		p.MustRegister()
		inTime := time.Since(began) < 50*time.Millisecond
		f.eventually("it serves again", f.servesNumber(3))
		if !inTime {
			continue
		}
		if n := p.Calls(plugintest.ListAndWatch); n != before+1 {
			t.Errorf("%d streams were opened in one life", n-before)
		}
		return
	}
	t.Fatal("the machine was never quick enough to tell")
}

// After our own restart a plugin that still serves is taken up again, and the number never moves.
func TestRegistryRestarts(t *testing.T) {
	first := start(t)
	plugintest.Start(t, first.dir, gpu, plugintest.Devices(3)...)
	first.eventually("the plugin serves", first.servesNumber(3))
	first.stop()
	record, ok := first.memory.last()
	if !ok || len(record.Devices) != 3 {
		t.Fatalf("record = %+v", record)
	}

	second := prepare(t, at(first.dir), known(record))
	if o := second.offer(); o.State != device.Stale || !o.Reported || len(o.Inventory.Devices) != 3 {
		t.Errorf("before Run the offer is %+v", o)
	}
	second.run()
	plugintest.Within(t, time.Second, "the plugin is resumed", second.servesNumber(3))
	if n := second.metric("device_plugin_registration_total", gpu); n > 0 {
		t.Errorf("%v registrations were counted, and there was none", n)
	}
	second.stop()
	if saves := second.memory.all(); len(saves) != 0 {
		t.Errorf("what was known already was saved again: %+v", saves)
	}
}

func TestKnownPluginIsGone(t *testing.T) {
	f := start(t, grace(100*time.Millisecond), known(device.PluginRecord{
		Resource: gpu, Endpoint: "gone.sock", Reported: true, Devices: []device.Device{{ID: "a", Healthy: true}},
	}))
	f.eventually("the offer is lost", f.is(device.Lost))
	if !f.offer().Reported || len(f.offer().Inventory.Devices) != 1 {
		t.Errorf("offer = %+v", f.offer())
	}
}

func TestListTooLong(t *testing.T) {
	f := start(t, func(c *registry.Config) { c.MaxDevices = 5 })
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(5)...)
	f.eventually("the plugin serves", f.servesNumber(5))
	p.Set(plugintest.Devices(6)...)
	f.eventually("the offer is stale", f.is(device.Stale))
	if n := len(f.offer().Inventory.Devices); n != 5 {
		t.Errorf("the last inventory was not kept: %d devices", n)
	}
	if !strings.Contains(f.logs.String(), "lists 6 devices, and plugins.maxDevices allows 5") {
		t.Error("the log does not say so")
	}
	p.Set(plugintest.Devices(4)...)
	f.eventually("it is heard again", f.servesNumber(4))
}

func TestMessageTooLarge(t *testing.T) {
	f := start(t, func(c *registry.Config) { c.MaxMessageBytes = 4 << 10 })
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(5)...)
	f.eventually("the plugin serves", f.servesNumber(5))
	p.Set(plugintest.Devices(5000)...)
	f.eventually("the offer is stale", f.is(device.Stale))
}

func TestListWithFaults(t *testing.T) {
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu,
		plugintest.Dev("a", plugintest.Healthy), plugintest.Dev("", plugintest.Healthy), plugintest.Dev("a", plugintest.Unhealthy))
	f.eventually("the plugin serves", f.serves("a"))
	if f.offer().Inventory.Devices[0].Healthy {
		t.Error("of two entries the last one has to count")
	}
	p.Set(plugintest.Dev("b", plugintest.Healthy), plugintest.Dev("b", plugintest.Healthy))
	f.eventually("the next list is heard", f.serves("b"))
	p.Set(plugintest.Dev("c", plugintest.Healthy, 1, 4294967295), plugintest.Dev(strings.Repeat("x", 40_000), plugintest.Healthy))
	f.eventually("the third list is heard", f.serves("c"))
	if got := fmt.Sprint(f.offer().Inventory.Devices[0].NUMA); got != "[1]" {
		t.Errorf("NUMA nodes %s, want [1]", got)
	}
	f.stop()
	if n := f.logs.count("list has faults"); n != 3 {
		t.Errorf("%d warnings, want one for each kind of fault", n)
	}
	if f.logs.count("longID=1 impossibleNUMA=1") != 1 || len(f.logs.String()) > 20_000 {
		t.Error("the third warning does not count the faults, or quotes them at length")
	}
}

// A plugin that has gone for good is dialled until it is lost and the pauses have grown, and no more. It is found when
// its socket is made anew.
func TestNothingIsDialledAtRest(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	left := plugintest.New(t, dir, gpu, plugintest.Devices(2)...)
	left.Serve()
	left.Kill() // its socket is still there
	const pause = 100 * time.Millisecond
	f := prepare(t, at(dir), grace(time.Millisecond), known(
		device.PluginRecord{Resource: gpu, Endpoint: left.Endpoint, Reported: true},
		device.PluginRecord{Resource: "vendor.example/nofile", Endpoint: "none.sock", Reported: true},
	))
	f.SetLastPause(pause)
	f.run()
	f.eventually("both are lost", func() bool { return f.logs.count("plugin is lost") == 2 })
	tries, since := -1, time.Time{}
	f.eventually("nothing is tried for ten pauses", func() bool {
		if n := f.logs.count("dialling back") + f.logs.count("waiting for the plugin's socket"); n != tries {
			tries, since = n, time.Now()
		}
		return time.Since(since) > 10*pause
	})
	left.Serve()
	f.eventually("it is found by its socket", f.servesNumber(2))
}

// An unchanged list is not signalled, not saved, and stays the same inventory.
func TestUnchangedList(t *testing.T) {
	f := start(t)
	devices := plugintest.Devices(50_000)
	p := plugintest.Start(t, f.dir, gpu, devices...)
	f.eventually("the plugin serves", f.servesNumber(50_000))
	f.eventually("it is saved", func() bool { r, _ := f.memory.last(); return len(r.Devices) == 50_000 })
	before, saves := f.offer(), len(f.memory.all())
	<-f.Changed()

	reversed := make([]*plugintest.Device, len(devices))
	for i, d := range devices {
		reversed[len(devices)-1-i] = d
	}
	p.Resend()
	p.Set(devices...)
	p.Set(reversed...)
	// A second resource comes after them. It changes something, so what they would have changed is to be seen by then.
	plugintest.Start(t, f.dir, "vendor.example/other", plugintest.Devices(1)...)
	f.eventually("the other resource is served", func() bool { return f.Offers()["vendor.example/other"].Reported })
	if after := f.offer(); &after.Inventory.Devices[0] != &before.Inventory.Devices[0] {
		t.Error("the inventory was replaced")
	}
	f.stop()
	for _, s := range f.memory.all()[saves:] {
		if s.Resource == gpu {
			t.Error("an unchanged list was saved")
		}
	}

	// Alone, it gives no signal at all: see TestUnchangedListGivesNoSignal, where nothing else happens.
}

func TestUnchangedListGivesNoSignal(t *testing.T) {
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(2)...)
	f.eventually("the plugin serves", f.servesNumber(2))
	<-f.Changed()
	for range 3 {
		p.Resend()
	}
	p.SetHealth("dev-000000", plugintest.Unhealthy) // messages come in order: those before have been heard
	<-f.Changed()
	if f.offer().Inventory.Devices[0].Healthy {
		t.Error("a signal was given for a list that had not changed")
	}
}

func TestHealthChangeShares(t *testing.T) {
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(50_000)...)
	f.eventually("the plugin serves", f.servesNumber(50_000))
	before := f.offer().Inventory.Devices
	p.SetHealth("dev-031415", plugintest.Unhealthy)
	f.eventually("the change is heard", func() bool { return !f.offer().Inventory.Devices[31415].Healthy })
	if !before[31415].Healthy {
		t.Error("an inventory that was handed out has been edited")
	}
	p.SetHealth("dev-031415", plugintest.Healthy)
	f.eventually("and back", func() bool { return f.offer().Inventory.Devices[31415].Healthy })
}

func TestSavesAreCoalesced(t *testing.T) {
	f := prepare(t)
	f.memory.hold = make(chan struct{})
	f.run()
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...) // not held up by a store that hangs
	for n := 2; n <= 20; n++ {
		p.Set(plugintest.Devices(n)...)
		f.eventually("the list is heard", f.servesNumber(n))
	}
	close(f.memory.hold)
	f.stop() // saves what is left
	saves := f.memory.all()
	if last := saves[len(saves)-1]; len(last.Devices) != 20 || len(saves) > 3 {
		t.Errorf("%d saves for 20 changes in a row, the last with %d devices", len(saves), len(last.Devices))
	}
}

func TestSaveIsTriedAgain(t *testing.T) {
	f := prepare(t)
	f.memory.fail = errors.New("disk full")
	f.run()
	plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the failure is logged", func() bool { return f.logs.count("disk full") == 1 })
	f.memory.mu.Lock()
	f.memory.fail = nil
	f.memory.mu.Unlock()
	f.stop()
	if _, ok := f.memory.last(); !ok {
		t.Error("the record was not saved in the end")
	}
}

func TestForget(t *testing.T) {
	f := start(t, grace(time.Millisecond))
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
	if f.Forget(gpu) == nil {
		t.Error("a resource was forgotten while it is served")
	}
	p.Stop()
	f.eventually("the plugin is lost", f.is(device.Lost))
	f.memory.mu.Lock()
	f.memory.fail = errors.New("disk full")
	f.memory.mu.Unlock()
	if f.Forget(gpu) == nil || len(f.Offers()) != 1 {
		t.Error("it is forgotten, and not in the books")
	}
	f.memory.mu.Lock()
	f.memory.fail = nil
	f.memory.mu.Unlock()
	if err := f.Forget(gpu); err != nil {
		t.Fatal(err)
	}
	if len(f.Offers()) != 0 || f.metric("devmgrd_plugin_up", gpu) != -1 || len(f.memory.all()) > 0 {
		t.Error("it is not forgotten")
	}
	if err := f.Forget("vendor.example/nic"); err != nil || !slices.Equal(f.memory.forgotten, []device.ResourceName{gpu, "vendor.example/nic"}) {
		t.Errorf("what the Node alone knows: %v, %v", err, f.memory.forgotten)
	}
	p.Serve()
	p.MustRegister()
	f.eventually("it is welcome again", f.servesNumber(1))
}

// When Run returns everything has ended, whatever plugins do at that moment.
func TestRunEndsEverything(t *testing.T) {
	before := runtime.NumGoroutine()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(2)...)
	f.eventually("the plugin serves", f.servesNumber(2))
	hung := plugintest.New(t, f.dir, "vendor.example/hung")
	hung.Before(plugintest.GetOptions, plugintest.Hang)
	hung.Serve()
	refused := make(chan error, 1)
	go func() { refused <- hung.Register() }()
	plugintest.Eventually(t, "the hung plugin is asked", func() bool { return hung.Calls(plugintest.GetOptions) == 1 })
	stale := plugintest.Start(t, f.dir, "vendor.example/stale", plugintest.Devices(1)...)
	stale.Stop()
	f.stop()
	<-refused
	if f.Check() == nil {
		t.Error("Check is content with a registry that has stopped")
	}
	if info, err := os.Lstat(filepath.Join(f.dir, "kubelet.sock")); err != nil || info.Mode().Type() != os.ModeSocket {
		t.Errorf("kubelet.sock was removed: %v", err)
	}
	p.Stop()
	hung.Stop()
	plugintest.Eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}
