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

// given returns which pods have been given up, and clears the reports.
func (r *harness) given() (told []string) {
	synctest.Wait()
	r.plugins.mu.Lock()
	defer r.plugins.mu.Unlock()
	for _, s := range r.plugins.told {
		if strings.Contains(s, "given up") {
			told = append(told, s)
		}
	}
	r.plugins.told = nil
	return told
}

func (r *harness) expectGiven(want ...string) {
	r.t.Helper()
	if got := r.given(); !slices.Equal(got, want) {
		r.t.Errorf("given up %q, want %q", got, want)
	}
}

// bindMovable binds a pod that a controller replaces.
func (r *harness) bindMovable(name string, demands ...device.Demand) {
	d := pod(name, demands...)
	d.Movable = true
	synctest.Wait()
	r.Bind(d)
	synctest.Wait()
}

// patient sets limits: half an hour without the plugin, an hour without enough devices, and 10 min for each pod that requests nic.
func patient(r *harness) {
	r.giveUp = func(why device.Reason, resource device.ResourceName) time.Duration {
		if resource == nic {
			return 10 * time.Minute
		}
		return map[device.Reason]time.Duration{device.PluginMissing: 30 * time.Minute, device.NotEnoughDevices: time.Hour}[why]
	}
}

func TestGiveUp_PluginStaysAway_PodIsGivenUp(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1))
		r.bind("b", app(gpu, 1)) // no controller replaces it
		r.after(29 * time.Minute)
		r.expectGiven()
		if at := r.PodByUID("a").GivesUp; time.Until(at) != time.Minute {
			t.Errorf("readers see that a is given up in %v", time.Until(at))
		}
		if at := r.PodByUID("b").GivesUp; !at.IsZero() {
			t.Errorf("readers see that b is given up at %v", at)
		}
		r.after(time.Minute)
		r.expectGiven("a given up after 30m0s: PluginMissing")
		if !r.plugins.still() {
			t.Error("it waits no longer")
		}
		r.after(10 * time.Minute) // the eviction may have been dropped
		r.expectGiven("a given up after 40m0s: PluginMissing")
		if n := r.metric("devmgrd_pods_given_up_total", "PluginMissing"); n != 1 {
			t.Errorf("%v pods are counted, want 1", n)
		}
		r.plugins.stock(gpu, 2)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		if r.plugins.still() {
			t.Error("it will be evicted though it has its devices")
		}
		r.after(2 * time.Hour)
		r.expectGiven()
	}, patient)
}

// While other pods have the devices the time stands still: the scheduler was right.
func TestGiveUp_OthersHaveTheDevices_TimeStandsStill(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 2))
		r.bindMovable("b", app(gpu, 2))
		r.after(24 * time.Hour)
		r.expectGiven()
		r.plugins.stock(gpu, 1) // from now on they would not suffice if they were all free
		r.after(50 * time.Minute)
		r.plugins.stock(gpu, 2)
		r.after(24 * time.Hour)
		r.expectGiven()
		r.plugins.stock(gpu, 1)
		r.after(10*time.Minute - time.Second)
		r.expectGiven()
		r.after(2 * time.Second)
		r.expectGiven("b given up after 1h0m0s: NotEnoughDevices")
		r.plugins.stock(gpu, 2)
		synctest.Wait()
		if r.plugins.still() {
			t.Error("it will be evicted though others have the devices")
		}
	}, patient)
}

// A stale plugin does not end the wait for it, nor does a reason without a limit go on counting another's time.
func TestGiveUp_OtherReason_TimeBeginsAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1))
		r.after(29 * time.Minute)
		r.plugins.stock(gpu, 1, 0) // DeviceUnhealthy
		r.after(time.Hour)
		r.plugins.lose(gpu)
		r.after(29 * time.Minute)
		r.expectGiven()
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		r.after(time.Hour)
		r.expectGiven()
		r.plugins.lose(gpu)
		r.after(2 * time.Minute)
		r.expectGiven("a given up after 30m0s: PluginMissing")
	}, patient)
}

// The shortest limit of a pod's resources counts.
func TestGiveUp_ByResource_ShortestCounts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1), wants("other", device.App, nic, 1))
		r.after(11 * time.Minute)
		r.expectGiven("a given up after 10m0s: PluginMissing")
	}, patient)
}

// A restart of devmgrd does not begin the time again, but plugins have half a minute. A reboot does begin it again.
func TestGiveUp_Restart_TimeGoesOn(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1))
		r.after(20 * time.Minute)
		r.halt()
		time.Sleep(20 * time.Minute)
		r.start()
		r.expectGiven()
		r.after(31 * time.Second)
		r.expectGiven("a given up after 40m30s: PluginMissing")

		r.halt()
		r.boot = "another"
		r.start()
		r.after(29 * time.Minute)
		r.expectGiven()
		r.after(2 * time.Minute)
		r.expectGiven("a given up after 30m0s: PluginMissing")
	}, patient)
}

// A pod with a running container is not given up.
func TestGiveUp_ContainerRuns_PodStays(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced([]device.Running{running("1", "a", "without")}, nil)
		r.bindMovable("a", app(gpu, 1))
		r.after(2 * time.Hour)
		r.expectGiven()
		r.RuntimeStopped(running("1", "a", "without"))
		r.expectGiven("a given up after 2h0m0s: PluginMissing")
	}, patient)
}

