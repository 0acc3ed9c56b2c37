package allocator_test

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// health returns what the snapshot says of a pod's devices, in short.
func (r *harness) health(name string) string {
	r.t.Helper()
	synctest.Wait()
	for _, p := range r.Snapshot().Pods {
		if p.Pod.Name != name {
			continue
		}
		text := "known"
		if !p.HealthKnown {
			text = "unknown"
		}
		if f := p.Fault; f != nil {
			text += fmt.Sprint(" ", f.Kind, " ", f.ID, "+", f.Others)
			if !f.Ended.IsZero() {
				text += fmt.Sprintf(" ended %v ago", time.Since(f.Ended))
			}
		}
		return text
	}
	r.t.Fatalf("there is no pod %s", name)
	return ""
}

// The snapshot says of a pod's devices what its events say: an unhealthy device at once, an unlisted one after the grace, and each only for the pod
// that had the device then.
func TestSnapshot_PodHealth_AgreesWithEvents(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		is := func(name, want string) {
			t.Helper()
			if got := r.health(name); got != want {
				t.Errorf("pod %s: %s, want %s", name, got, want)
			}
		}
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 5)
		r.bind("a", app(gpu, 3))
		r.bind("b", app(gpu, 1))
		is("a", "known")
		r.plugins.stock(gpu, 5, 4) // no pod has it
		is("a", "known")
		r.plugins.stock(gpu, 5, 1, 2)
		is("a", "known DeviceUnhealthy d1+1")
		is("b", "known")
		r.plugins.stock(gpu, 5, 2)
		is("a", "known DeviceUnhealthy d2+0")
		r.after(time.Hour)
		r.plugins.stock(gpu, 5)
		is("a", "known DeviceUnhealthy d2+0 ended 0s ago")
		r.plugins.stock(gpu, 5, 0)
		is("a", "known DeviceUnhealthy d0+0")
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		is("a", "unknown DeviceUnhealthy d0+0")
		is("b", "unknown")
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Lost })
		is("a", "unknown DeviceUnhealthy d0+0")
		is("b", "unknown PluginLost +0")
		r.plugins.stock(gpu, 5)
		is("a", "known DeviceUnhealthy d0+0 ended 0s ago")
		is("b", "known")

		r.plugins.offer(gpu, func(o *device.Offer) { o.Inventory.Devices = o.Inventory.Devices[1:] })
		r.after(4 * time.Second)
		is("a", "known DeviceUnhealthy d0+0 ended 4s ago") // no event has been sent yet
		r.after(2 * time.Second)
		is("a", "known DeviceUnlisted d0+0")
		r.Drop("a")
		r.after(time.Second)
		r.plugins.stock(gpu, 5)
		r.bind("c", app(gpu, 4))
		is("c", "known")
	})
}

// Device IDs are of their resource: of two pods with devices of equal IDs, only the one fails whose device has.
func TestSnapshot_EqualIDsOfTwoResources_OnePodIsAffected(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 1)
		r.plugins.stock(nic, 1)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(nic, 1))
		r.plugins.stock(nic, 1, 0)
		if a, b := r.health("a"), r.health("b"); a != "known" || b != "known DeviceUnhealthy d0+0" {
			t.Errorf("a: %s, b: %s", a, b)
		}
	})
}

// The wait that the snapshot shows as told is that of the last event.
func TestSnapshot_Told_IsTheLastEvent(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		told := func() device.Wait {
			synctest.Wait()
			p, _ := r.Snapshot().Pod("ns", "a")
			return p.Told
		}
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 2))
		if w := told(); w.Reason != device.PluginMissing {
			t.Errorf("told %+v", w)
		}
		r.plugins.stock(gpu, 1)
		first := told()
		if first.Reason != device.NotEnoughDevices {
			t.Errorf("told %+v", first)
		}
		r.bind("b", app(gpu, 1)) // only the number of free devices changes: no event
		if w := told(); w != first {
			t.Errorf("told %+v, and before %+v", w, first)
		}
		r.plugins.stock(gpu, 3)
		if w := told(); w != (device.Wait{}) {
			t.Errorf("a pod that is ready was told %+v", w)
		}
	})
}

// While many devices of pods have failed, a change of another resource costs what it costs while few have: counted in allocations.
func TestSnapshot_ManyDevicesHaveFailed_ChangeElsewhereCostsNoMore(t *testing.T) {
	const flips = 20
	cost := func(n int) (allocations uint64) {
		run(t, func(r *harness) {
			r.RuntimeSynced(nil, nil)
			r.plugins.stock(gpu, n)
			r.plugins.stock(nic, 1)
			r.bind("a", app(gpu, n))
			r.bind("b", app(nic, 1))
			all := make([]int, n)
			for i := range all {
				all[i] = i
			}
			r.plugins.stock(gpu, n, all...)
			r.after(time.Minute)
			if got, want := r.health("a"), fmt.Sprint("known DeviceUnhealthy d0+", n-1); got != want {
				t.Errorf("pod a: %s, want %s", got, want)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for i := range flips {
				r.plugins.stock(nic, 1, all[:(i+1)%2]...)
				synctest.Wait()
				r.Snapshot()
			}
			runtime.ReadMemStats(&after)
			allocations = after.Mallocs - before.Mallocs
		})
		return allocations
	}
	few, many := cost(10), cost(2010)
	t.Logf("%d changes: %d allocations with 10 failed devices, %d with 2010", flips, few, many)
	if many > few+flips*200 {
		t.Errorf("%d changes of another resource cost %d allocations with 10 failed devices, and %d with 2010", flips, few, many)
	}
}
