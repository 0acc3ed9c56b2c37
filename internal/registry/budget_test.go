package registry_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// longList has n devices with IDs of 900 bytes.
func longList(n int) (all []*plugintest.Device) {
	for i := range n {
		all = append(all, plugintest.Dev(fmt.Sprintf("%04d-%s", i, strings.Repeat("x", 895)), plugintest.Healthy))
	}
	return all
}

// A list for which there is no room is refused, from any plugin, and the accepted lists stay. devmgrd ends the stream of the refused
// plugin, and calls it again seldom. Room that another resource frees can be used again.
func TestTotalBytes(t *testing.T) {
	t.Parallel()
	f := prepare(t, func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 }) // about 900 devices of these
	f.run()
	first := plugintest.Start(t, f.dir, gpu, longList(500)...)
	f.eventually("the first one serves", f.servesNumber(500))
	second := plugintest.Start(t, f.dir, "vendor.example/nic", longList(500)...)
	f.eventually("the second one is refused", func() bool {
		return strings.Contains(f.Offers()["vendor.example/nic"].LastError, "plugins.maxTotalBytes allows 1048576")
	})
	if o := f.Offers()["vendor.example/nic"]; len(o.Inventory.Devices) != 0 {
		t.Errorf("%d of its devices are offered", len(o.Inventory.Devices))
	}
	if !f.servesNumber(500)() {
		t.Error("the first one no longer serves")
	}
	if n := second.Calls(plugintest.ListAndWatch); n != 1 {
		t.Errorf("the second one was called %d times", n)
	}
	first.Set(longList(600)...) // it may grow for as long as there is room
	f.eventually("the first one has more", f.servesNumber(600))
	first.Set(append(longList(99), plugintest.Dev("new", plugintest.Healthy))...) // a new ID ends the memory of those that are gone
	f.eventually("the first one has less", f.servesNumber(100))
	second.MustRegister()
	f.eventually("the second one serves", func() bool { return len(f.Offers()["vendor.example/nic"].Inventory.Devices) == 500 })
	first.Set(longList(900)...)
	f.eventually("the first one has too many", func() bool { return strings.Contains(f.offer().LastError, "plugins.maxTotalBytes") })
	f.eventually("it keeps those that it lists still", f.servesNumber(99))
}

// forgetful forgets whatever is asked for.
type forgetful struct{ f *harness }

func (forgetful) Uses([]device.ResourceName) map[device.ResourceName]device.Use { return nil }
func (l forgetful) Displace(r device.ResourceName) error                        { return l.f.Forget(r) }

// A lost resource that is not in use makes room.
func TestTotalBytes_LostResourceMakesRoom(t *testing.T) {
	t.Parallel()
	var old []device.Device
	for i, d := range longList(800) {
		old = append(old, device.Device{ID: device.ID(d.ID), Healthy: i%2 == 0})
	}
	f := prepare(t, func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 },
		known(device.PluginRecord{Resource: "lost.example/x", Endpoint: "gone.sock", Reported: true, Devices: old, Away: time.Now().Add(-time.Hour), Lost: true}))
	f.with.Allocator = forgetful{f}
	f.run()
	plugintest.Start(t, f.dir, gpu, longList(500)...)
	f.eventually("it serves", f.servesNumber(500))
	if _, known := f.Offers()["lost.example/x"]; known {
		t.Error("the lost resource is still there")
	}
}

