package registry_test

import (
	"errors"
	"fmt"
	"maps"
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

func TestStreamEnd(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	if f.logs.count("plugin lost") != 0 {
		t.Error("the clock ran on")
	}
}

// The stream has ended but the plugin still serves: we dial back.
func TestStreamIsOpenedAgain(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	f := prepare(t)
	f.SetFirstPause(time.Hour)
	f.SetLastPause(time.Hour)
	f.SetCourtesy(time.Hour)
	f.run()
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
	f.eventually("the plugin serves", f.servesNumber(3))
	p.Stop()
	f.eventually("the offer is stale", f.is(device.Stale))
	p.Serve()
	f.eventually("the new socket is seen", func() bool { return f.logs.count("socket was recreated") > 0 })
	p.MustRegister()
	f.eventually("it serves again", f.servesNumber(3))
	if n := p.Calls(plugintest.ListAndWatch); n != 2 {
		t.Errorf("%d streams were opened in two lives", n)
	}
}

// After our own restart a plugin that still serves is taken up again, and the number never moves.
func TestRegistryRestarts(t *testing.T) {
	t.Parallel()
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
	second.SetFirstPause(time.Hour)
	second.SetLastPause(time.Hour)
	second.SetHoldTime(time.Hour)
	second.run()
	second.eventually("the plugin is resumed", second.servesNumber(3))
	if n := second.metric("device_plugin_registration_total", gpu); n > 0 {
		t.Errorf("%v registrations were counted, and there was none", n)
	}
	second.stop()
	if saves := second.memory.all(); len(saves) != 0 {
		t.Errorf("what was known already was saved again: %+v", saves)
	}
}

// A plugin whose first list after its restart is empty lists no new devices a moment later; one that renames its devices
// does, also after a restart of devmgrd.
func TestDevicesAreDatedAcrossRestarts(t *testing.T) {
	t.Parallel()
	added := func(f *harness) map[device.ID]bool {
		dated := map[device.ID]bool{}
		for _, d := range f.offer().Inventory.Devices {
			dated[d.ID] = d.Added != 0
		}
		return dated
	}
	healthy := func(ids ...string) (all []*plugintest.Device) {
		for _, id := range ids {
			all = append(all, plugintest.Dev(id, plugintest.Healthy))
		}
		return all
	}
	first := start(t)
	p := plugintest.Start(t, first.dir, gpu, healthy("a", "b")...)
	first.eventually("the plugin serves", first.serves("a", "b"))
	p.Stop()
	first.eventually("it is away", first.is(device.Stale))
	p.Set()
	p.Serve()
	p.MustRegister()
	first.eventually("it lists nothing", first.servesNumber(0))
	p.Set(healthy("a", "b")...)
	first.eventually("it lists everything", first.serves("a", "b"))
	if got := added(first); got["a"] || got["b"] {
		t.Errorf("dated after an empty list: %v", got)
	}
	p.Set(healthy("a", "c")...)
	first.eventually("it has renamed a device", first.serves("a", "c"))
	want := map[device.ID]bool{"a": false, "c": true}
	if got := added(first); !maps.Equal(got, want) {
		t.Errorf("dated: %v, want %v", got, want)
	}
	first.stop()

	record, _ := first.memory.last()
	second := start(t, at(first.dir), known(record))
	second.eventually("the plugin is resumed", second.is(device.Serving))
	if got := added(second); !maps.Equal(got, want) {
		t.Errorf("dated after a restart of devmgrd: %v, want %v", got, want)
	}
}

// Offer.Session shows that a plugin was replaced without a gap, and that one has come back. Lists leave it alone.
func TestSessionNumber(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
	f.eventually("the plugin serves", f.servesNumber(3))
	seen := map[uint64]bool{f.offer().Session: true}
	p.Set(plugintest.Devices(4)...)
	f.eventually("it lists another device", f.servesNumber(4))
	if !seen[f.offer().Session] {
		t.Error("a list has changed the session")
	}
	change := func(how string) {
		t.Helper()
		if n := f.offer().Session; seen[n] {
			t.Errorf("session %d again after %s", n, how)
		} else {
			seen[n] = true
		}
	}
	p.MustRegister() // while its stream is open
	change("another registration")
	f.eventually("another stream is open", func() bool { return p.Calls(plugintest.ListAndWatch) == 2 })
	p.Set(plugintest.Devices(5)...)
	f.eventually("it lists another device", f.servesNumber(5))
	if !seen[f.offer().Session] {
		t.Error("the first list of a registration that was accepted before has changed the session")
	}
	p.EndStreams(errors.New("out of paper"))
	p.Set(plugintest.Devices(6)...)
	f.eventually("devmgrd has dialled back", f.servesNumber(6))
	change("a stream that was opened again")
}

// A plugin that was lost before a restart of devmgrd is lost after it, since the same moment, until it lists its devices.
func TestLossOutlastsRestart(t *testing.T) {
	t.Parallel()
	first := start(t, grace(50*time.Millisecond))
	p := plugintest.Start(t, first.dir, gpu, plugintest.Devices(3)...)
	first.eventually("the plugin serves", first.servesNumber(3))
	p.Stop()
	first.eventually("it is lost", first.is(device.Lost))
	went := first.offer().Since
	first.stop()

	record, _ := first.memory.last()
	second := prepare(t, at(first.dir), known(record))
	for _, when := range []string{"before Run", "while it runs"} {
		if o := second.offer(); o.State != device.Lost || !o.Since.Equal(went) || len(o.Inventory.Devices) != 3 {
			t.Errorf("%s the offer is %+v; want it lost since %v", when, o, went)
		}
		if when == "before Run" {
			second.run()
			second.eventually("its socket is dialled", func() bool { return second.logs.count("waiting for plugin's new socket") > 0 })
		}
	}
	p.Serve()
	p.MustRegister()
	second.eventually("it serves again", second.servesNumber(3))
	second.stop()
	if record, _ = second.memory.last(); record.Lost || !record.Away.IsZero() {
		t.Errorf("a plugin that serves is remembered as %+v", record)
	}
}

// A plugin that was away before a restart of devmgrd is away since the same moment.
func TestAbsenceOutlastsRestart(t *testing.T) {
	t.Parallel()
	first := start(t)
	p := plugintest.Start(t, first.dir, gpu, plugintest.Devices(3)...)
	first.eventually("the plugin serves", first.servesNumber(3))
	p.Stop()
	first.eventually("it is stale", first.is(device.Stale))
	went := first.offer().Since
	first.stop()
	record, _ := first.memory.last()
	second := start(t, at(first.dir), known(record))
	if o := second.offer(); o.State != device.Stale || !o.Since.Equal(went) {
		t.Errorf("the offer is %+v; want it stale since %v", o, went)
	}
}

// A plugin that is connected and has not listed its devices yet is up, whatever it offered before.
func TestConnectedPluginIsUp(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	p := plugintest.New(t, dir, gpu, plugintest.Devices(3)...)
	listing := make(chan struct{})
	p.Before(plugintest.ListAndWatch, plugintest.HoldUntil(listing))
	p.Serve()
	f := start(t, at(dir), grace(50*time.Millisecond), known(device.PluginRecord{
		Resource: gpu, Endpoint: p.Endpoint, Reported: true, Devices: []device.Device{{ID: "a", Healthy: true}},
		Away: time.Now().Add(-time.Hour), Lost: true,
	}))
	f.eventually("the plugin is connected", func() bool { return f.offer().Connected })
	o := f.offer()
	if o.State != device.Lost || o.Status() != device.StatusConnected || time.Since(o.Since) > time.Minute {
		t.Errorf("offer = %+v, %s", o, o.Status())
	}
	if f.metric("devmgrd_plugin_up", gpu) != 1 {
		t.Error("devmgrd_plugin_up is not 1")
	}
	if _, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"a"}); err == nil || !strings.Contains(err.Error(), "is connected and has not listed its devices yet") {
		t.Errorf("Allocate: %v", err)
	}
	p.Kill()
	f.eventually("it is lost", func() bool { return f.offer().Status() == "lost" })
	if f.metric("devmgrd_plugin_up", gpu) != 0 {
		t.Error("devmgrd_plugin_up is not 0")
	}
	close(listing)
	p.Serve()
	f.eventually("it serves", f.servesNumber(3))
	if s := f.offer().Status(); s != "serving" || f.metric("devmgrd_plugin_up", gpu) != 1 {
		t.Errorf("it is %s", s)
	}
}

