package allocator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// listedIdle returns the only container of pod a as a synchronization lists it between its creation and its start.
func listedIdle(r *harness) device.Running {
	r.plugins.stock(gpu, 1)
	r.bind("a", app(gpu, 1))
	r.bind("b", app(gpu, 1))
	idle := running("1", "a", "main")
	idle.Sandbox, idle.Idle, idle.Stamp = "sandbox", true, device.Choice{gpu: {"d0"}}
	r.RuntimeSynced([]device.Running{idle}, nil)
	synctest.Wait()
	return idle
}

// injectedIdle returns the only container of pod a, which the runtime has created, and cannot start: containerd reports nothing of that until it removes
// the container.
func injectedIdle(r *harness) device.Running {
	r.t.Helper()
	r.plugins.stock(gpu, 1)
	r.RuntimeSynced(nil, nil)
	r.bind("a", app(gpu, 1))
	r.bind("b", app(gpu, 1))
	return r.created("1", "a", "main")
}

func TestContainer_CannotStart_EndedPodReleasesItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		c := injectedIdle(r)
		r.after(time.Hour)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.Drop("a")
		r.after(29 * time.Second)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.after(2 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		if err := r.RuntimeStarting(context.Background(), c); err == nil {
			t.Error("a container starts with devices that have been released")
		}
		r.RuntimeStopped(c) // it is removed
		r.check()
	})
}

// The host is asked once about all of them, at each look: it walks over all its cgroups.
func TestContainer_ManyCannotStart_HostIsAskedOnce(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		injectedIdle(r)
		for _, id := range []string{"2", "3", "4"} {
			r.created(id, "a", "main")
		}
		r.Drop("a")
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		if slices.ContainsFunc(r.plugins.looked, func(n int) bool { return n != 4 }) || len(r.plugins.looked) == 0 {
			t.Errorf("the host was asked about %v containers at a time, want 4", r.plugins.looked)
		}
	})
}

// The pod has ended while the hook was answering.
func TestContainer_CreatedAfterItsPodsEnd_KeepsItsDevicesForAMoment(t *testing.T) {
	t.Parallel()
	for _, starts := range []bool{false, true} {
		run(t, func(r *harness) {
			first := injectedIdle(r)
			r.Drop("a")
			r.after(20 * time.Second)
			r.RuntimeStopped(first)
			second := running("2", "a", "main")
			r.RuntimeInjected(second)
			r.after(29 * time.Second)
			r.expect("b", "main", "waiting NotEnoughDevices")
			if starts {
				if err := r.RuntimeStarting(context.Background(), second); err != nil {
					t.Error(err)
				}
				r.after(time.Hour)
				r.expect("b", "main", "waiting NotEnoughDevices")
				r.RuntimeStopped(second)
			}
			r.after(2 * time.Second)
			r.expect("b", "main", "ready vendor.com/gpu[d0]")
		})
	}
}

// Another NRI plugin has hidden the start.
func TestContainer_StartIsHidden_KeepsItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		c := injectedIdle(r)
		r.plugins.setAlive(c.ID, true)
		r.Drop("a")
		r.after(time.Hour)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.plugins.setAlive(c.ID, false)
		r.RuntimeStopped(c)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// The runtime has an instance that could not be started, and the one that ran after it ends after its pod.
func TestContainer_CannotStart_LastRunningOneEnds_ReleasesDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		injectedIdle(r)
		r.after(time.Minute)
		second := running("2", "a", "main")
		start(r, second)
		r.Drop("a")
		r.after(time.Minute)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// The plugin refuses the next start of a container that could not be started: the pod gets another device, though the runtime still has the container.
func TestContainer_CannotStart_PodMayGetOtherDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		c := running("1", "a", "main")
		r.RuntimeCreating(c)
		r.RuntimeInjected(c)
		r.plugins.prepares(func(context.Context) error { return errPlugin })
		r.expect("a", "main", "ready vendor.com/gpu[d0]") // it may be starting
		if st := r.RuntimeCreating(running("2", "a", "main")); st.State != device.Pending {
			t.Errorf("the next instance stands %+v", st)
		}
		r.after(time.Second)
		r.wouldRefuse("a", "", "") // it waits, so it is not served
		r.after(31 * time.Second)
		r.RuntimeCreating(running("3", "a", "main"))
		r.after(500 * time.Millisecond)
		r.plugins.prepares(nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		if err := r.RuntimeStarting(context.Background(), c); err == nil {
			t.Error("a container starts with devices that have been released")
		}
	})
}

// A container is created while devmgrd connects, starts right afterwards, and outlives the forced deletion of its pod.
func TestIdleContainer_StartsLater_KeepsItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		idle := listedIdle(r)
		if err := r.RuntimeStarting(context.Background(), idle); err != nil {
			t.Fatal(err)
		}
		r.Drop("a")
		r.after(time.Hour)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(idle)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