// One plugin pod registers as many resources as it can, with as long lists as it can. There is room for other pods' plugins and the host's.
func TestRoom_OnePodTakesAllItCan_OthersServe(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxResources, c.MaxTotalBytes = 8, 1<<20 },
		known(device.PluginRecord{Resource: "lost.example/x", Endpoint: "gone.sock", Reported: true, Away: time.Now().Add(-time.Hour), Lost: true}))
	f.with.Allocator = forgetful{f}
	f.run()
	greedy := f.directory("greedy").Sockets
	for i := range 4 {
		plugintest.Start(t, greedy, fmt.Sprintf("junk.example/%d", i), plugintest.Devices(1)...)
	}
	one := plugintest.New(t, greedy, "junk.example/more", plugintest.Devices(1)...)
	one.Serve()
	if err := one.Register(); err == nil || !strings.Contains(err.Error(), "the plugins of pod kube-system/greedy would have 5 of plugins.maxResources and leave 3 free") {
		t.Errorf("a fifth resource: %v", err)
	}
	if _, there := f.Offers()["lost.example/x"]; !there {
		t.Error("a lost resource was forgotten for it")
	}
	plugintest.Start(t, f.directory("second").Sockets, "long.example/x", longList(600)...)
	f.eventually("its list is refused", func() bool {
		return strings.Contains(f.Offers()["long.example/x"].LastError, "of plugins.maxTotalBytes and leave")
	})
	plugintest.Start(t, f.dir, gpu, longList(500)...)
	f.eventually("the host's plugin serves", f.servesNumber(500))
}

// A plugin pod comes back with other names for its resources. Those that are lost do not count in its quota.
func TestRoom_OwnResourcesAreLost_OthersAreRegistered(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), grace(50*time.Millisecond), func(c *registry.Config) { c.MaxResources = 8 })
	f.with.Allocator = forgetful{f}
	f.run()
	dir := f.directory("renamer").Sockets
	for i := range 4 {
		name := fmt.Sprintf("old.example/%d", i)
		p := plugintest.Start(t, dir, name, plugintest.Devices(1)...)
		f.eventually("it serves", func() bool { return f.Offers()[device.ResourceName(name)].State == device.Serving })
		p.Stop()
		f.eventually("it is lost", func() bool { return f.Offers()[device.ResourceName(name)].State == device.Lost })
	}
	for i := range 4 {
		plugintest.Start(t, dir, fmt.Sprintf("new.example/%d", i), plugintest.Devices(1)...)
	}
}

// Three pods in the common directory register as many resources as they can, one after the other: each leaves as much free as it has, and the
// host's plugins have the rest.
func TestRoom_PodsInTheCommonDirectory_LeaveRoom(t *testing.T) {
	t.Parallel()
	f := prepare(t, func(c *registry.Config) { c.MaxResources = 12 })
	f.run()
	for i, want := range []int{6, 3, 1} {
		if got := greedyPod(t, f.dir, fmt.Sprintf("0a1b2c3d-1111-2222-3333-44445555666%d", i)); got != want {
			t.Errorf("pod %d has %d resources, want %d", i, got, want)
		}
	}
	for i := range 2 {
		plugintest.Start(t, f.dir, fmt.Sprintf("host.example/%d", i), plugintest.Devices(1)...)
	}
}

// A pod registers one socket under one name after the other. The names that have lost their socket count in its quota.
func TestRoom_OneSocketUnderManyNames_LeavesRoom(t *testing.T) {
	t.Parallel()
	f := prepare(t, func(c *registry.Config) { c.MaxResources = 12 })
	f.run()
	if got := greedyPod(t, f.dir, "0a1b2c3d-1111-2222-3333-444455556670", "GREEDY_SOCKET=one.sock"); got != 6 {
		t.Errorf("the pod has %d resources, want 6", got)
	}
}

// A plugin's list stays accepted when others have taken what it leaves free: its devices change their health.
func TestRoom_OthersTakeTheirQuotas_AcceptedListStays(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
	f.run()
	honest := plugintest.Start(t, f.directory("honest").Sockets, gpu, longList(180)...)
	f.eventually("it serves", f.servesNumber(180))
	for i, n := range []int{300, 200, 100, 60, 30, 20} {
		name := device.ResourceName(fmt.Sprintf("junk.example/%d", i))
		plugintest.Start(t, f.directory(fmt.Sprintf("greedy%d", i)).Sockets, string(name), longList(n)...)
		f.eventually("it is answered", func() bool { return len(f.Offers()[name].Inventory.Devices) > 0 || f.Offers()[name].LastError != "" })
	}
	list := longList(180)
	list[3].Health = plugintest.Unhealthy
	honest.Set(list...)
	f.eventually("the change is seen", func() bool {
		return slices.ContainsFunc(f.offer().Inventory.Devices, func(d device.Device) bool { return !d.Healthy })
	})
}

