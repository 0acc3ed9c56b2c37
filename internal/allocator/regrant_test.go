package allocator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// start has the runtime create a container and run its processes.
func start(r *harness, c device.Running) {
	r.t.Helper()
	if st := r.RuntimeCreating(c); st.State != device.Ready {
		r.t.Fatalf("%s stands %+v", c.Container.Pod, st)
	}
	r.RuntimeInjected(c)
	if err := r.RuntimeStarting(context.Background(), c); err != nil {
		r.t.Fatal(err)
	}
}

// asked returns the Allocate calls since the last call of asked.
func (r *harness) asked() []string {
	r.plugins.mu.Lock()
	defer r.plugins.mu.Unlock()
	asked := r.plugins.asked
	r.plugins.asked = nil
	return asked
}

func (r *harness) expectAsked(want ...string) {
	r.t.Helper()
	synctest.Wait()
	if got := r.asked(); !slices.Equal(got, want) {
		r.t.Errorf("Allocate was called with %q, want %q", got, want)
	}
}

// reboot ends everything except the files on disk. The plugin is away.
func (r *harness) reboot() {
	r.t.Helper()
	r.halt()
	r.boot += "+"
	r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
	r.start()
	r.RuntimeSynced(nil, nil)
	synctest.Wait()
}

func TestReboot_GrantIsGivenAgainBeforeTheFirstStart(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", wants("init", device.Init, gpu, 1), app(gpu, 2))
		start(r, running("1", "a", "main"))
		r.expectAsked("a/init vendor.com/gpu [d0]", "a/main vendor.com/gpu [d0 d1]")

		r.reboot()
		r.expect("a", "main", "waiting PluginStale")
		if waiting := r.Snapshot().Waiting(); len(waiting) != 1 {
			t.Errorf("%d pods wait", len(waiting))
		}
		r.after(time.Hour)
		r.plugins.stock(gpu, 2, 0, 1) // healthy or not
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1]")
		r.expectAsked("a/init vendor.com/gpu [d0]", "a/main vendor.com/gpu [d0 d1]")
		r.check()
		r.restart() // of devmgrd alone
		r.RuntimeSynced(nil, nil)
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1]")
		r.expectAsked()
	}, func(r *harness) { r.boot = "one" })
}

func TestReboot_PluginRefuses_PodWaitsAndMayHaveOtherDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		start(r, running("1", "a", "main"))
		r.reboot()
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error {
			r.plugins.mu.Lock()
			defer r.plugins.mu.Unlock()
			if r.plugins.asked[len(r.plugins.asked)-1] == "a/main vendor.com/gpu [d0]" {
				return errPlugin
			}
			return nil
		})
		r.plugins.stock(gpu, 2)
		r.expect("a", "main", "waiting PluginError")
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
	}, func(r *harness) { r.boot = "one" })
}

// Some plugins name their devices at random: the pod must not wait for a name that never returns.
func TestReboot_DeviceIsListedNoMore_PodIsPlannedAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.lists(gpu, "a", "b")
		r.RuntimeSynced(nil, nil)
		r.bind("p", app(gpu, 1))
		start(r, running("1", "p", "main"))
		r.reboot()
		r.plugins.offer(gpu, func(o *device.Offer) { o.Inventory.Devices, o.State, o.Since = nil, device.Serving, time.Now() })
		r.expect("p", "main", "waiting DeviceUnhealthy")
		r.after(5 * time.Second)
		r.expect("p", "main", "waiting DeviceUnhealthy")
		r.plugins.lists(gpu, "c", "d")
		r.expect("p", "main", "waiting DeviceUnhealthy")
		r.after(6 * time.Second)
		r.expect("p", "main", "ready vendor.com/gpu[c]")
		r.published(map[device.ResourceName]int{gpu: 2})
	}, func(r *harness) { r.boot = "one" })
}

