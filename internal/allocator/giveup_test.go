package allocator_test

import (
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
		if synctest.Wait(); r.plugins.still() {
			t.Error("it will be evicted though others have the devices")
		}
	}, patient)
}

// A stale plugin does not end the wait for it, nor does a reason without a limit go on counting another's time.
func TestGiveUp_OtherReason_TimeBeginsAgain(t *testing.T) {
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
	run(t, func(r *harness) {
		r.bindMovable("a", app(gpu, 1), wants("other", device.App, nic, 1))
		r.after(11 * time.Minute)
		r.expectGiven("a given up after 10m0s: PluginMissing")
	}, patient)
}

// A restart of devmgrd does not begin the time again, but plugins have half a minute. A reboot does begin it again.
func TestGiveUp_Restart_TimeGoesOn(t *testing.T) {
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