func TestIdleContainer_StartIsNotReported_KeepsItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		idle := listedIdle(r)
		r.plugins.alive = map[string]bool{idle.ID: true}
		r.Drop("a")
		r.after(time.Hour)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.plugins.alive = nil
		r.after(time.Hour)
		r.expect("b", "main", "waiting NotEnoughDevices") // it may start processes again; its end is the runtime's to report
		r.RuntimeStopped(idle)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

func TestIdleContainer_DevicesReleased_MustNotStart(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		idle := listedIdle(r)
		r.Drop("a")
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		for range 2 {
			if err := r.RuntimeStarting(context.Background(), idle); err == nil {
				t.Error("a container starts with devices that have been released")
			}
			r.RuntimeSynced([]device.Running{idle}, nil) // another synchronization
		}
		r.check()
	})
}

// The kubelet starts the container while devmgrd is not connected.
func TestIdleContainer_DevicesReleased_StartedUnseen_UsesThemAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		idle := listedIdle(r)
		r.Drop("a")
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.RuntimeLost()
		started := idle
		started.Idle = false
		r.RuntimeSynced([]device.Running{started}, nil)
		synctest.Wait()
		if n := r.metric("devmgrd_devices_disputed", string(gpu)); n != 1 {
			t.Errorf("%v devices are in dispute", n)
		}
		r.Drop("b")
		r.bind("c", app(gpu, 1))
		r.after(time.Hour)
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(started)
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
		r.check()
	})
}

// devmgrd restarts after the release, and knows the container only by its stamp.
func TestIdleContainer_DevicesOfAnotherPod_MustNotStart(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		idle := listedIdle(r)
		r.Drop("a")
		r.after(time.Minute)
		r.restart()
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
		r.RuntimeSynced([]device.Running{idle}, nil)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		if err := r.RuntimeStarting(context.Background(), idle); err == nil || !strings.Contains(err.Error(), "another pod") {
			t.Error("the start of a container with a device of another pod:", err)
		}
		if n := r.metric("devmgrd_devices_disputed", string(gpu)); n != 0 {
			t.Errorf("%v devices of containers that cannot start are in dispute", n)
		}
	})
}

// A container that was never started is left over from a power cut, and its pod was released. After a restart devmgrd knows
// the container only by its stamp: it holds the devices until the host has proven that nothing runs, and does not wait for
// the kubelet to remove it.
func TestIdleContainer_OfAPodThatWasReleased_HoldsNothing(t *testing.T) {
	t.Parallel()
	for name, alive := range map[string]bool{"idle": false, "started unseen": true} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 1)
				idle := running("1", "gone", "main")
				idle.Sandbox, idle.Idle, idle.Stamp = "sandbox", true, device.Choice{gpu: {"d0"}}
				r.plugins.alive = map[string]bool{"1": alive}
				r.RuntimeSynced([]device.Running{idle}, nil)
				r.bind("b", app(gpu, 1))
				r.expect("b", "main", "waiting NotEnoughDevices") // the state file may be lost
				r.after(time.Minute)
				if alive {
					r.expect("b", "main", "waiting NotEnoughDevices")
					r.RuntimeStopped(idle)
				} else if err := r.RuntimeStarting(context.Background(), idle); err == nil {
					t.Error("a container starts with devices that have been released")
				}
				r.expect("b", "main", "ready vendor.com/gpu[d0]")
				r.RuntimeSynced(nil, nil)
				r.check()
			})
		})
	}
}

// The state file was lost. Once the container is barred, its pod may return or be planned again, and the resource may be forgotten.
func TestIdleContainer_BarredAfterStateFileLost_HoldsNothing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*testing.T, *harness){
		"the resource is forgotten": func(t *testing.T, r *harness) {
			r.Drop("a")
			r.after(time.Minute)
			r.plugins.lose(gpu)
			r.after(time.Second)
			if _, err := r.Forget(gpu); err != nil {
				t.Fatal(err)
			}
		},
		"the pod returns": func(_ *testing.T, r *harness) {
			r.Drop("a")
			r.after(time.Minute)
			r.bind("b", app(gpu, 1))
			r.bind("a", app(gpu, 1))
			r.expect("b", "main", "ready vendor.com/gpu[d0]")
			r.expect("a", "main", "ready vendor.com/gpu[d1]")
		},
		"the pod is planned again": func(_ *testing.T, r *harness) {
			next := running("2", "a", "main")
			r.RuntimeCreating(next)
			r.RuntimeAborted(next)
			r.Refused(next.Container, device.Wait{Reason: device.HostDeviceMissing, Message: "/dev/d0 is gone"}, true)
			r.after(time.Minute)
			r.expect("a", "main", "ready vendor.com/gpu[d1]")
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 2)
				idle := running("1", "a", "main")
				idle.Sandbox, idle.Idle, idle.Stamp = "sandbox", true, device.Choice{gpu: {"d0"}}
				r.RuntimeSynced([]device.Running{idle}, nil)
				r.bind("a", app(gpu, 1))
				r.expect("a", "main", "ready vendor.com/gpu[d0]")
				test(t, r)
				r.RuntimeStopped(idle)
				r.check()
			}, func(r *harness) { r.mute = true })
		})
	}
}

