package allocator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// said is a container that says it has devices of gpu.
func said(id, pod, container string, ids ...device.ID) device.Running {
	c := running(id, pod, container)
	c.Stamp = device.Choice{gpu: ids}
	return c
}

// unheardOf returns IDs that no plugin lists.
func unheardOf(n int) []device.ID {
	ids := make([]device.ID, n)
	for i := range ids {
		ids[i] = device.ID(fmt.Sprint("x", i))
	}
	return ids
}

// The container is of a pod that the API server has. Its demand is known before the runtime's list, or after it.
func TestSaid_NotRequested_DoesNotCount(t *testing.T) {
	t.Parallel()
	digest := running("1", "evil", "main")
	digest.Digests = map[device.ResourceName]string{gpu: "x"}
	madeUp := said("1", "evil", "main", "0")
	for i := range 100 {
		madeUp.Stamp[device.ResourceName(fmt.Sprintf("a.b/%d", i))] = []device.ID{"0"}
	}
	madeUp.Stamp["no name \x1b]0;x\x07 at all"] = []device.ID{"0"}
	nics := said("1", "evil", "main", "d0")
	nics.Stamp[nic] = []device.ID{"d0"}
	for name, test := range map[string]struct {
		says     device.Running
		requests []device.Demand
	}{
		"a digest":                                {digest, nil},
		"a digest, of another resource":           {digest, []device.Demand{app(nic, 1)}},
		"one ID that no plugin lists":             {said("1", "evil", "main", "nothing"), nil},
		"many of them":                            {said("1", "evil", "main", unheardOf(200)...), nil},
		"too many of them":                        {said("1", "evil", "main", unheardOf(100_000)...), nil},
		"resources without a plugin, and no name": {madeUp, nil},
		"free devices":                            {said("1", "evil", "main", "d0", "d1"), nil},
		"those that another container requests":   {said("1", "evil", "side", "d0"), []device.Demand{app(gpu, 1)}},
		"more than requested":                     {said("1", "evil", "main", "nothing", "d0"), []device.Demand{app(gpu, 1)}},
		"other ones than requested":               {nics, []device.Demand{app(nic, 1)}},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %v", name, late), func(t *testing.T) {
				run(t, func(r *harness) {
					r.plugins.stock(gpu, 2)
					r.plugins.stock(nic, 2)
					r.after(time.Second)
					before := r.ResourceCount()
					all := []device.PodDemand{pod("evil", test.requests...)}
					if !late {
						r.Replace(all)
					}
					for range 2 {
						r.RuntimeSynced([]device.Running{test.says}, nil)
						r.after(time.Second)
					}
					r.Replace(all)
					r.after(time.Minute)
					r.published(map[device.ResourceName]int{gpu: 2, nic: 2})
					if n := r.metric("devmgrd_devices", string(gpu), "quarantined"); n > 0 {
						t.Errorf("%v devices are set aside", n)
					}
					if n := r.ResourceCount(); n != before {
						t.Errorf("%d resources are kept, and %d before", n, before)
					}
					r.check()
					r.bind("honest", app(gpu, 1))
					if got := r.stands("honest", "main"); got[:5] != "ready" {
						t.Errorf("another pod stands %s", got)
					}
					r.RuntimeStopped(test.says)
					r.after(time.Minute)
				})
			})
		}
	}
}

func TestSaid_DevicesOfAnotherPod_DoNotPassOn(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.bind("honest", app(gpu, 1))
		r.expect("honest", "main", "ready vendor.com/gpu[d0]")
		has, evil := said("2", "honest", "main", "d0"), said("1", "evil", "plugin", "d0")
		r.RuntimeSynced([]device.Running{has, evil}, nil)
		r.Replace([]device.PodDemand{pod("evil"), pod("honest", app(gpu, 1))})
		r.after(time.Second)
		r.RuntimeStopped(has)
		r.Drop("honest")
		r.after(time.Minute)
		r.bind("next", app(gpu, 1))
		r.expect("next", "main", "ready vendor.com/gpu[d0]")
	})
}

// Of two containers of one name, as after a restart, one has what the pod requests.
func TestSaid_TwoContainersOfOneName_TheRightOneCounts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.RuntimeSynced([]device.Running{said("1", "a", "main", "d1", "d2"), said("2", "a", "main", "d2")}, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d2]")
		r.bind("b", app(gpu, 2))
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1]")
	}, func(r *harness) { r.mute = true })
}