// An offer says why its plugin could not be followed, reached or registered.
func TestLastError(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
	f.eventually("the plugin serves", f.servesNumber(3))
	if o := f.offer(); o.LastError != "" || !o.LastErrorAt.IsZero() {
		t.Errorf("nothing has failed, and the last error is %q at %v", o.LastError, o.LastErrorAt)
	}
	says := func(part string) func() bool {
		return func() bool { return strings.Contains(f.offer().LastError, part) }
	}
	began := time.Now()
	p.EndStreams(errors.New("out of paper"))
	f.eventually("its stream has failed", says("out of paper"))
	if at := f.offer().LastErrorAt; at.Before(began) || at.After(time.Now()) {
		t.Errorf("it failed at %v", at)
	}
	f.eventually("it serves again", f.servesNumber(3))
	if !says("out of paper")() {
		t.Error("the error has gone with the plugin's return")
	}
	p.Kill()
	f.eventually("its socket refuses", says("connection refused"))
	p.Before(plugintest.GetOptions, plugintest.Fail("no driver"))
	p.Serve()
	f.eventually("its registration has failed", func() bool {
		if p.Register() == nil {
			t.Fatal("it was registered")
		}
		return says("registration refused: failed to get device plugin options")() // until the next dial fails, too
	})
}

func TestKnownPluginIsGone(t *testing.T) {
	t.Parallel()
	f := start(t, grace(100*time.Millisecond), known(device.PluginRecord{
		Resource: gpu, Endpoint: "gone.sock", Reported: true, Devices: []device.Device{{ID: "a", Healthy: true}},
	}))
	f.eventually("the offer is lost", f.is(device.Lost))
	if !f.offer().Reported || len(f.offer().Inventory.Devices) != 1 {
		t.Errorf("offer = %+v", f.offer())
	}
}