func TestDeviceGone_PodThatHasNotRun_GetsAnother(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		c := running("1", "a", "main")
		r.RuntimeCreating(c)
		r.RuntimeAborted(c)
		gone := device.Wait{Reason: device.HostDeviceMissing, Message: "/dev/d0 is gone"}
		r.Refused(c.Container, gone, true)
		r.expect("a", "main", "waiting HostDeviceMissing")
		if w, ok := r.Snapshot().Pod("ns", "a"); !ok || w.State != device.Waiting || w.Wait != gone {
			t.Errorf("the outlook is %+v", w)
		}
		if n := r.metric("devmgrd_pods_waiting", "HostDeviceMissing"); n != 1 {
			t.Errorf("%v pods are counted as waiting", n)
		}
		r.after(2 * time.Second)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.bind("b", app(gpu, 1)) // there is no other
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
		if !slices.Contains(r.plugins.told, "a waits: HostDeviceMissing") {
			t.Errorf("told %q", r.plugins.told)
		}
	})
}

func TestDeviceGone_PodThatHasRun_IsGrantedItAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		c := running("1", "a", "main")
		start(r, c)
		r.RuntimeStopped(c)
		r.asked()
		for pause := time.Second; pause < time.Minute; pause *= 2 {
			r.Refused(c.Container, device.Wait{Reason: device.HostDeviceMissing, Message: "/dev/d0 is gone"}, true)
			r.expectAsked()
			r.after(min(pause, 30*time.Second))
			r.expectAsked("a/main vendor.com/gpu [d0]")
			r.expect("a", "main", "ready vendor.com/gpu[d0]")
		}
		start(r, c)
		r.check()
	})
}

func TestPreStartFails_PodThatHasNotRun_GetsAnother(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		r.plugins.prepares(func(context.Context) error {
			r.plugins.mu.Lock()
			defer r.plugins.mu.Unlock()
			if r.plugins.prepared[len(r.plugins.prepared)-1] == "main vendor.com/gpu [d0]" {
				return errPlugin
			}
			return nil
		})
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting PreStartFailed")
		r.after(2 * time.Second)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
		r.check()
	})
}

// The runtime cannot resolve CDI devices whose definitions are gone, and reports that only to the kubelet.
func TestCDIDeviceUndefined_RememberedGrant_IsGivenAgain(t *testing.T) {
	t.Parallel()
	for _, cdi := range []bool{true, false} {
		t.Run(fmt.Sprint("cdi=", cdi), func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 1)
				r.plugins.cdi = cdi
				r.RuntimeSynced(nil, nil)
				r.bind("a", app(gpu, 1))
				create := func(id string) { // which the runtime fails to do
					r.expect("a", "main", "ready vendor.com/gpu[d0]")
					c := running(id, "a", "main")
					r.RuntimeCreating(c)
					r.RuntimeInjected(c)
					r.RuntimeStopped(c)
					synctest.Wait()
				}
				r.asked()
				create("1") // with a grant that is new
				r.after(time.Minute)
				r.expectAsked()
				create("2")
				r.after(time.Minute)
				if cdi {
					r.expectAsked("a/main vendor.com/gpu [d0]")
				} else {
					r.expectAsked()
				}
				start(r, running("3", "a", "main"))
				r.RuntimeStopped(running("3", "a", "main")) // that is no failure
				r.after(time.Minute)
				r.expectAsked()
			})
		})
	}
}

func TestRefusal_IsShownUntilTheContainerStarts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		c := running("1", "a", "main")
		why := device.Wait{Reason: device.Overruled, Message: "another NRI plugin removes a device"}
		for range 3 {
			r.Refused(c.Container, why, false)
		}
		if w, _ := r.Snapshot().Pod("ns", "a"); w.State != device.Waiting || w.Wait.Reason != why.Reason || w.Wait.Message != why.Message+"; refused 3 times" {
			t.Errorf("the outlook is %+v", w)
		}
		if n := r.metric("devmgrd_pods_waiting", "Overruled"); n != 1 || len(r.Snapshot().Waiting()) != 1 {
			t.Errorf("%v pods are counted as waiting, %d are shown", n, len(r.Snapshot().Waiting()))
		}
		if n := len(slices.DeleteFunc(slices.Clone(r.plugins.told), func(s string) bool { return s != "a waits: Overruled" })); n != 1 {
			t.Errorf("told %d times", n)
		}
		r.expect("a", "main", "ready vendor.com/gpu[d0]") // it may be created all the same
		r.RuntimeInjected(c)
		if w, _ := r.Snapshot().Pod("ns", "a"); w.State != device.Waiting {
			t.Errorf("before it starts the outlook is %+v", w)
		}
		start(r, c)
		if w, _ := r.Snapshot().Pod("ns", "a"); w.State != device.Ready {
			t.Errorf("the outlook is %+v", w)
		}
	})
}