// A second instance of a plugin lists the same devices, and the first one ends. The list counts on.
func TestRoom_SecondInstanceHasTheSameList_Counts(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
	f.run()
	greedy := f.directory("greedy").Sockets
	for i := range 8 {
		name := device.ResourceName(fmt.Sprintf("junk.example/%d", i))
		first := plugintest.Start(t, greedy, string(name), longList(150)...)
		f.eventually("it is answered", func() bool { return len(f.Offers()[name].Inventory.Devices) > 0 || f.Offers()[name].LastError != "" })
		if strings.Contains(f.Offers()[name].LastError, "plugins.maxTotalBytes") {
			return
		}
		second := plugintest.New(t, greedy, string(name), longList(150)...)
		second.Endpoint = fmt.Sprint("second", i)
		second.Serve()
		second.MustRegister()
		f.eventually("it serves, or is refused", func() bool {
			return f.Registrations()[name].Endpoint == second.Endpoint || second.EndedStreams() > 0
		})
		first.Stop()
		f.eventually("the first is gone", func() bool { return len(f.Registrations()[name].Reserve) == 0 })
	}
	t.Error("8 lists of 150 devices are accepted, of which half would be too many")
}

// used is an Allocator of which pods use junk.
type used struct {
	forgetful
	use device.Use
}

func (u used) Uses(names []device.ResourceName) map[device.ResourceName]device.Use {
	uses := map[device.ResourceName]device.Use{}
	for _, name := range names {
		if strings.HasPrefix(string(name), "junk") {
			uses[name] = u.use
		}
	}
	return uses
}

func (u used) Displace(name device.ResourceName) error {
	if u.Uses([]device.ResourceName{name})[name] == device.Kept {
		return &device.InUseError{Resource: name}
	}
	return u.forgetful.Displace(name)
}

// successors has pods of one service account register as many resources as they can, each of which is lost before the next comes, and returns how many each
// has had.
func (f *harness) successors(t *testing.T, pods, most int) (all []int) {
	t.Helper()
	for i := range pods {
		dir, n := f.directory(fmt.Sprint("greedy", i)).Sockets, 0
		for ; n < most; n++ {
			name := device.ResourceName(fmt.Sprintf("junk.example/%d-%d", i, n))
			p := plugintest.New(t, dir, string(name), plugintest.Devices(1)...)
			p.Serve()
			if p.Register() != nil {
				break
			}
			f.eventually("it serves", func() bool { return f.Offers()[name].State == device.Serving })
			p.Stop()
			f.eventually("it is lost", func() bool { return f.Offers()[name].State == device.Lost })
		}
		all = append(all, n)
	}
	return all
}

// A plugin pod is deleted and replaced again and again, and a tenant's pods request each resource that it leaves behind: others have as much room as ever.
func TestRoom_SuccessorsLeaveRequestedResources_OthersHaveRoom(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), grace(20*time.Millisecond), func(c *registry.Config) { c.MaxResources = 8 })
	f.with.Allocator = used{forgetful{f}, device.Requested}
	f.run()
	f.successors(t, 4, 4)
	honest := f.directory("honest").Sockets
	for i := range 4 {
		plugintest.Start(t, honest, fmt.Sprintf("vendor.example/%d", i), plugintest.Devices(1)...)
	}
}

// The same with resources that the tenant's pods have devices of: they are kept, and count in the quota of the service account.
func TestRoom_SuccessorsLeaveHeldResources_CountForTheirAccount(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), grace(20*time.Millisecond), func(c *registry.Config) { c.MaxResources = 16 })
	f.with.Allocator = used{forgetful{f}, device.Kept}
	f.with.Accounts = accounts{"greedy0": "junk", "greedy1": "junk", "greedy2": "junk", "greedy3": "junk", "honest": "vendor"}
	f.run()
	if got, want := f.successors(t, 4, 16), []int{7, 0, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("the pods have had %v resources, want %v", got, want)
	}
	honest := f.directory("honest").Sockets
	for i := range 4 {
		plugintest.Start(t, honest, fmt.Sprintf("vendor.example/%d", i), plugintest.Devices(1)...)
	}
}