func TestStart_OfAKnownContainer_Passes(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.RuntimeCreating(running("1", "a", "main"))
		for _, id := range []string{"1", "unknown"} {
			if err := r.RuntimeStarting(context.Background(), running(id, "a", "main")); err != nil {
				t.Errorf("container %s: %v", id, err)
			}
		}
	})
}

// A refused start ends a pod that is never restarted. It waits for the allocator only if the container may have to be refused.
func TestStart_AllocatorIsBusy_OnlyContainersInQuestionWait(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		idle := running("1", "b", "main")
		idle.Idle, idle.Stamp = true, device.Choice{gpu: {"d1"}}
		r.RuntimeSynced([]device.Running{idle}, nil)
		c := r.created("2", "a", "main")
		starts := func(c device.Running) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return r.RuntimeStarting(ctx, c)
		}
		release, began := r.Hold(), time.Now()
		for _, c := range []device.Running{c, running("3", "other", "main")} {
			if err := starts(c); err != nil || time.Since(began) > 0 {
				t.Errorf("container %s: %v after %v", c.ID, err, time.Since(began))
			}
		}
		if err := starts(idle); err == nil {
			t.Error("a container that may have another pod's devices starts")
		}
		release()
		if err := starts(idle); err != nil {
			t.Error(err)
		}
		for _, ended := range []device.Running{c, idle} { // both count as started
			r.Drop(ended.Container.Pod)
			r.bind("c"+ended.ID, app(gpu, 1))
			r.after(time.Hour)
			r.expect("c"+ended.ID, "main", "waiting NotEnoughDevices")
			r.RuntimeStopped(ended)
			r.expect("c"+ended.ID, "main", "ready "+map[string]string{"1": "vendor.com/gpu[d1]", "2": "vendor.com/gpu[d0]"}[ended.ID])
		}
		r.check()
	}, func(r *harness) { r.mute = true })
}

// The runtime does not report the start of a restored container, which so counts as started from its creation.
func TestContainer_Restored_CountsAsStarted(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.cdi = true
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		create := func(id string) device.Running {
			c := running(id, "a", "main")
			c.Restored = true
			r.RuntimeCreating(c)
			r.RuntimeInjected(c)
			return c
		}
		r.RuntimeStopped(create("1"))
		if w, _ := r.Snapshot().Pod("ns", "a"); w.State != device.Ready {
			t.Errorf("its end counts as that of a container that could not be created: %+v", w.Wait)
		}
		c := create("2")
		r.Drop("a")
		r.after(time.Hour)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(c)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// CRI-O creates a container while it lists its containers: neither the list nor an earlier report has it.
func TestStart_OfAnUnlistedContainer_UsesItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1), wants("side", device.App, gpu, 1))
		c, lacks := running("1", "a", "main"), device.Wait{Reason: device.HostDeviceMissing, Message: "/dev/d1 is gone"}
		c.Stamp = device.Choice{gpu: {"d0"}}
		if err := r.RuntimeStarting(context.Background(), c); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			r.Refused(device.Container{Pod: "a", Name: "side"}, lacks, true)
			r.after(time.Minute)
			r.expect("a", "main", "ready vendor.com/gpu[d0]")
			r.expect("a", "side", "ready vendor.com/gpu[d1]")
			r.RuntimeStopped(c) // the pod has run all the same
		}
		if n := r.metric("devmgrd_started_without_devices_total"); n != 0 {
			t.Errorf("%v containers are said to have started without devices", n)
		}
		bare := running("2", "a", "side")
		if err := r.RuntimeStarting(context.Background(), bare); err != nil {
			t.Fatal(err)
		}
		if n := r.metric("devmgrd_started_without_devices_total"); n != 1 {
			t.Errorf("%v containers are said to have started without devices, want 1", n)
		}
	})
}

