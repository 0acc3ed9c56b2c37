package allocator_test

import (
	"errors"
	"maps"
	"slices"
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
	r.after(11 * time.Second) // others have not fallen with it
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
	t.Parallel()
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
		if got := r.PodByUID("b").Wait.Message; !strings.Contains(got, "0 of 3 free, 1 suspended until 20") {
			t.Errorf("b waits because %q", got)
		}
		if why, state := r.suspendedDevice(); state != device.StateSuspended || !strings.Contains(why, "it became unhealthy 3 times within an hour") {
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
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
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
		r.after(11 * time.Second)
		r.published(map[device.ResourceName]int{gpu: 3, nic: 0}) // one device alone may be broken
	}, suspending)
}

// The suspension is in force when it is on disk, and not before.
func TestFlapping_DiskIsFull_SuspensionWaits(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(10)
		r.expectSuspended(false)
		r.published(map[device.ResourceName]int{gpu: 3})
	})
}

// Nothing is in force or counted while a write that fails is in progress.
func TestFlapping_WriteFails_NothingIsInForceMeanwhile(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(2)
		early := false
		r.disk.fails(func() {
			r.plugins.stock(nic, 1+time.Now().Second()) // anything that makes the planning loop run
			time.Sleep(time.Millisecond)
			all, _ := r.Devices(gpu)
			early = early || all[0].Cordon != nil
		})
		r.falls(1)
		r.after(10 * time.Second)
		if early {
			t.Error("the suspension is in force while it is being written, and the write fails")
		}
		if n := r.metric("devmgrd_device_suspensions_total", string(gpu)); n != 0 {
			t.Errorf("%v suspensions are counted, none is on disk", n)
		}
		r.disk.fails(nil)
		r.after(2 * time.Second)
	}, suspending)
}

// A suspension counts once.
func TestFlapping_Restart_CountsNothing(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(3)
		r.restart()
		if n := r.metric("devmgrd_device_suspensions_total", string(gpu)); n != 0 {
			t.Errorf("%v suspensions are counted since the start, none has been made", n)
		}
	}, suspending)
}

// Switching suspensions off ends those of earlier.
func TestFlapping_SwitchedOff_SuspensionEnds(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(3)
		r.suspends = false
		r.restart()
		r.plugins.stock(gpu, 3)
		r.expectSuspended(false)
	}, suspending)
}

// Some plugins report the devices of a driver that has failed one after the other.
func TestFlapping_DriverFailsDeviceByDevice_NoneIsSuspended(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		for range 3 {
			for _, unhealthy := range [][]int{nil, {0}, {0, 1}, {0, 1, 2}} {
				r.plugins.stock(gpu, 3, unhealthy...)
				r.after(time.Millisecond)
			}
			r.after(time.Second)
		}
		r.plugins.stock(gpu, 3)
		r.published(map[device.ResourceName]int{gpu: 3})
	}, suspending)
}

// Uncordon forgets the history also when the device is not suspended at the moment.
func TestFlapping_UncordonOnProbation_HistoryIsForgotten(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(3)
		r.after(61 * time.Minute)
		r.expectSuspended(false)
		if _, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil {
			t.Error(err)
		}
		r.falls(1)
		r.expectSuspended(false)
	}, suspending)
}

// An operator's cordon is in force if it is on disk, also when a command fails between two writes.
func TestFlapping_UncordonFailsHalfway_DiskAndMemoryAgree(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(3)
		if _, err := r.Cordon([]device.Cordon{{Resource: gpu, ID: "d0", Reason: "repair"}}); err != nil {
			t.Fatal(err)
		}
		r.disk.failsFalls(errors.New("full"))
		if _, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); !errors.As(err, new(*device.UnsavedError)) {
			t.Fatalf("the end of the suspension is not known to be written: %v", err)
		}
		r.disk.failsFalls(nil)
		has, _ := r.store.State()
		all, _ := r.Devices(gpu)
		if all[0].Cordon != nil && !all[0].Cordon.Suspended && len(has.Cordons) == 0 {
			t.Error("the operator's cordon is in force and not on disk: a restart drops it")
		}
	}, suspending)
}

