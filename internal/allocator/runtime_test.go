package allocator_test

import (
	"context"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestDevicesStayWhileAContainerLives(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.RuntimeStarted(running("1", "a", "main"))
		r.Drop("a")
		r.expect("b", "main", "waiting NotEnoughDevices") // the runtime has not told all yet
		r.RuntimeSynced([]device.Running{running("1", "a", "main")}, nil)
		r.expect("b", "main", "waiting NotEnoughDevices") // force-deleted, and still running
		r.RuntimeLost()
		r.RuntimeStopped(running("1", "a", "main"))
		r.expect("b", "main", "waiting NotEnoughDevices") // nobody knows what runs now
		r.RuntimeSynced(nil, nil)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// From the answer to the runtime on, a container counts as living: its pod may go at any moment.
func TestAClaimKeepsTheDevices(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		c := running("1", "a", "main")
		if st := r.Claim(c); st.Stand != device.Ready {
			t.Fatalf("a stands %v", st)
		}
		r.Drop("a")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.Unclaim(c)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.Claim(running("2", "c", "main")) // unknown: nothing is claimed
		r.bind("c", app(gpu, 1))
		r.Drop("b")
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
	})
}

// The books are gone, and containers run with devices: their stamps keep others away until they have ended.
func TestStampsKeepDevicesThatTheBooksDoNotKnow(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 2)
		old := running("1", "old", "main")
		old.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
		r.RuntimeSynced([]device.Running{old}, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.check()
		r.RuntimeSynced([]device.Running{old, running("2", "a", "main")}, nil)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(old)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// A pod that runs on after the books were lost is given the same devices again.
func TestStampsAreTakenUpAgain(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 4)
		demands := func() []device.Demand {
			return []device.Demand{wants("init", device.Init, gpu, 2), wants("x", device.App, gpu, 2), wants("y", device.App, gpu, 1)}
		}
		var all []device.Running
		for name, ids := range map[string][]device.ID{"x": {"d2", "d1"}, "y": {"d3"}} {
			c := running("of-"+name, "a", name)
			c.Stamp = map[device.ResourceName][]device.ID{gpu: ids}
			all = append(all, c)
		}
		r.RuntimeSynced(all, nil)
		r.bind("a", demands()...)
		r.expect("a", "x", "ready vendor.com/gpu[d1 d2]")
		r.expect("a", "y", "ready vendor.com/gpu[d3]")
		r.check()
		r.RuntimeSynced(all, nil) // the books know them now
		r.check()
		r.Drop("a")
		for _, c := range all {
			r.RuntimeStopped(c)
		}
		r.check()
		r.bind("b", app(gpu, 4))
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1 d2 d3]")
	}, func(r *rig) { r.lost = true })
}

// What a pod runs with by its stamp is held while its plugin is asked for it again, and set aside again if that fails.
func TestStampsThatCannotBeTakenUp(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		var gate chan struct{}
		r.shop.answers(func(context.Context, device.Pod, device.ResourceName) error { <-gate; return errPlugin })
		old := running("1", "a", "main")
		old.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
		for _, ends := range []bool{false, true} { // the container runs on meanwhile, and then it does not
			gate = make(chan struct{})
			r.RuntimeSynced([]device.Running{old}, nil)
			r.bind("a", app(gpu, 1))
			r.after(10 * time.Second) // after the pause of the last failure
			r.bind("b", app(gpu, 1))
			r.expect("a", "main", "busy Allocating")
			if ends {
				r.RuntimeStopped(old)
			} else {
				r.RuntimeSynced([]device.Running{old}, nil)
			}
			r.expect("b", "main", "waiting NotEnoughDevices")
			if !ends {
				close(gate)
				r.expect("a", "main", "waiting PluginError")
				r.expect("b", "main", "waiting NotEnoughDevices")
				r.check()
			}
		}
		r.shop.answers(nil)
		close(gate)
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *rig) { r.lost = true })
}

// Whoever begins with empty books asks the runtime first.
func TestWithLostBooksNothingIsGivenOutBeforeTheRuntimeHasTold(t *testing.T) {
	lost := func(r *rig) { r.lost = true }
	run(t, func(r *rig) {
		r.shop.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "busy Allocating")
		old := running("1", "old", "main")
		old.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
		r.RuntimeSynced([]device.Running{old}, nil)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.RuntimeLost()
		r.bind("b")
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting NotEnoughDevices")
	}, lost)
}

// Local pods are the runtime's to tell of: no list of the API server's touches them. When their sandbox has ended they
// keep their devices for a moment, since they may get another.
func TestLocalPods(t *testing.T) {
	local := func(name string) device.PodDemand {
		d := pod(name, app(gpu, 1))
		d.Local, d.Created = true, time.Time{}
		return d
	}
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.Bind(local("a"))
		r.Bind(local("a"))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.Replace(nil)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")

		r.Drop("a")
		r.bind("b", app(gpu, 1))
		r.after(9 * time.Second)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.Bind(local("a")) // in another sandbox
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.restart()
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.RuntimeSynced(nil, []device.PodDemand{local("a")})
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")

		r.Drop("a")
		r.after(11 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.Drop("b")
		r.Bind(local("c"))
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
		r.restart()
		r.RuntimeSynced(nil, nil) // it went while we were away
		r.bind("d", app(gpu, 1))
		r.after(time.Minute)
		r.expect("d", "main", "ready vendor.com/gpu[d0]")
	})
}