// Its pod has left, and its device is another pod's: the runtime starts it all the same.
func TestStart_OfAnUnlistedContainer_DevicesOfAnotherPod_AreInDispute(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		c := running("1", "a", "main")
		c.Stamp = device.Choice{gpu: {"d0"}}
		if err := r.RuntimeStarting(context.Background(), c); err != nil {
			t.Error(err)
		}
		if n := r.metric("devmgrd_devices_disputed", string(gpu)); n != 1 {
			t.Errorf("%v devices are in dispute, want 1", n)
		}
		r.RuntimeStopped(c)
		r.check()
	})
}

// Unlisted containers of unknown pods come and go. How many devices may be recorded of them is not used up.
func TestStart_OfUnlistedContainers_ManyInTurn_NothingIsPaused(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 128)
		r.RuntimeSynced(nil, nil)
		var ids []device.ID
		for i := range 127 {
			ids = append(ids, device.ID(fmt.Sprintf("d%d", i)))
		}
		for range 130 {
			c := running("1", "unknown", "main")
			c.Stamp = device.Choice{gpu: ids}
			if err := r.RuntimeStarting(context.Background(), c); err != nil {
				t.Fatal(err)
			}
			r.RuntimeStopped(c)
		}
		c := running("2", "unknown", "main")
		c.Stamp = device.Choice{gpu: ids}
		if err := r.RuntimeStarting(context.Background(), c); err != nil {
			t.Fatal(err)
		}
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d127]")
		r.check()
	}, func(r *harness) { r.mute = true })
}

// What is said of a barred container beyond the bound has not been counted, and is not taken back.
func TestStart_OfAnUnlistedContainer_AfterABarredOne_BoundStays(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		var ids []device.ID
		for i := range 17 << 10 {
			ids = append(ids, device.ID(fmt.Sprintf("x%d", i)))
		}
		idle := said("1", "unknown", "main", ids...)
		idle.Idle = true
		r.RuntimeSynced([]device.Running{idle}, nil)
		r.after(time.Minute)
		r.RuntimeStopped(idle)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		if err := r.RuntimeStarting(context.Background(), said("2", "other", "main", ids...)); err != nil {
			t.Fatal(err)
		}
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting DevicesUnknown")
		r.check()
	}, func(r *harness) { r.mute = true })
}

// A container starts while devmgrd is not connected, and ends. Then its pod has run, as if the start had been reported.
func TestStart_Unseen_PodKeepsItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.RuntimeLost()
		c := running("1", "a", "main")
		c.Stamp = device.Choice{gpu: {"d0"}}
		r.RuntimeSynced([]device.Running{c}, nil)
		synctest.Wait()
		r.RuntimeStopped(c)
		r.Refused(c.Container, device.Wait{Reason: device.HostDeviceMissing, Message: "/dev/d0 is gone"}, true)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

// A container was created, and is gone when devmgrd is connected again: it may have run in between.
func TestStart_UnseenLikeItsEnd_PodKeepsItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		c := running("1", "a", "main")
		r.RuntimeCreating(c)
		r.RuntimeInjected(c)
		r.RuntimeLost()
		r.RuntimeSynced(nil, nil)
		r.Refused(c.Container, device.Wait{Reason: device.HostDeviceMissing, Message: "/dev/d0 is gone"}, true)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

// Another NRI plugin fails in StopContainer and RemoveContainer, which hides both from devmgrd.
func TestSandboxRemoved_EndsItsContainers(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		for id, sandbox := range map[string]string{"1": "old", "2": "new"} {
			c := running(id, "a", "main")
			c.Sandbox = sandbox
			r.RuntimeCreating(c)
		}
		r.Drop("a")
		r.bind("b", app(gpu, 1))
		r.RuntimeRemoved("a", "old")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeRemoved("a", "new")
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// A barred container with a digest of unknown devices pauses their resource no longer, whether its pod is known or not.
func TestIdleContainer_BarredWithUnknownDevices_ResourceIsNotPaused(t *testing.T) {
	t.Parallel()
	t.Run("pod unknown", func(t *testing.T) {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 1)
			c := running("1", "a", "main")
			c.Idle, c.Digests = true, map[device.ResourceName]string{gpu: "abc"}
			r.RuntimeSynced([]device.Running{c}, nil)
			r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
			r.expect("b", "main", "waiting DevicesUnknown")
			r.after(2 * time.Minute)
			r.expect("b", "main", "ready vendor.com/gpu[d0]")
			if err := r.RuntimeStarting(context.Background(), c); err == nil {
				t.Error("the barred container starts")
			}
		}, func(r *harness) { r.mute = true })
	})
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.restart()
		c := running("1", "a", "main")
		c.Idle, c.Digests = true, map[device.ResourceName]string{gpu: "abc"}
		r.RuntimeSynced([]device.Running{c}, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting DevicesUnknown")
		r.Drop("a")
		r.after(2 * time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	}, func(r *harness) { r.mute = true })
}
