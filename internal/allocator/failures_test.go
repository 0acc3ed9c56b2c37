package allocator_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// failures returns the reports of failing devices to owners.
func (r *harness) failures() (told []string) {
	synctest.Wait()
	r.plugins.mu.Lock()
	defer r.plugins.mu.Unlock()
	for _, s := range r.plugins.told {
		if strings.Contains(s, "failed") {
			told = append(told, s)
		}
	}
	return told
}

// A failing device's pod gets an event at once and, when the failure lasts, at most one per device and hour.
func TestADeviceInUseFails(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		expect := func(want ...string) {
			t.Helper()
			if got := r.failures(); !slices.Equal(got, want) {
				t.Errorf("told %q, want %q", got, want)
			}
		}
		status := func(id device.ID) device.DeviceStatus {
			all, _ := r.Devices(gpu)
			return all[slices.IndexFunc(all, func(d device.DeviceStatus) bool { return d.ID == id })]
		}
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 3)
		r.bind("a", app(gpu, 1))
		r.plugins.stock(gpu, 3, 2) // no pod has it
		expect()
		r.plugins.stock(gpu, 3, 0, 2)
		expect("a failed vendor.com/gpu/d0")
		r.after(9 * time.Second)
		r.plugins.stock(gpu, 3, 2)
		r.after(time.Minute)
		expect("a failed vendor.com/gpu/d0") // it has not lasted
		if d := status("d0"); d.Failures != 1 || d.State != device.StateAssigned {
			t.Errorf("d0: %+v", d)
		}

		r.plugins.stock(gpu, 3, 0)
		r.after(11 * time.Second)
		lasting := []string{"a failed vendor.com/gpu/d0", "a failed vendor.com/gpu/d0", "a failed for long vendor.com/gpu/d0"}
		expect(lasting...)
		if n := r.metric("devmgrd_device_failures_total", string(gpu)); n != 2 {
			t.Errorf("%v failures are counted, want 2", n)
		}
		r.expect("a", "main", "ready vendor.com/gpu[d0]") // it is never taken away

		// It recovers for a moment and is assigned to another pod: that pod gets an event, and no eviction.
		r.Drop("a")
		r.plugins.stock(gpu, 3)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.plugins.stock(gpu, 3, 0)
		r.after(time.Minute)
		expect(append(lasting, "b failed vendor.com/gpu/d0")...)
		if d := status("d0"); d.Failures != 3 || d.Failed.IsZero() {
			t.Errorf("d0: %+v", d)
		}

		// After an hour the failure no longer counts. A device that its plugin no longer lists has failed, too.
		r.plugins.stock(gpu, 3)
		r.after(2 * time.Hour)
		r.plugins.offer(gpu, func(o *device.Offer) { o.Inventory.Devices = o.Inventory.Devices[1:] })
		r.after(11 * time.Second)
		expect(append(lasting, "b failed vendor.com/gpu/d0", "b failed vendor.com/gpu/d0", "b failed for long vendor.com/gpu/d0")...)
		if d := status("d0"); d.Failures != 1 || d.Listed {
			t.Errorf("d0: %+v", d)
		}
	})
}

// The health of a disconnected plugin's devices is unknown.
func TestAPluginThatIsAwayFailsNobody(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.bind("a", app(gpu, 1))
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Lost })
		r.after(time.Minute)
		if told := r.failures(); len(told) > 0 {
			t.Errorf("told %q", told)
		}
	})
}

// A device that fails during the Allocate call counts as failed in use.
func TestADeviceFailsWhileItIsGiven(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 1)
		goOn := make(chan struct{})
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { <-goOn; return nil })
		r.bind("a", app(gpu, 1))
		r.plugins.stock(gpu, 1, 0) // d0 fails
		synctest.Wait()
		close(goOn)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.after(time.Minute)
		if told := r.failures(); len(told) != 2 { // the second: the failure has lasted
			t.Errorf("told %q", told)
		}
	})
}

// Whether a disconnected plugin's device is still unhealthy is unknown.
func TestAFailureDoesNotLastWhileThePluginIsAway(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 1)
		r.bind("a", app(gpu, 1))
		r.plugins.stock(gpu, 1, 0) // as some plugins say when they end
		r.after(time.Second)
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		r.after(15 * time.Second)
		if told := r.failures(); len(told) != 1 {
			t.Errorf("told %q", told)
		}
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Serving })
		r.after(9 * time.Second)
		if told := r.failures(); len(told) != 1 { // the time starts again
			t.Errorf("told %q", told)
		}
		r.after(2 * time.Second)
		if told := r.failures(); len(told) != 2 {
			t.Errorf("told %q", told)
		}
	})
}