// While the API server is away, all that containers say counts, within limits: changes of a plugin's list cost little, and no number rises.
func TestSaid_RequestIsNotKnown_CountsWithinLimits(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]struct {
		quarantined float64
		honest      string
	}{
		1000:    {1000, "waiting NotEnoughDevices"},
		100_000: {0, "waiting DevicesUnknown"},
	} {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 8)
			evil := said("1", "evil", "main", unheardOf(n)...)
			for i := range 1000 {
				evil.Stamp[device.ResourceName(fmt.Sprintf("a.b/%d", i))] = []device.ID{"0"}
			}
			r.RuntimeSynced([]device.Running{evil}, nil)
			r.bind("honest", app(gpu, 1))
			r.expect("honest", "main", want.honest)
			if n := r.metric("devmgrd_devices", string(gpu), "quarantined"); n != want.quarantined {
				t.Errorf("%v devices are set aside, want %v", n, want.quarantined)
			}
			if n := r.Resources().Capacity()[gpu]; n != 8 {
				t.Errorf("the Node is to show %d devices of 8", n)
			}
			if n := r.ResourceCount(); n > 100 {
				t.Errorf("%d resources are kept", n)
			}
			r.RuntimeStopped(evil)
			r.after(time.Minute)
			r.expect("honest", "main", "ready vendor.com/gpu[d0]")
		}, func(r *harness) { r.mute = true })
	}
}

// These are all ways in which a container has devices of devmgrd or a kubelet. The state file is lost: what they say counts, before their pod is
// known and after it. No other pod has the devices, and the pod gets the same again.
func TestSaid_EachWayToHaveDevices_Counts(t *testing.T) {
	t.Parallel()
	first := wants("main", device.Init, gpu, 1)
	first.Container.Name = "first"
	unread := func(why device.Reason) device.Demand {
		return device.Demand{Container: device.Container{Name: "main"}, Kind: device.App, Blocked: why, Mistake: "not known"}
	}
	chosen := app(gpu, 1)
	chosen.Select = map[device.ResourceName]device.Selection{gpu: {Use: []string{"d0"}}}
	both := wants("main", device.App, gpu, 1)
	both.Wants[nic] = 1
	local := pod("a", app(gpu, 1))
	local.Local = true
	implicit := app(gpu, 1)
	implicit.Fixed = map[device.ResourceName][]device.ID{gpu: {"d1"}}
	for name, test := range map[string]struct {
		has     map[string][]device.ID // of gpu, by the containers that run
		more    device.Choice          // that the container main has
		unread  []device.Demand        // before the demand is known
		demands []device.Demand
		local   []device.PodDemand
		listed  bool // the pod is bound by Replace
		want    map[string]string
	}{
		"an app container": {has: map[string][]device.ID{"main": {"d1"}}, demands: []device.Demand{app(gpu, 1)}, want: map[string]string{"main": "d1"}},
		"several":          {has: map[string][]device.ID{"main": {"d1"}, "side": {"d0"}}, demands: []device.Demand{app(gpu, 1), wants("side", device.App, gpu, 1)}, want: map[string]string{"main": "d1", "side": "d0"}},
		"an app container, another without devices": {has: map[string][]device.ID{"main": {"d1"}, "plain": nil}, demands: []device.Demand{app(gpu, 1)}, want: map[string]string{"main": "d1"}},
		"two resources":                            {has: map[string][]device.ID{"main": {"d1"}}, more: device.Choice{nic: {"d0"}}, demands: []device.Demand{both}, want: map[string]string{"main": "d1] vendor.com/nic[d0"}},
		"an init container":                        {has: map[string][]device.ID{"first": {"d1"}}, demands: []device.Demand{first, app(gpu, 1)}, want: map[string]string{"first": "d1"}},
		"an app container, from an init container": {has: map[string][]device.ID{"main": {"d1"}}, demands: []device.Demand{first, app(gpu, 1)}, want: map[string]string{"main": "d1"}},
		"a sidecar":                                {has: map[string][]device.ID{"side": {"d0"}, "main": {"d1"}}, demands: []device.Demand{wants("side", device.Sidecar, gpu, 1), app(gpu, 1)}, want: map[string]string{"side": "d0", "main": "d1"}},
		"a static pod, by its annotation":          {has: map[string][]device.ID{"main": {"d1"}}, local: []device.PodDemand{local}, want: map[string]string{"main": "d1"}},
		"a pod in the API server's list":           {has: map[string][]device.ID{"main": {"d1"}}, listed: true, demands: []device.Demand{app(gpu, 1)}, want: map[string]string{"main": "d1"}},
		"a pod whose selection has changed since":  {has: map[string][]device.ID{"main": {"d1"}}, demands: []device.Demand{chosen}, want: map[string]string{"main": "d1"}},
		"a claim":                    {has: map[string][]device.ID{"main": {"d0", "d1"}}, unread: []device.Demand{unread(device.ClaimUnknown)}, demands: []device.Demand{sharing("main", "d0", "d1")}, want: map[string]string{"main": "d0 d1"}},
		"a claim that is being read": {has: map[string][]device.ID{"main": {"d1"}}, unread: []device.Demand{unread(device.Allocating)}, demands: []device.Demand{sharing("main", "d1")}, want: map[string]string{"main": "d1"}},
		"a claim of devices that are not listed yet": {has: map[string][]device.ID{"main": {"d1"}}, unread: []device.Demand{unread(device.DeviceGone)}, demands: []device.Demand{sharing("main", "d1")}, want: map[string]string{"main": "d1"}},
		"a claim that the scheduler has made":        {has: map[string][]device.ID{"main": {"d1"}}, demands: []device.Demand{implicit}, want: map[string]string{"main": "d1"}},
		"a claim of two containers":                  {has: map[string][]device.ID{"main": {"d1"}, "side": {"d1"}}, demands: []device.Demand{sharing("main", "d1"), sharing("side", "d1")}, want: map[string]string{"main": "d1", "side": "d1"}},
		"a part of a claim, by a CDI file":           {has: map[string][]device.ID{"main": {"d1"}}, demands: []device.Demand{sharing("main", "d0", "d1")}, want: map[string]string{"main": "d0 d1"}},
		"a pod that exceeds a limit since":           {has: map[string][]device.ID{"main": {"d1"}}, unread: []device.Demand{unread(device.PodTooLarge)}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 2)
				r.plugins.stock(nic, 1)
				var all []device.Running
				for container, ids := range test.has {
					c := running("of-"+container, "a", container)
					if ids != nil {
						c.Stamp = device.Choice{gpu: ids}
					}
					if container == "main" {
						for resource, ids := range test.more {
							c.Stamp[resource] = ids
						}
					}
					all = append(all, c)
				}
				r.RuntimeSynced(all, test.local)
				other := func() {
					t.Helper()
					r.Bind(pod("z", app(gpu, 2)))
					r.expect("z", "main", "waiting NotEnoughDevices")
					r.Drop("z")
					r.check()
				}
				if test.local == nil {
					other()
				}
				if test.unread != nil {
					r.bind("a", slices.Clone(test.unread)...)
					other()
					r.RuntimeSynced(all, nil)
					other()
				}
				switch {
				case test.listed:
					r.Replace([]device.PodDemand{pod("a", test.demands...)})
				case test.demands != nil:
					r.bind("a", test.demands...)
				}
				for range 2 {
					for container, ids := range test.want {
						r.expect("a", container, "ready vendor.com/gpu["+ids+"]")
					}
					other()
					r.RuntimeSynced(all, test.local)
				}
			}, func(r *harness) { r.mute = true })
		})
	}
}