// A plugin of the state file that is not there is in the log from the start, and not only when it is lost.
func TestKnownPluginIsGone_IsLoggedAtTheStart(t *testing.T) {
	t.Parallel()
	const there, withdrawn, lost = "vendor.example/there", "vendor.example/withdrawn", "vendor.example/lost"
	dir := socketDir(t)
	p := plugintest.New(t, dir, there, plugintest.Devices(1)...)
	p.Serve()
	f := start(t, at(dir), grace(time.Hour), known(
		device.PluginRecord{Resource: gpu, Endpoint: "gone.sock", Reported: true},
		device.PluginRecord{Resource: there, Endpoint: p.Endpoint, Reported: true},
		device.PluginRecord{Resource: withdrawn, Reported: true},
		device.PluginRecord{Resource: lost, Endpoint: "lost.sock", Reported: true, Lost: true},
	))
	lines := func(resource string) (found []string) {
		for line := range strings.Lines(f.logs.String()) {
			if strings.Contains(line, "plugin from state file not there; waiting") && strings.Contains(line, "resource="+resource+" ") {
				found = append(found, line)
			}
		}
		return found
	}
	f.eventually("the present one serves", func() bool { return f.Offers()[there].State == device.Serving })
	f.eventually("the absent ones are logged", func() bool { return len(lines(gpu)) == 1 && len(lines(withdrawn)) == 1 })
	f.eventually("gone.sock is dialled again", func() bool { return f.logs.count("waiting for plugin's new socket") > 0 })
	if line := lines(gpu)[0]; !strings.Contains(line, "level=WARN") || !strings.Contains(line, "until=2") {
		t.Errorf("logged is %s", line)
	}
	if len(lines(there))+len(lines(lost)) > 0 || len(lines(gpu)) != 1 {
		t.Errorf("logged are %q, %q, %q", lines(there), lines(lost), lines(gpu))
	}
}

func TestListTooLong(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *registry.Config) { c.MaxDevices = 5 })
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(5)...)
	f.eventually("the plugin serves", f.servesNumber(5))
	p.Set(plugintest.Devices(6)...)
	f.eventually("the offer is stale", f.is(device.Stale))
	if n := len(f.offer().Inventory.Devices); n != 5 {
		t.Errorf("the last inventory was not kept: %d devices", n)
	}
	f.eventually("the log has the reason", func() bool { // the line comes after the state
		return strings.Contains(f.logs.String(), "lists 6 devices, and plugins.maxDevices allows 5")
	})
	p.Set(plugintest.Devices(4)...)
	f.eventually("it is heard again", f.servesNumber(4))
}

func TestMessageTooLarge(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *registry.Config) { c.MaxMessageBytes = 4 << 10 })
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(5)...)
	f.eventually("the plugin serves", f.servesNumber(5))
	p.Set(plugintest.Devices(5000)...)
	f.eventually("the offer is stale", f.is(device.Stale))
}

func TestListWithFaults(t *testing.T) {
	t.Parallel()
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
	if n := f.logs.count("device list has faults"); n != 3 {
		t.Errorf("%d warnings, want one for each kind of fault", n)
	}
	if f.logs.count("long_ids=1 invalid_numa=1") != 1 || len(f.logs.String()) > 20_000 {
		t.Error("the third warning does not count the faults, or quotes them at length")
	}
}

// A plugin that does not return is dialled until it is lost and the pauses have grown, and then not again. devmgrd finds it when
// its socket is recreated.
func TestLostPlugin_AtRest_IsNotDialled(t *testing.T) {
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
	f.eventually("both are lost", func() bool { return f.logs.count("plugin lost") == 2 })
	tries, since := -1, time.Time{}
	f.eventually("nothing is tried for ten pauses", func() bool {
		if n := f.logs.count("redialling plugin") + f.logs.count("waiting for plugin's new socket"); n != tries {
			tries, since = n, time.Now()
		}
		return time.Since(since) > 10*pause
	})
	left.Serve()
	f.eventually("it is found by its socket", f.servesNumber(2))
}

// An unchanged list is not signalled, not saved, and stays the same inventory.
func TestUnchangedList(t *testing.T) {
	t.Parallel()
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
	// A second resource comes after them. It changes something, so what they would have changed has to be seen by then.
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

	// Alone, it returns no signal at all: see TestUnchangedListGivesNoSignal, where nothing else happens.
}

func TestUnchangedListGivesNoSignal(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
		t.Error("it is forgotten, and not in the state file")
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