// The same in the common directory, where the cgroup shows the pod.
func TestRoom_SuccessorsInTheCommonDirectory_CountForTheirAccount(t *testing.T) {
	t.Parallel()
	const uid = "0a1b2c3d-1111-2222-3333-44445555668"
	first, second := uid+"0", uid+"1"
	f := prepare(t, grace(20*time.Millisecond), func(c *registry.Config) { c.MaxResources = 16 })
	f.with.Allocator = kept{forgetful{f}}
	f.with.Accounts = accounts{first: "junk", second: "junk"}
	f.run()
	t.Run("first", func(t *testing.T) {
		if got := greedyPod(t, f.dir, first); got != 7 {
			t.Errorf("the first pod has %d resources, want 7", got)
		}
	})
	f.eventually("its resources are lost", func() bool {
		for _, o := range f.Offers() {
			if o.State != device.Lost {
				return false
			}
		}
		return true
	})
	if got := greedyPod(t, f.dir, second); got != 0 {
		t.Errorf("its successor has %d resources, want 0", got)
	}
}

// kept is an Allocator of which pods have a device of each resource.
type kept struct{ forgetful }

func (kept) Uses(names []device.ResourceName) map[device.ResourceName]device.Use {
	uses := map[device.ResourceName]device.Use{}
	for _, name := range names {
		uses[name] = device.Kept
	}
	return uses
}

// devmgrd restarts. The plugins of a pod in the common directory count in its quota before they are connected again.
func TestRoom_Restart_RememberedPluginsCountInTheirPodsQuota(t *testing.T) {
	t.Parallel()
	const uid = "0a1b2c3d-1111-2222-3333-444455556690"
	first := prepare(t, func(c *registry.Config) { c.MaxResources = 12 })
	first.run()
	t.Run("before", func(t *testing.T) {
		if got := greedyPod(t, first.dir, uid, "GREEDY_MOST=4"); got != 4 {
			t.Errorf("the pod has %d resources, want 4", got)
		}
		first.eventually("all are recorded", func() bool {
			for i := range 4 {
				if r, _ := first.memory.lastOf(device.ResourceName(fmt.Sprintf("%s.example/%d", uid, i))); r.Quota.Pod != "pod "+uid {
					return false
				}
			}
			return true
		})
	})
	first.stop()
	var records []device.PluginRecord
	for i := range 4 {
		r, _ := first.memory.lastOf(device.ResourceName(fmt.Sprintf("%s.example/%d", uid, i)))
		records = append(records, r)
	}
	f := prepare(t, func(c *registry.Config) { c.MaxResources = 12 }, known(records...))
	f.run()
	if got := greedyPod(t, f.dir, uid, "GREEDY_FIRST=4"); got != 2 {
		t.Errorf("the pod has %d more resources, want 2", got)
	}
}

// A roll-out with surge of a list for which there is room once. The new plugin serves, the former one rests in reserve, and serves when the new one ends.
func TestRoom_SurgeOfALongList_FormerRestsAndComesBack(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		pods [2]string
		long int // devices: more than a third of the limit, or more than half of it where there is no quota
	}{
		"of two pods": {[2]string{"old", "new"}, 440},
		"of one pod":  {[2]string{"one", "one"}, 440},
		"of the host": {long: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
			f.run()
			dirs := [2]string{f.dir, f.dir}
			for i, pod := range test.pods {
				if pod != "" {
					dirs[i] = f.directory(pod).Sockets
				}
			}
			former := plugintest.New(t, dirs[0], gpu, longList(test.long)...)
			former.Endpoint = "former.sock"
			former.Serve()
			former.MustRegister()
			f.eventually("it serves", f.servesNumber(test.long))
			for range 2 {
				fresh := plugintest.New(t, dirs[1], gpu, longList(test.long+10)...)
				fresh.Endpoint = "fresh.sock"
				fresh.Serve()
				fresh.MustRegister()
				f.eventually("the new one serves", f.servesNumber(test.long+10))
				f.eventually("the former one rests", func() bool {
					return former.Streams() == 0 && former.Connections() == 1 && len(f.Registrations()[gpu].Reserve) == 1
				})
				list := longList(test.long + 10)
				list[7].Health = plugintest.Unhealthy
				fresh.Set(list...)
				f.eventually("the new one is heard", func() bool { return f.servesNumber(test.long+10)() && !f.offer().Inventory.Devices[7].Healthy })
				fresh.Kill()
				f.eventually("the former one serves", f.servesNumber(test.long))
				f.asks(t, former, "0003-"+device.ID(strings.Repeat("x", 895)))
			}
			fresh := plugintest.New(t, dirs[1], gpu, longList(test.long+10)...)
			fresh.Endpoint = "third.sock"
			fresh.Serve()
			fresh.MustRegister()
			f.eventually("the third one serves", f.servesNumber(test.long+10))
			former.Kill()
			f.eventually("the former one is forgotten", func() bool { return len(f.Registrations()[gpu].Reserve) == 0 })
			if !f.servesNumber(test.long + 10)() {
				t.Error("the third one no longer serves")
			}
		})
	}
}