func TestGrantLapsed_OtherContainersOfThePodGoOn(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", wants("side", device.Sidecar, gpu, 1), app(gpu, 1))
		start(r, running("1", "a", "side"))
		start(r, running("2", "a", "main"))
		r.RuntimeStopped(running("2", "a", "main"))
		r.Refused(device.Container{Pod: "a", Name: "main"}, device.Wait{Reason: device.HostDeviceMissing}, true)
		r.expect("a", "main", "waiting HostDeviceMissing")
		r.RuntimeStopped(running("1", "a", "side"))
		r.expect("a", "side", "ready vendor.com/gpu[d0]")
		start(r, running("3", "a", "side"))
		r.after(time.Second)
		r.expect("a", "main", "ready vendor.com/gpu[d1]")
	})
}

// Devices granted in another boot and unlisted in this one are used by no process: the capacity does not count them in
// addition to the listed ones, whatever IDs the plugin uses.
func TestReboot_DevicesAreRenamed_NumberStays(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 2))
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1]")
		start(r, running("1", "a", "main"))
		r.reboot()
		r.plugins.lists(gpu, "n0", "n1", "n2", "n3")
		r.published(numbers{gpu: 4})
		r.bind("b", app(gpu, 2))
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[n0 n1]")
		r.expect("b", "main", "ready vendor.com/gpu[n2 n3]")
		r.published(numbers{gpu: 4})
	}, func(r *harness) { r.boot = "one" })
}

// A power cut between the creation of a container and its start: the runtime lists the container as long as the pod lives,
// and it never starts. The pod gets other devices when the host has shown that nothing runs, and from then on the container
// must not start.
func TestReboot_DevicesAreRenamed_IdleContainerIsInNobodysWay(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 2))
		idle := running("1", "a", "main")
		idle.Stamp, idle.Idle = device.Choice{gpu: {"d0", "d1"}}, true
		r.RuntimeCreating(idle)
		r.reboot()
		r.RuntimeSynced([]device.Running{idle}, nil)
		r.plugins.lists(gpu, "n0", "n1")
		r.after(20 * time.Second)
		r.expect("a", "main", "waiting DeviceUnhealthy") // it may be about to start
		r.plugins.setAlive(idle.ID, true)
		r.after(time.Minute)
		r.expect("a", "main", "waiting DeviceUnhealthy") // the host shows a process
		r.plugins.setAlive(idle.ID, false)
		r.RuntimeSynced([]device.Running{idle}, nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[n0 n1]")
		if err := r.RuntimeStarting(context.Background(), idle); err == nil {
			t.Error("the container starts with devices that its pod has given back")
		}
		next := running("2", "a", "main")
		start(r, next)
		r.published(numbers{gpu: 2})
		r.check()
	}, func(r *harness) { r.boot = "one" })
}

// The plugin has given the device of the container that runs another ID. The grant of another container is renewed: that says nothing of this one.
func TestRegrant_OtherContainersDeviceIsRenamed_RemainsWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.recalls(gpu, at("d0", 100))
		r.plugins.stock(nic, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1), wants("side", device.App, nic, 1))
		start(r, running("1", "a", "main"))
		r.plugins.continues(gpu, at("new", 200))
		r.Refused(device.Container{Pod: "a", Name: "side"}, device.Wait{Reason: device.HostDeviceMissing, Message: "gone"}, true)
		r.after(10 * time.Second)
		r.expect("a", "side", "ready vendor.com/nic[d0]")
		r.check()
		r.plugins.continues(gpu, at("new", 200))
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting NotEnoughDevices")
	})
}

// The plugin stops listing the device while it grants it once more. It has listed it together with the other one by then.
func TestRegrant_DeviceVanishesDuringTheCall_NothingIsWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.recalls(gpu, at("d0", 100))
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		start(r, running("1", "a", "main"))
		r.RuntimeStopped(running("1", "a", "main"))
		r.plugins.continues(gpu, at("d0", 100), at("d1", 150))
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { time.Sleep(5 * time.Second); return nil })
		r.Refused(device.Container{Pod: "a", Name: "main"}, device.Wait{Reason: device.HostDeviceMissing, Message: "gone"}, true)
		r.after(3 * time.Second)
		r.plugins.continues(gpu, at("d1", 150))
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.after(20 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.check()
	})
}
