package allocator_test

import (
	"context"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// leaves has the API server show that the kubelet starts no further container of a pod.
func (r *harness) leaves(d device.PodDemand) {
	d.Leaving = true
	r.Bind(d)
	r.after(0)
}

// oneDeviceForTwo binds pod a, which has the only device, and pod b, which waits for it. It returns a.
func (r *harness) oneDeviceForTwo() device.PodDemand {
	r.plugins.stock(gpu, 1)
	r.RuntimeSynced(nil, nil)
	a := pod("a", app(gpu, 1))
	r.Bind(a)
	r.bind("b", app(gpu, 1))
	return a
}

// A pod of which no container runs, as one whose image cannot be pulled, is deleted, and its volume cannot be unmounted.
func TestLeaving_NoContainer_ReleasesItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		a := r.oneDeviceForTwo()
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.leaves(a)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.leaves(a) // its status changes
		r.expect("a", "main", "unknown")
		if p := r.PodByUID("a"); p.PodAllocation != nil {
			t.Errorf("it is back: %+v", p)
		}
		r.check()
	})
}

// A kubelet that restarts admits the pods again, and counts those that are being deleted.
func TestLeaving_ObjectStays_RequestsCount(t *testing.T) {
	t.Parallel()
	for _, byStatus := range []bool{false, true} { // or by the creation of a container
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 1)
			r.RuntimeSynced(nil, nil)
			a := pod("a", app(gpu, 1))
			a.Admitted = byStatus
			r.Replace([]device.PodDemand{a})
			r.after(0)
			if !byStatus {
				r.RuntimeStopped(r.created("1", "a", "main"))
			}
			r.leaves(a)
			r.expect("a", "main", "unknown")
			r.plugins.stock(gpu, 0)
			r.after(0)
			r.published(map[device.ResourceName]int{gpu: 1})
			r.check()
			r.Drop("a")
			r.after(0)
			r.published(map[device.ResourceName]int{gpu: 0})
			r.check()
		})
	}
}

// A pod that waits is deleted while its sidecar has a long grace period.
func TestLeaving_PodThatWaits_GetsNoDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("holder", app(gpu, 1))
		a := pod("a", app(gpu, 1))
		r.Bind(a)
		r.bind("b", app(gpu, 1))
		side := running("1", "a", "side")
		r.RuntimeCreating(side)
		r.RuntimeInjected(side)
		if err := r.RuntimeStarting(context.Background(), side); err != nil {
			t.Error(err)
		}
		r.leaves(a)
		r.Drop("holder")
		r.after(time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
	})
}

// A kubelet that has not heard of a pod's deletion creates its container after a reboot. The grant is from before.
func TestEnded_GrantOfAnotherBoot_IsNotUsed(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		r.boot = "next"
		r.restart()
		r.Drop("a")
		if st := r.RuntimeCreating(running("1", "a", "main")); st.State == device.Ready {
			t.Errorf("it is created with %+v", st.Assignment)
		}
		r.check()
	}, func(r *harness) { r.boot = "first" })
}

// Until its containers have ended a pod that is being deleted is as others are; also after a restart, when the runtime's list comes last.
func TestLeaving_ContainersRun_KeepsItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		a := r.oneDeviceForTwo()
		one := r.created("1", "a", "main")
		if err := r.RuntimeStarting(context.Background(), one); err != nil {
			t.Error(err)
		}
		r.leaves(a)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.restart()
		r.leaves(a)
		one.Stamp = device.Choice{gpu: {"d0"}}
		r.RuntimeSynced([]device.Running{one}, nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		if p := r.PodByUID("a"); !p.Active {
			t.Errorf("%+v", p)
		}
		r.RuntimeStopped(one)
		r.after(time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
	})
}

// The runtime lists no container of a pod that had one: it ended while devmgrd was away.
func TestLeaving_ContainersEndedMeanwhile_ReleasesItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		a := r.oneDeviceForTwo()
		r.created("1", "a", "main")
		r.RuntimeLost()
		r.leaves(a)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.RuntimeSynced(nil, nil)
		r.after(time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
	})
}

// The kubelet makes a new sandbox after all.
func TestLeaving_StaysAfterAll_WaitsAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		a := pod("a", app(gpu, 1))
		r.Bind(a)
		r.leaves(a)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.Bind(a)
		r.after(0)
		r.expect("a", "main", "waiting NotEnoughDevices")
		r.check()
	})
}