// Others have all the room that a plugin leaves free. A roll-out of its list has room all the same, and one device more is left out.
func TestRoom_OthersTakeTheirQuotas_SurgeServes(t *testing.T) {
	t.Parallel()
	for name, longer := range map[string]int{"the same list": 0, "a longer list": 10} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
			f.with.Accounts = accounts{"old": "plugin", "new": "plugin"}
			f.run()
			former := plugintest.New(t, f.directory("old").Sockets, gpu, longList(440)...)
			former.Serve()
			former.MustRegister()
			f.eventually("it serves", f.servesNumber(440))
			plugintest.Start(t, f.dir, "junk.example/0", longList(466)...)
			f.eventually("the other one serves", func() bool { return len(f.Offers()["junk.example/0"].Inventory.Devices) == 466 })
			fresh := plugintest.New(t, f.directory("new").Sockets, gpu, longList(440+longer)...)
			fresh.Serve()
			fresh.MustRegister()
			f.eventually("the new one serves", func() bool { return f.Registrations()[gpu].Pod.Name == "new" && f.servesNumber(440)() })
			former.Kill()
			f.eventually("the former one is forgotten", func() bool { return len(f.Registrations()[gpu].Reserve) == 0 })
			if !f.servesNumber(440)() {
				t.Error("the new one no longer serves")
			}
		})
	}
}

// However the newer plugin ends, the former one that rests serves then, and rests again when the newer one is back.
func TestRoom_NewerEnds_RestingOneServes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, f *harness, former, fresh *plugintest.Plugin){
		"its stream ends, and it is dialled again": func(t *testing.T, f *harness, former, fresh *plugintest.Plugin) {
			fresh.EndStreams(errors.New("over"))
			f.eventually("the newer one serves again", func() bool { return fresh.Calls(plugintest.ListAndWatch) > 1 && f.servesNumber(510)() })
			f.eventually("the former one rests", func() bool { return former.Streams() == 0 })
			fresh.Kill()
			f.eventually("the former one serves", f.servesNumber(500))
		},
		"its pod is gone": func(t *testing.T, f *harness, former, fresh *plugintest.Plugin) {
			f.PodGone("uid-new")
			f.eventually("the former one serves", f.servesNumber(500))
			f.asks(t, former, "0003-"+device.ID(strings.Repeat("x", 895)))
		},
		"it registers another resource": func(t *testing.T, f *harness, _, fresh *plugintest.Plugin) {
			if err := fresh.RegisterAs(&plugintest.RegisterRequest{Version: "v1beta1", Endpoint: fresh.Endpoint, ResourceName: "vendor.example/other"}); err != nil {
				t.Fatal(err)
			}
			f.eventually("the former one serves", f.servesNumber(500))
		},
		"a third one comes, and both end": func(t *testing.T, f *harness, _, fresh *plugintest.Plugin) {
			third := plugintest.New(t, f.directory("third").Sockets, gpu, longList(520)...)
			third.Serve()
			third.MustRegister()
			f.eventually("the third one serves", f.servesNumber(520))
			f.eventually("the second one rests", func() bool { return fresh.Streams() == 0 })
			third.Kill()
			f.eventually("the second one serves", f.servesNumber(510))
			fresh.Kill()
			f.eventually("the first one serves", f.servesNumber(500))
		},
		"the former one registers again": func(t *testing.T, f *harness, former, fresh *plugintest.Plugin) {
			former.MustRegister()
			f.eventually("it serves", f.servesNumber(500))
			f.eventually("the other one rests", func() bool { return fresh.Streams() == 0 })
			former.Kill()
			f.eventually("the other one serves", f.servesNumber(510))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1300 << 10 })
			f.run()
			former := plugintest.New(t, f.directory("old").Sockets, gpu, longList(500)...)
			former.Serve()
			former.MustRegister()
			f.eventually("it serves", f.servesNumber(500))
			fresh := plugintest.New(t, f.directory("new").Sockets, gpu, longList(510)...)
			fresh.Serve()
			fresh.MustRegister()
			f.eventually("the new one serves", f.servesNumber(510))
			f.eventually("the former one rests", func() bool { return former.Streams() == 0 })
			test(t, f, former, fresh)
		})
	}
}