// Very many records wait to be written, which takes several commits: what an operator has changed is durable all the same when Uncordon returns.
func TestFlapping_UncordonWithManyUnsaved_IsDurable(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		const n = 20
		fallen := make([]int, 600)
		for i := range fallen {
			fallen[i] = i
		}
		r.plugins.stock(gpu, n+1)
		for range 3 {
			synctest.Wait() // the list before has been received
			r.plugins.stock(gpu, n+1, fallen[:n]...)
			r.after(11 * time.Second)
			r.plugins.stock(gpu, n+1)
		}
		suspended := slices.Collect(maps.Values(r.Resources().ByName[gpu].Cordoned))
		r.disk.failsFalls(errors.New("full"))
		for _, other := range []device.ResourceName{nic, "vendor.com/other"} {
			r.plugins.stock(other, len(fallen)+1)
			synctest.Wait()
			r.plugins.stock(other, len(fallen)+1, fallen...)
		}
		r.after(11 * time.Second)
		r.disk.failsFalls(nil)
		if _, err := r.Uncordon(suspended); err != nil || len(suspended) != n {
			t.Fatalf("%d devices were suspended, want %d; %v", len(suspended), n, err)
		}
		saved := map[device.ResourceName]int{}
		has, _ := r.store.State()
		for _, rec := range has.Falls {
			saved[rec.Resource]++
		}
		if saved[gpu] != 0 || saved[nic] != len(fallen) || saved["vendor.com/other"] != len(fallen) {
			t.Errorf("on disk are %v: a crash would have devices suspended again, or forget falls", saved)
		}
	}, suspending)
}

// A resource that cannot be forgotten after all keeps its records.
func TestFlapping_ForgetFails_DeviceStaysSuspended(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 3)
		r.falls(3)
		r.plugins.lose(gpu)
		synctest.Wait()
		r.plugins.forgetFails = true
		if _, err := r.Forget(gpu); err == nil {
			t.Fatal("no error")
		}
		r.plugins.forgetFails = false
		r.plugins.stock(gpu, 3)
		r.expectSuspended(true)
		r.after(time.Minute)
		r.restart()
		r.plugins.stock(gpu, 3)
		r.expectSuspended(true)
	}, suspending)
}

// Suspended devices of one resource cost nothing when something changes about another.
func TestFlapping_ManyAreSuspended_OtherResourcesCostTheSame(t *testing.T) {
	run(t, func(r *harness) {
		const n = 800
		fallen := make([]int, n)
		for i := range fallen {
			fallen[i] = i
		}
		r.plugins.stock(gpu, n+1)
		r.plugins.stock(nic, 1)
		for range 3 {
			synctest.Wait() // the list before has been received
			r.plugins.stock(gpu, n+1, fallen...)
			r.after(11 * time.Second)
			r.plugins.stock(gpu, n+1)
			r.after(time.Second)
		}
		if got := len(r.Resources().ByName[gpu].Cordoned); got != n {
			t.Fatalf("%d devices are suspended, want %d", got, n)
		}
		if made := r.LookForSuspensions(nic); made > 20 {
			t.Errorf("a look at another resource makes %v objects", made)
		}
	}, suspending)
}

// Suspensions of several resources that end together cost one hold of the lock each.
func TestFlapping_ManyEndTogether_OneResourceAtATime(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		all := []device.ResourceName{gpu, nic, "vendor.com/other"}
		for i := range 6 {
			for _, one := range all {
				r.plugins.stock(one, 3, []int{0}[:i%2]...)
			}
			r.after(12 * time.Second)
		}
		if n := r.Suspend(); n != len(all) {
			t.Fatalf("devices of %d resources are suspended, want %d", n, len(all))
		}
		r.stop()
		r.after(2 * time.Hour)
		for left := range len(all) {
			if n := r.Suspend(); n != len(all)-1-left {
				t.Errorf("after look %d devices of %d resources are suspended", left+1, n)
			}
		}
	}, suspending)
}
