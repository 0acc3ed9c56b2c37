package registry_test

import (
	"context"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
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

// A plugin that is dropped, since its registration socket or its pod is gone, is not kept in reserve, although its connection ends a moment later: the
// next one that ends meanwhile is not replaced by it.
func TestInstances_TwoAreDroppedAtOnce_ThirdServes(t *testing.T) {
	t.Parallel()
	f := start(t)
	var all []*plugintest.Plugin
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, f.instance(t, name))
		f.eventually("it serves", f.serves(name))
	}
	f.Drop(gpu, 2)
	if all := f.Registrations()[gpu]; all.Endpoint != "a.sock" || len(all.Reserve) > 0 {
		t.Errorf("registered are %+v", all)
	}
	f.eventually("the oldest serves", f.serves("a"))
	f.asks(t, all[0], "a")
	f.eventually("the connections of the others end", func() bool { return all[1].Connections()+all[2].Connections() == 0 })
	if f.offer().State != device.Serving {
		t.Errorf("%+v", f.offer())
	}
}

// Two plugins list the same hardware under IDs of their own, as HAMi's and NVIDIA's do. Pods may have got it under the IDs of the one that has ended, so
// the other one's devices are new when it serves again, and stay as new as that with its next lists. A device that both list is not.
func TestInstances_OtherIDs_AreNewWhenTheyServeAgain(t *testing.T) {
	t.Parallel()
	f := start(t)
	both := plugintest.Dev("both", plugintest.Healthy)
	old := f.instance(t, "old", func(p *plugintest.Plugin) { p.Set(plugintest.Dev("old", plugintest.Healthy), both) })
	f.eventually("the old one serves", f.serves("both", "old"))
	fresh := f.instance(t, "fresh", func(p *plugintest.Plugin) { p.Set(plugintest.Dev("fresh", plugintest.Healthy), both) })
	f.eventually("the new one serves", f.serves("both", "fresh"))
	dates := func() map[device.ID]int64 {
		all := map[device.ID]int64{}
		for _, d := range f.offer().Inventory.Devices {
			all[d.ID] = d.Added
		}
		return all
	}
	was, granted := dates(), time.Now().UnixNano()
	fresh.Kill()
	f.eventually("the old one serves again", f.serves("both", "old"))
	now := dates()
	if now["old"] <= granted || now["both"] != was["both"] {
		t.Errorf("before %v, at a grant %d, and then %v", was, granted, now)
	}
	old.SetHealth("old", plugintest.Unhealthy)
	f.eventually("it is heard", func() bool {
		return !slices.ContainsFunc(f.offer().Inventory.Devices, func(d device.Device) bool { return d.ID == "old" && d.Healthy })
	})
	if then := dates(); !maps.Equal(then, now) {
		t.Errorf("the next list has the dates %v, want %v", then, now)
	}

	fresh.Serve()
	fresh.MustRegister()
	f.eventually("the new one serves", f.serves("both", "fresh"))
	old.Set() // in reserve
	granted = time.Now().UnixNano()
	fresh.Kill()
	f.eventually("the old one serves, without devices", f.serves())
	old.Set(plugintest.Dev("old", plugintest.Healthy), both)
	f.eventually("it lists devices again", f.serves("both", "old"))
	if now := dates(); now["old"] <= granted {
		t.Errorf("at a grant %d, and then %v", granted, now)
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

// devmgrd restarts while two plugins are connected, which register once in their life. Both are dialled; the newest that lists its devices serves, and
// the other one when that ends.
func TestInstances_Restart_BothAreDialled(t *testing.T) {
	t.Parallel()
	silent := func(p *plugintest.Plugin) {
		p.Before(plugintest.ListAndWatch, plugintest.HoldUntil(make(chan struct{})))
	}
	for name, test := range map[string]struct {
		meanwhile func(t *testing.T, old, fresh *plugintest.Plugin)
		then      func(t *testing.T, f *harness, old, fresh *plugintest.Plugin)
	}{
		"the new one ends later": {
			then: func(t *testing.T, f *harness, old, fresh *plugintest.Plugin) {
				f.eventually("the new one serves", f.serves("fresh"))
				f.eventually("the old one is in reserve, with its list", func() bool { return f.ListedInReserve(gpu) == 1 })
				f.asks(t, fresh, "fresh")
				fresh.Kill()
				f.eventually("the old one serves", f.serves("old"))
				f.asks(t, old, "old")
				if n := f.logs.count("plugin disconnected"); n > 0 || f.logs.count("plugin serving") > 2 {
					t.Errorf("there was a gap")
				}
			},
		},
		"the new one ends meanwhile": {
			meanwhile: func(_ *testing.T, _, fresh *plugintest.Plugin) { fresh.Kill() },
			then: func(t *testing.T, f *harness, old, _ *plugintest.Plugin) {
				f.eventually("the old one serves", f.serves("old"))
				f.asks(t, old, "old")
				f.eventually("the new one is forgotten", func() bool {
					r, _ := f.memory.last()
					return r.Endpoint == "old.sock" && len(r.Reserve) == 0
				})
			},
		},
		"the old one ends meanwhile": {
			meanwhile: func(_ *testing.T, old, _ *plugintest.Plugin) { old.Kill() },
			then: func(t *testing.T, f *harness, _, fresh *plugintest.Plugin) {
				f.eventually("the new one serves", f.serves("fresh"))
				f.eventually("the old one is forgotten", func() bool {
					r, _ := f.memory.last()
					return r.Endpoint == "fresh.sock" && len(r.Reserve) == 0
				})
				f.asks(t, fresh, "fresh")
			},
		},
		"the new one lists no longer": {
			meanwhile: func(_ *testing.T, _, fresh *plugintest.Plugin) { silent(fresh) },
			then: func(t *testing.T, f *harness, old, _ *plugintest.Plugin) {
				f.eventually("the old one serves", f.serves("old"))
				f.asks(t, old, "old")
			},
		},
		"the old one registers again, before the new one answers": {
			meanwhile: func(t *testing.T, old, fresh *plugintest.Plugin) {
				answers := make(chan struct{})
				fresh.Before(plugintest.GetOptions, plugintest.HoldUntil(answers))
				old.Before(plugintest.ListAndWatch, func(context.Context) error {
					close(answers)
					return nil
				})
			},
			then: func(t *testing.T, f *harness, old, fresh *plugintest.Plugin) {
				old.MustRegister()
				f.eventually("the old one serves", f.serves("old"))
				f.eventually("the new one is in reserve", func() bool { return len(f.Registrations()[gpu].Reserve) == 1 && fresh.Streams() == 1 })
				old.Kill()
				f.eventually("the new one serves", f.serves("fresh"))
				f.asks(t, fresh, "fresh")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first := start(t)
			old := first.instance(t, "old")
			first.eventually("the old one serves", first.serves("old"))
			fresh := first.instance(t, "fresh")
			first.eventually("the new one serves", first.serves("fresh"))
			first.stop()
			record, _ := first.memory.last()
			if len(record.Reserve) != 1 || record.Reserve[0].Endpoint != "old.sock" || record.Reserve[0].Newer {
				t.Fatalf("recorded are %+v", record)
			}
			if test.meanwhile != nil {
				test.meanwhile(t, old, fresh)
			}
			test.then(t, start(t, at(first.dir), known(record)), old, fresh)
		})
	}
}

// Nothing of a forgotten resource is left: the registry ends.
func TestForget_PluginsInReserve_AreNotDialledAnyLonger(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	record := device.PluginRecord{Resource: gpu, Endpoint: "old.sock", Reserve: []device.ReservePlugin{{Endpoint: "fresh.sock"}}, Away: time.Now(), Lost: true}
	for _, name := range []string{record.Endpoint, record.Reserve[0].Endpoint} { // they accept, and never answer
		l, err := net.Listen("unix", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
	}
	f := start(t, at(dir), known(record))
	f.eventually("it is known", f.is(device.Lost))
	if err := f.Forget(gpu); err != nil || len(f.Offers()) > 0 {
		t.Fatalf("%v, %v", err, f.Offers())
	}
	f.stop()
}

// A plugin that has registered and not yet listed its devices when devmgrd restarts serves when it lists them.
func TestInstances_RestartBeforeTheSecondLists_SecondServesThen(t *testing.T) {
	t.Parallel()
	first := start(t)
	first.instance(t, "old")
	first.eventually("the old one serves", first.serves("old"))
	lists := make(chan struct{})
	first.instance(t, "fresh", func(p *plugintest.Plugin) { p.Before(plugintest.ListAndWatch, plugintest.HoldUntil(lists)) })
	first.stop()
	record, _ := first.memory.last()
	if record.Endpoint != "old.sock" || len(record.Reserve) != 1 || !record.Reserve[0].Newer {
		t.Fatalf("recorded are %+v", record)
	}
	second := start(t, at(first.dir), known(record))
	second.eventually("the old one serves", second.serves("old"))
	close(lists)
	second.eventually("the new one serves", second.serves("fresh"))
}

// The first plugin registers again, with the list that it had. Then a second one comes and ends.
func TestInstances_FirstRegistersAgain_ServesWhenTheSecondEnds(t *testing.T) {
	t.Parallel()
	f := start(t)
	old := f.instance(t, "old")
	f.eventually("the old one serves", f.serves("old"))
	old.MustRegister()
	f.eventually("it is asked again", func() bool { return old.Calls(plugintest.ListAndWatch) == 2 })
	f.asks(t, old, "old")
	fresh := f.instance(t, "fresh")
	f.eventually("the new one serves", f.serves("fresh"))
	fresh.Kill()
	f.eventually("the old one serves", f.serves("old"))
	f.asks(t, old, "old")
	if f.logs.count("plugin disconnected") > 0 {
		t.Error("there was a gap")
	}
}