// devmgrd restarts during such a roll-out.
func TestRoom_RestartDuringSurgeOfALongList_NewerServesAndFormerComesBack(t *testing.T) {
	t.Parallel()
	little := func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 }
	first := start(t, little)
	former := first.instance(t, "former", func(p *plugintest.Plugin) { p.Set(longList(500)...) })
	first.eventually("it serves", first.servesNumber(500))
	fresh := first.instance(t, "fresh", func(p *plugintest.Plugin) { p.Set(longList(510)...) })
	first.eventually("the new one serves", first.servesNumber(510))
	first.stop()
	record, _ := first.memory.last()
	f := start(t, at(first.dir), little, known(record))
	f.eventually("the new one serves", f.servesNumber(510))
	f.eventually("the former one rests", func() bool { return former.Streams() == 0 && len(f.Registrations()[gpu].Reserve) == 1 })
	fresh.Kill()
	f.eventually("the former one serves", f.servesNumber(500))
}

// A plugin takes a resource over with a shorter list, others take all the room that they can, and it ends. The former plugin has its room still.
func TestRoom_TakesOverWithAShorterListAndLeaves_FormerServes(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
	f.run()
	former := plugintest.New(t, f.directory("former").Sockets, gpu, longList(440)...)
	former.Serve()
	former.MustRegister()
	f.eventually("it serves", f.servesNumber(440))
	other := plugintest.New(t, f.directory("other").Sockets, gpu, longList(250)...)
	other.Serve()
	other.MustRegister()
	f.eventually("the other one serves", f.servesNumber(250))
	f.eventually("the former one rests", func() bool { return former.Streams() == 0 })
	for i, n := range []int{400, 300, 200, 100, 50, 25} {
		name := device.ResourceName(fmt.Sprintf("junk.example/%d", i))
		plugintest.Start(t, f.dir, string(name), longList(n)...)
		f.eventually("it is answered", func() bool { return len(f.Offers()[name].Inventory.Devices) > 0 || f.Offers()[name].LastError != "" })
	}
	other.Kill()
	f.eventually("the former one serves", f.servesNumber(440))
}