// By default no pod is given up, and nothing is recorded for it.
func TestGiveUp_Off_PodWaits(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1))
		r.after(100 * time.Hour)
		r.expectGiven()
		onDisk, err := podsOnDisk(r.store)
		if err != nil || len(onDisk) != 1 || onDisk[0].Stall != (device.Stall{}) {
			t.Errorf("%+v, %v", onDisk, err)
		}
	})
}

// A pod that is planned again, and waits for the same reason, keeps its time.
func TestGiveUp_PlannedAgain_IsStillDue(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 1)
		r.bind("a", app(gpu, 1))
		r.bindMovable("b", app(gpu, 2))
		r.after(10 * time.Minute)
		r.Drop("a") // its device is released
		r.after(51 * time.Minute)
		r.expectGiven("b given up after 1h0m0s: NotEnoughDevices")
	}, patient)
}

// The same after a restart at which the runtime comes last.
func TestGiveUp_RestartWithoutRuntime_IsStillDue(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1))
		r.after(5 * time.Minute)
		r.halt()
		r.mute = true
		r.start()
		r.after(2 * time.Second)
		r.RuntimeSynced(nil, nil)
		r.after(3 * time.Hour)
		if g := r.given(); len(g) == 0 {
			t.Errorf("never given up; GivesUp %v, now %v", r.PodByUID("a").GivesUp, time.Now())
		}
	}, patient)
}

// The state file of an older version does not say which pods have controllers.
func TestGiveUp_MovableLearnedLater_IsDue(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bind("a", app(gpu, 1))
		d := pod("a", app(gpu, 1))
		d.Movable = true
		r.Bind(d)
		r.after(3 * time.Hour)
		if g := r.given(); len(g) == 0 {
			t.Error("never given up")
		}
	}, patient)
}

// A controller may be deleted without its pods.
func TestGiveUp_OrphanedMeanwhile_PodStays(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1))
		r.after(30 * time.Minute)
		r.expectGiven("a given up after 30m0s: PluginMissing")
		r.Snapshot()
		r.Bind(pod("a", app(gpu, 1))) // its controller is gone: kubectl delete --cascade=orphan
		if r.plugins.still() {
			t.Error("it is evicted though no controller creates another one")
		}
		if at := r.PodByUID("a").GivesUp; !at.IsZero() {
			t.Errorf("GivesUp is still %v", at)
		}
	}, patient)
}

// An eviction that a budget has held up ends when the pod is served.
func TestGiveUp_PluginGrantsMeanwhile_PodStays(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1))
		r.after(30 * time.Minute)
		r.expectGiven("a given up after 30m0s: PluginMissing")
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { time.Sleep(10 * time.Second); return nil })
		r.plugins.stock(gpu, 1)
		r.after(5 * time.Second)
		r.expect("a", "main", "busy Allocating")
		if r.plugins.still() {
			t.Error("it is evicted while the plugin grants its devices")
		}
		r.after(10 * time.Second)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	}, patient)
}

// The same when the pod waits for another reason, which has a time of its own.
func TestGiveUp_OtherReasonMeanwhile_PodStays(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 2))
		r.after(30 * time.Minute)
		r.expectGiven("a given up after 30m0s: PluginMissing")
		r.plugins.stock(gpu, 1) // NotEnoughDevices, which has an hour
		synctest.Wait()
		if r.plugins.still() {
			t.Error("it is evicted though it has waited for the new reason for 0 s of 1 h")
		}
	}, patient)
}

// Readers do not see an end that will not come.
func TestGiveUp_ContainerRuns_NoTimeIsShown(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced([]device.Running{running("1", "a", "without")}, nil)
		r.bindMovable("a", app(gpu, 1))
		r.after(2 * time.Hour)
		if at := r.PodByUID("a").GivesUp; !at.IsZero() {
			t.Errorf("explain says that the pod is evicted at %v; it is %v, and a container runs", at, time.Now())
		}
	}, patient)
}

// A container that is never created does not end the time.
func TestGiveUp_CreationFails_IsStillDue(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1))
		r.after(29 * time.Minute)
		r.RuntimeCreating(running("1", "a", "without"))
		r.after(2 * time.Minute)
		r.RuntimeAborted(running("1", "a", "without"))
		r.after(time.Hour)
		if g := r.given(); len(g) == 0 {
			t.Error("never given up")
		}
	}, patient)
}

// Containers of other pods have the devices, and nothing says which.
func TestGiveUp_DevicesUnknown_PodStays(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		c := running("1", "x", "main")
		c.Digests = map[device.ResourceName]string{gpu: "abc"}
		r.RuntimeSynced([]device.Running{c}, nil)
		r.bindMovable("a", app(gpu, 1))
		r.expect("a", "main", "waiting DevicesUnknown")
		r.after(3 * time.Hour)
		r.expectGiven()
	}, func(r *harness) {
		r.giveUp = func(why device.Reason, resource device.ResourceName) time.Duration { return 2 * time.Hour }
	})
}

// A static pod lacks devices of one resource, and no plugin has registered the others: these are in no table.
func TestStaticPod_LacksSeveralResources_Waits(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		demand := app(gpu, 2)
		for i := range 7 { // the order of a map decides which one is looked at first
			demand.Wants[device.ResourceName(fmt.Sprintf("vendor.com/later%d", i))] = 1
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			d := pod(name, demand)
			d.Local = true
			r.Bind(d)
			r.expect(name, "main", "waiting NotEnoughDevices")
		}
	}, func(r *harness) { r.mute = true })
}