// Many plugins list nothing at their start, and all of their devices milliseconds later.
func TestDevice_UnlistedForAMoment_HasNotFailed(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		for range 3 {
			r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
			r.after(time.Minute)
			r.plugins.offer(gpu, func(o *device.Offer) { o.State, o.Session, o.Inventory.Devices = device.Serving, o.Session+1, nil })
			r.after(4 * time.Second)
			r.plugins.stock(gpu, 2)
			r.after(time.Minute)
		}
		if told := r.failures(); len(told) > 0 {
			t.Errorf("told %q", told)
		}
		if n := r.metric("devmgrd_device_failures_total", string(gpu)); n != 0 {
			t.Errorf("%v failures are counted", n)
		}
		r.check()
	})
}

func TestDevice_StaysUnlisted_FailsOnce(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		expect := func(want ...string) {
			t.Helper()
			if got := r.failures(); !slices.Equal(got, want) {
				t.Errorf("told %q, want %q", got, want)
			}
		}
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.plugins.stock(gpu, 0)
		r.after(4 * time.Second)
		expect()
		r.after(2 * time.Second)
		expect("a failed vendor.com/gpu/d0")
		r.plugins.stock(gpu, 2, 0) // podsListed again, as unhealthy: the same failure
		r.after(3 * time.Second)
		expect("a failed vendor.com/gpu/d0")
		r.after(2 * time.Second)
		expect("a failed vendor.com/gpu/d0", "a failed for long vendor.com/gpu/d0")
		if n := r.metric("devmgrd_device_failures_total", string(gpu)); n != 1 {
			t.Errorf("%v failures are counted, want 1", n)
		}
	})
}

// A plugin that has restarted lists only devices that are free, and one that it has not listed before. The devices in use have not failed, and count in the
// Node's capacity next to those that may be given out.
func TestDevice_RestartedPluginListsFreeOnes_InUseHaveNotFailed(t *testing.T) {
	t.Parallel()
	for _, fails := range []bool{false, true} {
		run(t, func(r *harness) {
			r.RuntimeSynced(nil, nil)
			r.Replace(nil)
			r.plugins.stock(gpu, 4)
			r.bind("a", app(gpu, 1))
			r.bind("b", app(gpu, 1))
			r.bind("c", app(gpu, 1))
			lists := func(ids ...device.ID) func(*device.Offer) {
				return func(o *device.Offer) {
					o.Inventory.Devices = nil
					for _, id := range ids {
						d := device.Device{ID: id, Healthy: true}
						if id == "new" {
							d.Added = 1e12
						}
						o.Inventory.Devices = append(o.Inventory.Devices, d)
					}
				}
			}
			r.plugins.offer(gpu, func(o *device.Offer) { o.Session++ })
			r.plugins.offer(gpu, lists("d3", "new"))
			r.after(time.Minute)
			var want []string
			if fails {
				want = []string{"a failed vendor.com/gpu/d0", "a failed for long vendor.com/gpu/d0", "b failed vendor.com/gpu/d1", "b failed for long vendor.com/gpu/d1",
					"c failed vendor.com/gpu/d2", "c failed for long vendor.com/gpu/d2"}
			}
			told := r.failures()
			slices.Sort(told)
			slices.Sort(want)
			if !slices.Equal(told, want) {
				t.Errorf("with FailUnlisted %v: told %q, want %q", fails, told, want)
			}
			r.published(map[device.ResourceName]int{gpu: 4})
			if n := r.metric("devmgrd_devices_unlisted", string(gpu)); n != 3 {
				t.Errorf("%v devices are counted as unlisted, want 3", n)
			}
			r.bind("d", app(gpu, 1))
			r.expect("d", "main", "ready vendor.com/gpu[d3]") // new may be another one's former device
			r.plugins.offer(gpu, lists("new"))                // d3 has been listed by this plugin: it has failed
			r.after(6 * time.Second)
			if told := r.failures(); !slices.Contains(told, "d failed vendor.com/gpu/d3") {
				t.Errorf("told %q", told)
			}
		}, func(r *harness) { r.failUnlisted = fails })
	}
}

// A device that its plugin lists as unhealthy has failed: there is nothing to wait for.
func TestDevice_UnlistedAndThenUnhealthy_FailsAtOnce(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.plugins.stock(gpu, 0)
		r.after(time.Second)
		r.plugins.stock(gpu, 2, 0)
		if told := r.failures(); len(told) != 1 {
			t.Errorf("told %q", told)
		}
	})
}

// Devices of a pod that fail together are reported once: a plugin may withdraw thousands.
func TestDevicesThatFailTogether(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 12)
		r.bind("a", app(gpu, 12))
		r.plugins.stock(gpu, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2)
		want := []string{"a failed vendor.com/gpu/d2 d3 d4 d5 d6 d7 d8 d9 and 2 more"}
		if got := r.failures(); !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		r.plugins.stock(gpu, 0) // and now it lists nothing
		r.after(6 * time.Second)
		want = append(want, "a failed vendor.com/gpu/d0 d1")
		if got := r.failures(); !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		if n := r.metric("devmgrd_device_failures_total", string(gpu)); n != 12 {
			t.Errorf("%v failures are counted, want 12", n)
		}
	})
}