// A plugin lists one device more than there is room for, after others have taken what it leaves free. It keeps all that it had.
func TestRoom_OthersTakeTheirQuotas_OneDeviceMoreLosesNone(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
	f.SetGrowPause(time.Millisecond)
	f.run()
	honest := plugintest.Start(t, f.directory("honest").Sockets, gpu, longList(180)...)
	f.eventually("it serves", f.servesNumber(180))
	junk := plugintest.Start(t, f.dir, "junk.example/0", longList(720)...)
	f.eventually("the other one serves", func() bool { return len(f.Offers()["junk.example/0"].Inventory.Devices) == 720 })
	list := longList(200)
	list[3].Health = plugintest.Unhealthy
	honest.Set(list...)
	f.eventually("it is said", func() bool { return strings.Contains(f.offer().LastError, "20 new devices left out") })
	f.eventually("the change of health is seen", func() bool { return f.servesNumber(180)() && !f.offer().Inventory.Devices[3].Healthy })
	list[4].Health = plugintest.Unhealthy
	honest.Set(list...)
	f.eventually("the next one too", func() bool { return f.servesNumber(180)() && !f.offer().Inventory.Devices[4].Healthy })
	honest.Set()
	f.eventually("all are gone for a moment", f.servesNumber(0))
	honest.Set(list...)
	f.eventually("they are back", f.servesNumber(180))
	if n := honest.Calls(plugintest.ListAndWatch); n != 1 || honest.Streams() != 1 || f.logs.count("new devices left out") == 0 {
		t.Errorf("ListAndWatch was called %d times", n)
	}
	junk.Set(append(longList(9), plugintest.Dev("new", plugintest.Healthy))...)
	f.eventually("there is room", func() bool { return len(f.Offers()["junk.example/0"].Inventory.Devices) == 10 })
	f.eventually("all are taken with the next list", func() bool {
		honest.Set(list...)
		return f.servesNumber(200)()
	})
}

// A plugin renames all of its devices, and has more of them than there is room for.
func TestRoom_OthersTakeTheirQuotas_RenamedDevicesHaveTheRoomOfTheFormer(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
	f.run()
	honest := plugintest.Start(t, f.directory("honest").Sockets, gpu, longList(180)...)
	f.eventually("it serves", f.servesNumber(180))
	plugintest.Start(t, f.dir, "junk.example/0", longList(720)...)
	f.eventually("the other one serves", func() bool { return len(f.Offers()["junk.example/0"].Inventory.Devices) == 720 })
	list := longList(200)
	for _, d := range list {
		d.ID = "n" + d.ID[1:]
	}
	honest.Set(list...)
	f.eventually("the new names have the room", func() bool {
		return f.servesNumber(180)() && f.offer().Inventory.Devices[0].ID == device.ID(list[0].ID)
	})
	if !strings.Contains(f.offer().LastError, "20 new devices left out") {
		t.Errorf("the last error is %q", f.offer().LastError)
	}
}

// Devices were left out for want of room, and their plugin sends no further list. They are taken when there is room.
func TestRoom_OthersLeaveRoom_LeftOutDevicesAreTaken(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxTotalBytes = 1 << 20 })
	f.SetGrowPause(time.Millisecond)
	f.run()
	honest := plugintest.Start(t, f.directory("honest").Sockets, gpu, longList(10)...)
	f.eventually("it serves", f.servesNumber(10))
	junk := plugintest.Start(t, f.dir, "junk.example/0", longList(895)...)
	f.eventually("the other one serves", func() bool { return len(f.Offers()["junk.example/0"].Inventory.Devices) == 895 })
	honest.Set(longList(15)...)
	f.eventually("it is said", func() bool { return strings.Contains(f.offer().LastError, "5 new devices left out") })
	junk.Set(append(longList(800), plugintest.Dev("new", plugintest.Healthy))...) // a new ID ends the memory of those that are gone
	f.eventually("all are taken", f.servesNumber(15))
	if n := honest.Calls(plugintest.ListAndWatch); n != 1 || honest.Streams() != 1 {
		t.Errorf("ListAndWatch was called %d times", n)
	}
	list := longList(15)
	list[3].Health = plugintest.Unhealthy
	honest.Set(list...)
	f.eventually("a change of health is seen", func() bool { return f.servesNumber(15)() && !f.offer().Inventory.Devices[3].Healthy })
}

// Many pods take all that they can. There are places for the first resources of others.
func TestRoom_ManyPodsTakeAllTheyCan_FirstResourcesHavePlaces(t *testing.T) {
	t.Parallel()
	f := prepare(t, ownDirs(socketDir(t)), func(c *registry.Config) { c.MaxResources = 32 })
	f.run()
	var all []int
	for i := range 6 {
		dir, n := f.directory(fmt.Sprint("greedy", i)).Sockets, 0
		for ; n < 32; n++ {
			p := plugintest.New(t, dir, fmt.Sprintf("junk.example/%d-%d", i, n), plugintest.Devices(1)...)
			p.Serve()
			if p.Register() != nil {
				break
			}
		}
		all = append(all, n)
	}
	if want := []int{15, 7, 4, 2, 1, 1}; !slices.Equal(all, want) {
		t.Errorf("pods have %v resources, want %v", all, want)
	}
	plugintest.Start(t, f.directory("honest").Sockets, gpu, plugintest.Devices(1)...)
}