// The runtime is away, and the status of pods that have left changes. They get nothing, and an operator's word about a device counts still.
func TestLeaving_RuntimeIsAway_StaysLeft(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		waits, has := pod("waits", app(gpu, 1)), pod("has", app(gpu, 1))
		r.Bind(has)
		r.expect("has", "main", "ready vendor.com/gpu[d0]")
		r.plugins.haunt("has")
		r.leaves(has)
		r.leaves(waits)
		r.RuntimeLost()
		r.asked()
		stands := func() {
			t.Helper()
			r.after(time.Second)
			if got := r.asked(); len(got) > 0 {
				t.Errorf("asked %q", got)
			}
			if p := r.PodByUID("has"); p.PodAllocation == nil || p.Active || r.PodByUID("waits").PodAllocation != nil {
				t.Errorf("they are back: %+v", p)
			}
			r.check()
		}
		r.leaves(has)
		r.leaves(waits)
		stands()
		has.Leaving, waits.Leaving = true, true
		r.Replace([]device.PodDemand{has, waits})
		stands()
		r.Replace(nil)
		stands()
	})
}

// The deletion begins while the hook answers, and the runtime cannot start the container, which no event reports.
func TestLeaving_ContainerIsBeingCreated_ReleasesItsDevices(t *testing.T) {
	t.Parallel()
	for _, starts := range []bool{false, true} {
		run(t, func(r *harness) {
			a := r.oneDeviceForTwo()
			r.expect("a", "main", "ready vendor.com/gpu[d0]")
			c := running("1", "a", "main")
			r.RuntimeCreating(c)
			r.leaves(a)
			r.RuntimeInjected(c)
			if starts {
				if err := r.RuntimeStarting(context.Background(), c); err != nil {
					t.Error(err)
				}
				r.after(time.Minute)
				r.expect("b", "main", "waiting NotEnoughDevices")
				r.RuntimeStopped(c)
			}
			r.after(time.Minute)
			r.expect("b", "main", "ready vendor.com/gpu[d0]")
			r.check()
		})
	}
}

// release.command has failed for its devices, and devmgrd restarts while its object is still there: the operator decides, as with other pods.
func TestLeaving_CommandFailed_RestartDoesNotRepeatIt(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		a, b := pod("a", app(gpu, 1)), pod("b", app(gpu, 1))
		r.Bind(a)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.Bind(b)
		r.releaser.holds("a", device.Release{Why: "release.command failed", Failed: "exit code 3"})
		r.leaves(a)
		r.after(10 * time.Second)
		r.restart()
		r.plugins.stock(gpu, 1)
		r.releaser.holds("a", device.Release{}) // the next run would succeed
		a.Leaving = true
		r.Replace([]device.PodDemand{a, b})
		r.RuntimeSynced(nil, nil)
		r.after(10 * time.Second)
		r.expect("b", "main", "waiting DeviceBusy")
		if got := r.releaser.departed["a"].Failed; got != "exit code 3" {
			t.Errorf("the failure is reported as %q", got)
		}
		r.check()
	}, gated)
}

// A container has a device by the kubelet, which forgets the pod while the container runs on. Its plugin comes to devmgrd afterwards.
func TestLeaving_HasADeviceByTheKubelet_KeepsIt(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.kubelet(has("a", "main", "d0"))
		c := running("1", "a", "main")
		r.RuntimeSynced([]device.Running{c}, nil)
		a := pod("a", app(gpu, 1))
		r.Replace([]device.PodDemand{a})
		r.expect("a", "main", "waiting PluginMissing")
		r.leaves(a)
		r.kubelet(nil)
		r.leaves(a)
		r.plugins.stock(gpu, 1)
		r.bind("b", app(gpu, 1))
		r.after(time.Minute)
		r.expect("b", "main", "waiting DevicesUnknown")
		r.RuntimeStopped(c)
		r.after(time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.expect("a", "main", "unknown")
		r.check()
	}, func(r *harness) { r.mute = true })
}

// A container ends before the last one of a pod that is being deleted. Its devices are not prepared for another start, and a call that hangs does not keep
// them.
func TestLeaving_ContainerEnds_NothingIsPrepared(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		a := pod("a", app(gpu, 1))
		r.Bind(a)
		r.after(time.Second)
		main, side := r.created("1", "a", "main"), running("2", "a", "side")
		r.RuntimeCreating(side)
		r.RuntimeInjected(side)
		for _, c := range []device.Running{main, side} {
			if err := r.RuntimeStarting(context.Background(), c); err != nil {
				t.Error(err)
			}
		}
		r.bind("b", app(gpu, 1))
		r.leaves(a)
		before := len(r.plugins.prepared)
		r.plugins.prepares(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		r.RuntimeStopped(main)
		r.after(0)
		if n := len(r.plugins.prepared); n != before {
			t.Errorf("prepared %q", r.plugins.prepared[before:])
		}
		r.plugins.prepares(nil)
		r.RuntimeStopped(side)
		r.after(time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
	})
}
