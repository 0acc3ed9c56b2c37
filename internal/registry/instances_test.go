package registry_test

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/plugintest"
)

// instance starts another plugin of the resource, on a socket of its own.
func (f *harness) instance(t *testing.T, name string, prepare ...func(*plugintest.Plugin)) *plugintest.Plugin {
	t.Helper()
	p := plugintest.New(t, f.dir, gpu, plugintest.Dev(name, plugintest.Healthy))
	p.Endpoint = name + ".sock"
	for _, do := range prepare {
		do(p)
	}
	p.Serve()
	p.MustRegister()
	return p
}

// asks makes a call to the plugin that serves, and expects it to reach this one.
func (f *harness) asks(t *testing.T, p *plugintest.Plugin, id device.ID) {
	t.Helper()
	before := p.Calls(plugintest.Allocate)
	if _, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{id}); err != nil || p.Calls(plugintest.Allocate) != before+1 {
		t.Errorf("Allocate did not reach %s: %v", p.Endpoint, err)
	}
}

// Two plugins of one resource, as in a roll-out with surge. Whichever ends, the other one serves at once, with its own list.
func TestInstances_OneEnds_TheOtherServesAtOnce(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *harness, *plugintest.Plugin, *plugintest.Plugin){
		"the new one is rolled back": func(t *testing.T, f *harness, old, fresh *plugintest.Plugin) {
			old.Set(plugintest.Dev("old", plugintest.Healthy), plugintest.Dev("older", plugintest.Healthy))
			fresh.Kill()
			f.eventually("the old one serves", f.serves("old", "older"))
			f.asks(t, old, "old")
			fresh.Serve()
			fresh.MustRegister()
			f.eventually("the new one is back", f.serves("fresh"))
			f.asks(t, fresh, "fresh")
		},
		"the old one ends": func(t *testing.T, f *harness, old, fresh *plugintest.Plugin) {
			old.Stop()
			f.eventually("it is forgotten", func() bool { return len(f.Registrations()[gpu].Reserve) == 0 })
			f.asks(t, fresh, "fresh")
			fresh.SetHealth("fresh", plugintest.Unhealthy)
			f.eventually("the new one is heard", func() bool { return !f.offer().Inventory.Devices[0].Healthy })
		},
		"a third one comes and ends": func(t *testing.T, f *harness, _, fresh *plugintest.Plugin) {
			third := f.instance(t, "third")
			f.eventually("it serves", f.serves("third"))
			third.Stop()
			f.eventually("the second one serves", f.serves("fresh"))
			f.asks(t, fresh, "fresh")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := start(t)
			old := f.instance(t, "old")
			f.eventually("the old one serves", f.serves("old"))
			fresh := f.instance(t, "fresh")
			f.eventually("the new one serves", f.serves("fresh"))
			if all := f.Registrations()[gpu]; all.Endpoint != "fresh.sock" || len(all.Reserve) != 1 || all.Reserve[0].Endpoint != "old.sock" {
				t.Errorf("registered are %+v", all)
			}
			f.asks(t, fresh, "fresh")
			test(t, f, old, fresh)
			if n := f.logs.count("plugin disconnected"); n > 0 || f.offer().State != device.Serving {
				t.Errorf("there was a gap: %d times disconnected, %+v", n, f.offer())
			}
		})
	}
}

// The second plugin never lists its devices: the first one goes on serving, also when the second has ended.
func TestInstances_SecondNeverLists_FirstServes(t *testing.T) {
	t.Parallel()
	f := start(t, grace(time.Millisecond))
	old := f.instance(t, "old")
	f.eventually("the old one serves", f.serves("old"))
	silent := f.instance(t, "silent", func(p *plugintest.Plugin) {
		p.Before(plugintest.ListAndWatch, plugintest.HoldUntil(make(chan struct{})))
	})
	f.eventually("it is asked", func() bool { return silent.Calls(plugintest.ListAndWatch) == 1 })
	f.asks(t, old, "old")
	silent.Kill()
	f.eventually("it is forgotten", func() bool { return len(f.Registrations()[gpu].Reserve) == 0 })
	f.asks(t, old, "old")
	if f.logs.count("plugin disconnected") > 0 {
		t.Error("there was a gap")
	}
}

// The first plugin ends before the second has listed its devices.
func TestInstances_FirstEndsBeforeTheSecondLists_SecondServesThen(t *testing.T) {
	t.Parallel()
	f := start(t)
	old := f.instance(t, "old")
	f.eventually("the old one serves", f.serves("old"))
	lists := make(chan struct{})
	fresh := f.instance(t, "fresh", func(p *plugintest.Plugin) { p.Before(plugintest.ListAndWatch, plugintest.HoldUntil(lists)) })
	old.Stop()
	f.eventually("the offer is stale", f.is(device.Stale))
	close(lists)
	f.eventually("the new one serves", f.serves("fresh"))
	f.asks(t, fresh, "fresh")
}

// A plugin that registers again and again leaves no connections behind.
func TestInstances_ManySockets_OldestMakesRoom(t *testing.T) {
	t.Parallel()
	f := start(t)
	var all []*plugintest.Plugin
	for i := range 8 {
		name := string(rune('a' + i))
		all = append(all, f.instance(t, name))
		f.eventually("it serves", f.serves(name))
	}
	f.eventually("four are connected", func() bool {
		n := 0
		for _, p := range all {
			n += p.Connections()
		}
		return n == 4
	})
}