// greedyPod runs TestGreedyPod in the cgroup of a pod until the test ends, and returns how many resources it has registered.
func greedyPod(t *testing.T, dir, uid string, env ...string) (registered int) {
	t.Helper()
	registered, _ = startGreedyPod(t, dir, uid, env...)
	return registered
}

// startGreedyPod is greedyPod with a function that ends the pod's process.
func startGreedyPod(t *testing.T, dir, uid string, env ...string) (registered int, end func()) {
	t.Helper()
	cgroup := podCgroup(t, uid)
	pod := exec.Command(plugintest.Executable(t), "-test.run=^TestGreedyPod$", "-test.v")
	pod.Env = append(append(os.Environ(), env...), "GREEDY_DIR="+dir, "GREEDY_POD="+uid, "GREEDY_CGROUP="+cgroup, plugintest.QuickExit)
	in, err := pod.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := pod.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := pod.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		in.Close()
		if err := pod.Wait(); err != nil {
			t.Errorf("the pod's plugins: %v", err)
		}
	})
	t.Cleanup(end)
	for line := bufio.NewScanner(out); line.Scan(); {
		if _, err := fmt.Sscanf(line.Text(), "registered %d", &registered); err == nil {
			go io.Copy(io.Discard, out)
			return registered, end
		}
		t.Log(line.Text())
	}
	t.Fatal("the pod's plugins have ended")
	return 0, nil
}

// podCgroup makes the cgroup of a pod, as the kubelet does, in a hierarchy of version 1 or 2.
func podCgroup(t *testing.T, uid string) string {
	t.Helper()
	plugintest.NeedRoot(t)
	var failed error
	for _, top := range []string{"/sys/fs/cgroup/pids", "/sys/fs/cgroup"} {
		parent, err := os.MkdirTemp(top, "devmgrd-test-")
		if failed = err; failed == nil {
			path := filepath.Join(parent, "kubepods", "pod"+uid)
			if err := os.MkdirAll(path, 0o755); err != nil {
				t.Error(err)
			}
			t.Cleanup(func() {
				for p := path; p != top; p = filepath.Dir(p) {
					if err := os.Remove(p); err != nil {
						t.Error(err)
					}
				}
			})
			return path
		}
	}
	t.Fatalf("making a cgroup, which needs a cgroup file system that can be written: %v", failed)
	return ""
}

// TestGreedyPod is the process of a plugin pod, which registers resources until one is refused.
func TestGreedyPod(t *testing.T) {
	if os.Getenv("GREEDY_DIR") == "" {
		t.Skip("only as a process of another test")
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("GREEDY_CGROUP"), "cgroup.procs"), []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	first, _ := strconv.Atoi(os.Getenv("GREEDY_FIRST"))
	most, _ := strconv.Atoi(os.Getenv("GREEDY_MOST"))
	for n := first; ; n++ {
		if most > 0 && n == most {
			fmt.Printf("registered %d\n", n-first)
			break
		}
		p := plugintest.New(t, os.Getenv("GREEDY_DIR"), fmt.Sprintf("%s.example/%d", os.Getenv("GREEDY_POD"), n), plugintest.Devices(1)...)
		if name := os.Getenv("GREEDY_SOCKET"); name != "" {
			p.Endpoint = strings.ReplaceAll(name, "*", strconv.Itoa(n))
		}
		p.Serve()
		if os.Getenv("GREEDY_QUIET") != "" {
			continue
		}
		if err := p.Register(); err != nil {
			fmt.Printf("%v\nregistered %d\n", err, n-first)
			break
		}
	}
	io.Copy(io.Discard, os.Stdin)
}