// Its containers may run for as long as the kubelet takes to end them.
func TestSaid_PodDeletedByForce_KeepsItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced([]device.Running{said("1", "old", "main", "d0")}, nil)
		r.Replace(nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(running("1", "old", "main"))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}

// A long list of a container that requests it counts, once that is known.
func TestSaid_LongListThatIsRequested_Counts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		const n = 20_000
		r.plugins.stock(gpu, n+1)
		var ids []device.ID
		for i := range n {
			ids = append(ids, device.ID(fmt.Sprintf("d%d", i)))
		}
		c := said("1", "a", "main", ids...)
		r.RuntimeSynced([]device.Running{c}, nil)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting DevicesUnknown")
		r.bind("a", app(gpu, n))
		r.expect("b", "main", "ready vendor.com/gpu[d20000]")
		if st := r.Readiness(c.Container); st.State != device.Ready {
			t.Errorf("the container stands %v: %v", st.State, st.Wait)
		}
		r.RuntimeStopped(c)
		r.Drop("a") // the comparison of the invariants looks at each device of a pod for each of them
		r.after(time.Minute)
	}, func(r *harness) { r.mute = true })
}

// The state file is lost. The request of a pod beyond a limit names no devices: its next container does not start without them.
func TestSaid_PodExceedsALimit_NextContainerWaits(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced([]device.Running{said("1", "a", "main", "d1")}, nil)
		r.bind("a", device.Demand{Container: device.Container{Name: "main"}, Kind: device.App, Blocked: device.PodTooLarge, Mistake: "too many uses"})
		if st := r.RuntimeCreating(running("2", "a", "main")); st.State != device.Waiting || st.Wait.Reason != device.PodTooLarge {
			t.Errorf("the next container is answered %+v", st)
		}
		r.bind("a", app(gpu, 1)) // other pods have ended
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
	}, func(r *harness) { r.mute = true })
}

