package allocator_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

func suspending(r *harness) { r.suspends = true }

// falls has d0 become unhealthy and recover, so often.
func (r *harness) falls(times int) {
	for range times {
		synctest.Wait() // the list before has been received
		r.plugins.stock(gpu, 3, 0)
		r.after(time.Second)
		r.plugins.stock(gpu, 3)
		r.after(time.Second)
	}
}

// suspendedDevice returns the suspension of d0, if it is suspended, and its state.
func (r *harness) suspendedDevice() (why string, state device.DeviceState) {
	r.t.Helper()
	synctest.Wait()
	all, _ := r.Devices(gpu)
	for _, d := range all {
		if d.ID == "d0" {
			state = d.State
			if d.Cordon != nil && d.Cordon.Suspended {
				why = d.Cordon.Reason
			}
		}
	}
	return why, state
}

func (r *harness) expectSuspended(want bool) {
	r.t.Helper()
	if why, state := r.suspendedDevice(); (why != "") != want {
		r.t.Errorf("d0 is %s: %q", state, why)
	}
}

func TestFlapping_ThirdFall_DeviceIsSuspended(t *testing.T) {
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(2)
		r.expectSuspended(false)
		r.published(map[device.ResourceName]int{gpu: 3})
		r.falls(1)
		r.expectSuspended(true)
		r.published(map[device.ResourceName]int{gpu: 2})
		r.bind("a", app(gpu, 2))
		r.expect("a", "main", "ready vendor.com/gpu[d1 d2]")
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting NotEnoughDevices")
		if why, state := r.suspendedDevice(); state != device.Cordoned || !strings.Contains(why, "it became unhealthy 3 times within an hour") {
			t.Errorf("%s, %q", state, why)
		}
		if n := r.metric("devmgrd_device_suspensions_total", string(gpu)); n != 1 {
			t.Errorf("%v suspensions are counted", n)
		}

		r.after(59 * time.Minute)
		r.expectSuspended(true)
		r.after(2 * time.Minute)
		r.expectSuspended(false)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.falls(1) // on probation; b keeps the device
		r.expectSuspended(true)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.after(119 * time.Minute)
		r.expectSuspended(true)
		r.after(2 * time.Minute)
		r.expectSuspended(false)
	}, suspending)
}

// Neither a restart of the plugin nor one of devmgrd shortens anything.
func TestFlapping_Restarts_DeviceStaysSuspended(t *testing.T) {
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(2)
		r.restart()
		r.plugins.stock(gpu, 3)
		r.falls(1)
		r.expectSuspended(true)
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		r.after(time.Second)
		r.plugins.stock(gpu, 3)
		r.expectSuspended(true)
		r.after(30 * time.Minute)
		r.restart()
		r.expectSuspended(true)
		r.bind("a", app(gpu, 3))
		r.expect("a", "main", "waiting NotEnoughDevices")
		r.after(31 * time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1 d2]")
		r.after(3 * time.Hour)
		r.restart()
		r.check()
	}, suspending)
}

// An operator may know better. Uncordon forgets the record as well.
func TestFlapping_Uncordon_EndsTheSuspension(t *testing.T) {
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(3)
		r.expectSuspended(true)
		lifted, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}})
		if err != nil || len(lifted) != 1 {
			t.Errorf("lifted %v, %v", lifted, err)
		}
		r.expectSuspended(false)
		r.restart()
		r.expectSuspended(false)
		r.falls(2)
		r.expectSuspended(false)
	}, suspending)
}

// All devices of several that fall together are the driver's fault, or the plugin's.
func TestFlapping_AllFallTogether_NoneIsSuspended(t *testing.T) {
	run(t, func(r *harness) {
		for range 5 {
			r.plugins.stock(gpu, 3)
			r.after(time.Second)
			r.plugins.stock(gpu, 3, 0, 1, 2)
			r.after(time.Second)
		}
		r.plugins.stock(gpu, 3)
		r.published(map[device.ResourceName]int{gpu: 3})
		r.plugins.stock(nic, 1)
		for range 3 {
			r.plugins.stock(nic, 1)
			r.after(time.Second)
			r.plugins.stock(nic, 1, 0)
			r.after(time.Second)
		}
		r.plugins.stock(nic, 1)
		r.published(map[device.ResourceName]int{gpu: 3, nic: 0}) // one device alone may be broken
	}, suspending)
}

// The suspension is in force when it is on disk, and not before.
func TestFlapping_DiskIsFull_SuspensionWaits(t *testing.T) {
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(2)
		r.disk.fails(func() {})
		r.falls(1)
		r.expectSuspended(false)
		r.disk.fails(nil)
		r.after(2 * time.Second)
		r.expectSuspended(true)
	}, suspending)
}

// A resource that is forgotten takes its records with it.
func TestFlapping_ResourceForgotten_RecordGoes(t *testing.T) {
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 3)
		r.falls(3)
		r.expectSuspended(true)
		r.plugins.lose(gpu)
		synctest.Wait()
		if _, err := r.Forget(gpu); err != nil {
			t.Fatal(err)
		}
		r.restart()
		r.plugins.stock(gpu, 3)
		r.expectSuspended(false)
	}, suspending)
}

func TestFlapping_Off_DeviceStays(t *testing.T) {
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(10)
		r.expectSuspended(false)
		r.published(map[device.ResourceName]int{gpu: 3})
	})
}