// A container of which nothing counts runs without its devices.
func TestSaid_NothingCounts_ContainerIsReported(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 2)
			if !late {
				r.bind("a", app(gpu, 1))
			}
			r.RuntimeSynced([]device.Running{said("1", "a", "main", "d0", "d1")}, nil)
			r.bind("a", app(gpu, 1))
			if !slices.Contains(r.plugins.told, "a/main is bare") {
				t.Errorf("late %v: told %q", late, r.plugins.told)
			}
		})
	}
}

// It has the devices that the state file assigns to it, and says that it has another.
func TestSaid_SomeIsAsGranted_ContainerIsNotReported(t *testing.T) {
	t.Parallel()
	for name, grant := range map[string]func(*device.Running){
		"by a list": func(c *device.Running) { c.Stamp[gpu] = []device.ID{"d0"} },
		"by a digest": func(c *device.Running) {
			c.Digests = map[device.ResourceName]string{gpu: device.Digest([]device.ID{"d0"})}
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 1)
				r.plugins.stock(nic, 1)
				r.RuntimeSynced(nil, nil)
				r.bind("a", app(gpu, 1))
				r.expect("a", "main", "ready vendor.com/gpu[d0]")
				c := running("1", "a", "main")
				c.Stamp = device.Choice{nic: {"d0"}}
				grant(&c)
				r.restart()
				for range 2 { // before the pod's request is known, and after it
					r.RuntimeSynced([]device.Running{c}, nil)
					r.bind("a", app(gpu, 1))
				}
				if slices.Contains(r.plugins.told, "a/main is bare") {
					t.Errorf("told %q", r.plugins.told)
				}
				r.bind("b", wants("main", device.App, nic, 1))
				r.expect("b", "main", "ready vendor.com/nic[d0]")
			})
		})
	}
}

// A pod has nic by devmgrd and gpu by the kubelet, with which gpu's plugin stayed until now. The record in the state file names nic only.
func TestSaid_ResourceIsNoLongerIgnored_DeviceStaysThePods(t *testing.T) {
	t.Parallel()
	both := wants("side", device.App, nic, 1)
	both.Wants[gpu] = 1
	for name, now := range map[string][]device.Demand{
		"in another container": {wants("side", device.App, nic, 1), app(gpu, 1)},
		"in one container":     {both},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, late %v", name, late), func(t *testing.T) {
				run(t, func(r *harness) {
					r.plugins.stock(nic, 1)
					r.RuntimeSynced(nil, nil)
					r.bind("a", wants("side", device.App, nic, 1))
					r.expect("a", "side", "ready vendor.com/nic[d0]")
					has, side := said("1", "a", now[len(now)-1].Container.Name, "d0"), running("2", "a", "side")
					side.Stamp = device.Choice{nic: {"d0"}}
					if has.Container.Name == "side" {
						has.Stamp[nic], side = side.Stamp[nic], running("2", "a", "plain")
					}
					r.halt()
					r.plugins.stock(gpu, 1)
					r.start()
					all := []device.PodDemand{pod("a", now...), pod("b", app(gpu, 1))}
					if !late {
						r.Replace(all)
					}
					for range 2 {
						r.RuntimeSynced([]device.Running{has, side}, nil)
						r.Bind(all[1])
						r.expect("b", "main", "waiting NotEnoughDevices")
						r.Replace(all)
						r.expect("b", "main", "waiting NotEnoughDevices")
						r.expect("a", "side", "ready vendor.com/nic[d0]")
						r.check()
					}
					r.published(map[device.ResourceName]int{gpu: 1, nic: 1})
					r.RuntimeStopped(has)
					r.RuntimeStopped(side)
					r.expect("b", "main", "ready vendor.com/gpu[d0]")
				}, func(r *harness) { r.mute = true })
			})
		}
	}
}

// A pod of the state file has its plugin asked before the API server has listed the pod.
func TestSaid_ResourceIsNoLongerIgnoredDuringAnAttempt_DeviceStaysThePods(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.bind("a", wants("side", device.App, nic, 1))
		r.expect("a", "side", "waiting PluginMissing")
		r.after(2 * time.Second) // a is on disk
		r.halt()
		r.plugins.stock(gpu, 1)
		r.plugins.stock(nic, 1)
		gate := make(chan struct{})
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { <-gate; return nil })
		r.start()
		r.RuntimeSynced([]device.Running{said("1", "a", "main", "d0")}, nil)
		r.after(time.Second)
		r.Replace([]device.PodDemand{pod("a", wants("side", device.App, nic, 1), app(gpu, 1)), pod("b", app(gpu, 1))})
		r.expect("b", "main", "waiting NotEnoughDevices")
		close(gate)
		r.expect("b", "main", "waiting NotEnoughDevices")
	}, func(r *harness) { r.mute = true })
}
