package allocator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// sharing returns a container's demand for devices of claim x.
func sharing(container string, ids ...device.ID) device.Demand {
	return claims(wants(container, device.App, gpu, len(ids)), "x", ids...)
}

func TestSharing_PodsOfOneClaim_HaveOneGrant(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"), sharing("second", "d0"))
		r.bind("b", sharing("main", "d0"))
		r.bind("c", claims(app(gpu, 1), "y", "d0"))
		r.bind("d", wants("main", device.App, gpu, 1))
		for _, of := range []string{"a/main", "a/second", "b/main"} {
			r.expect(of[:1], of[2:], "ready vendor.com/gpu[d0]")
		}
		r.expect("c", "main", "waiting DeviceInUse")
		r.expect("d", "main", "ready vendor.com/gpu[d1]")
		r.expectAsked("a/main vendor.com/gpu [d0]", "d/main vendor.com/gpu [d1]")
		r.check()

		r.restart()
		r.RuntimeSynced(nil, nil)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.bind("b", sharing("main", "d0"))
		r.Drop("a")
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.expect("c", "main", "waiting DeviceInUse")
		r.bind("e", sharing("main", "d0"))
		r.expect("e", "main", "ready vendor.com/gpu[d0]")
		r.check()
		r.Drop("b")
		r.Drop("e")
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
		r.expectAsked("c/main vendor.com/gpu [d0]")
	})
}

// Another pod runs with the device, and the app container requests one of its own.
func TestSharing_InitContainerByClaim_AppContainerByNumberHasAnother(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.RuntimeCreating(running("1", "a", "main"))
		first := sharing("init", "d0")
		first.Kind = device.Init
		r.bind("b", first, app(gpu, 1))
		r.expect("b", "init", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.bind("c", wants("first", device.App, gpu, 1), sharing("main", "d2"))
		r.expect("c", "first", "waiting NotEnoughDevices")
	})
}

func TestSharing_OtherDevicesOfTheClaim_PluginIsAsked(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0", "d1"))
		r.bind("b", sharing("main", "d1"))
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1]")
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.expectAsked("a/main vendor.com/gpu [d0 d1]", "b/main vendor.com/gpu [d1]")
		r.Drop("a")
		r.check()
		r.bind("c", claims(app(gpu, 1), "y", "d0"))
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
		r.bind("d", claims(app(gpu, 1), "z", "d1"))
		r.expect("d", "main", "waiting DeviceInUse")
	})
}

// The second pod waits until the first has its grant, also where the plugin fails first.
func TestSharing_WhileThePluginIsAsked_TheOthersWait(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		failures := 1
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error {
			time.Sleep(5 * time.Second)
			failures--
			if failures >= 0 {
				return errPlugin
			}
			return nil
		})
		r.plugins.stock(gpu, 1)
		for _, name := range []string{"a", "b", "c"} {
			r.Bind(pod(name, sharing("main", "d0")))
		}
		r.after(4 * time.Second)
		r.check()
		r.after(time.Minute)
		for _, name := range []string{"a", "b", "c"} {
			r.expect(name, "main", "ready vendor.com/gpu[d0]")
		}
		if got := r.asked(); len(got) != 2 {
			t.Errorf("the plugin was asked %d times, want once and once more: %q", len(got), got)
		}
	})
}

func TestSharing_StateFileLost_BothKeepTheDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.mute = true
		r.plugins.stock(gpu, 2)
		stamped := func(id, pod string) device.Running {
			one := running(id, pod, "main")
			one.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
			return one
		}
		r.RuntimeSynced([]device.Running{stamped("1", "a"), stamped("2", "b")}, nil)
		for _, order := range [][]string{{"a", "b"}, {"b", "a"}} {
			r.bind(order[0], sharing("main", "d0"))
			r.check()
			r.bind(order[1], sharing("main", "d0"))
			r.check()
		}
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		for _, id := range []string{"1", "2"} {
			if err := r.RuntimeStarting(context.Background(), stamped(id, map[string]string{"1": "a", "2": "b"}[id])); err != nil {
				t.Error(err)
			}
		}
		r.Drop("a")
		r.RuntimeStopped(stamped("1", "a"))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

func TestSharing_PreStartContainer_IsCalledForUnusedDevicesOnly(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		expect := func(n int) {
			t.Helper()
			r.check()
			r.plugins.mu.Lock()
			defer r.plugins.mu.Unlock()
			if len(r.plugins.prepared) != n {
				t.Errorf("PreStartContainer: %v, want %d calls", r.plugins.prepared, n)
			}
		}
		r.bind("a", sharing("main", "d0"))
		r.bind("b", claims(app(gpu, 2), "x", "d0", "d1"))
		expect(2) // d0, and d1 alone
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1]")
		for i, pod := range []string{"a", "b"} {
			one := running(fmt.Sprint(i), pod, "main")
			if got := r.RuntimeCreating(one); got.State != device.Ready {
				t.Errorf("%s: %+v", pod, got)
			}
			r.RuntimeInjected(one)
		}
		expect(2)
		r.RuntimeStopped(running("0", "a", "main"))
		expect(2) // b has d0
		r.RuntimeStopped(running("1", "b", "main"))
		expect(3) // d0 and d1 for b
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		expect(3)
		if got := r.RuntimeCreating(running("2", "a", "main")); got.State != device.Ready {
			t.Errorf("%+v", got)
		}
		r.RuntimeInjected(running("2", "a", "main"))
		r.RuntimeStopped(running("2", "a", "main"))
		expect(4) // it has used d0 since it was prepared
	})
}

func TestSharing_DeviceFails_EachPodIsTold(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("a", sharing("main", "d0"))
		r.bind("b", sharing("main", "d0"))
		r.plugins.stock(gpu, 2, 0)
		r.after(time.Minute)
		r.check()
		r.plugins.mu.Lock()
		got := slices.Sorted(slices.Values(r.plugins.told))
		r.plugins.mu.Unlock()
		if want := []string{
			"a failed for long vendor.com/gpu/d0", "a failed vendor.com/gpu/d0", "a has its devices", "b failed for long vendor.com/gpu/d0", "b failed vendor.com/gpu/d0", "b has its devices",
		}; !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
		if n := r.metric("devmgrd_device_failures_total", string(gpu)); n != 1 {
			t.Errorf("%v failures, want 1", n)
		}
	})
}

// A pod is deleted by force whose container runs with the device, and whose assignment could not be saved.
func TestSharing_AttemptFailsAfterStateFileLost_RunningContainerKeepsTheDevice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.mute = true
		r.plugins.stock(gpu, 2)
		stamped := func(id, pod string) device.Running {
			one := running(id, pod, "main")
			one.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
			return one
		}
		r.RuntimeSynced([]device.Running{stamped("1", "a"), stamped("2", "b")}, nil)
		r.bind("a", sharing("main", "d0"))
		r.check()
		r.disk.fails(func() {})
		r.Bind(pod("b", sharing("main", "d0")))
		r.check()
		r.Drop("b")
		r.check()
		r.disk.fails(nil)
		r.after(time.Minute)
		r.Drop("a")
		r.RuntimeStopped(stamped("1", "a"))
		r.after(time.Minute)
		r.check()
		r.bind("z", claims(app(gpu, 1), "z", "d0"))
		r.expect("z", "main", "waiting DeviceInUse")
		r.RuntimeStopped(stamped("2", "b"))
		r.expect("z", "main", "ready vendor.com/gpu[d0]")
	})
}

// A device that another container used while this one's other devices were prepared is prepared before the start.
func TestSharing_DeviceUsedSincePreparation_IsPrepared(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		one := running("0", "a", "main")
		if got := r.RuntimeCreating(one); got.State != device.Ready {
			t.Errorf("%+v", got)
		}
		r.RuntimeInjected(one)
		r.bind("b", claims(app(gpu, 2), "x", "d0", "d1"))
		r.check()
		r.Drop("a")
		r.RuntimeStopped(one)
		r.check()
		r.plugins.prepared = nil
		got := r.RuntimeCreating(running("1", "b", "main"))
		r.check()
		if got.State == device.Ready || len(r.plugins.prepared) == 0 {
			t.Errorf("b starts with d0 unprepared: %v, prepared %v", got.State, r.plugins.prepared)
		}
	})
}

func TestPreparation_Ends_IsAChange(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.plugins.prepares(func(context.Context) error { time.Sleep(time.Second); return nil })
		r.bind("a", sharing("main", "d0"))
		updated := r.Updated()
		r.expect("a", "main", "busy Preparing")
		r.after(time.Minute)
		select {
		case <-updated:
		default:
			t.Error("there is no change")
		}
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

func TestSharing_HolderReturns_WaitingPodIsServed(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.RuntimeCreating(running("2", "a", "main"))
		r.Drop("a")
		r.bind("b", sharing("main", "d0"))
		r.expect("b", "main", "waiting DeviceInUse")
		r.check()
		r.bind("a", sharing("main", "d0"))
		r.check()
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// The device of the first pod is not released: it has processes.
func TestSharing_PodEndsWhileGrantedAgain_TheOtherIsServed(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.bind("b", sharing("main", "d0"))
		r.check()
		r.boot = "second"
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.after(time.Second)
		r.plugins.haunt("a")
		r.Drop("a")
		r.after(time.Minute)
		r.check()
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.plugins.haunt()
	}, func(r *harness) { r.boot = "first" })
}

func TestSharing_GrantOfAnotherCannotBeUsed_PluginIsAsked(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.bind("b", sharing("main", "d0"))
		r.RuntimeCreating(running("1", "a", "main"))
		r.RuntimeInjected(running("1", "a", "main"))
		if err := r.RuntimeStarting(context.Background(), running("1", "a", "main")); err != nil {
			t.Error(err)
		}
		r.asked()
		for range 3 {
			r.Refused(device.Container{Pod: "b", Name: "main"}, device.Wait{Reason: device.HostDeviceMissing, Message: "gone"}, true)
			r.after(time.Minute)
			r.expect("b", "main", "ready vendor.com/gpu[d0]")
		}
		if got := r.asked(); len(got) != 3 {
			t.Errorf("asked %q", got)
		}
	})
}

func TestSharing_HolderReportedAfterRestart_WaitingPodIsServed(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.bind("a", sharing("main", "d0"))
		r.after(time.Minute)
		r.plugins.stock(gpu, 1, 0)
		r.bind("c", sharing("main", "d0"))
		r.after(time.Minute)
		r.expect("c", "main", "waiting DeviceUnhealthy")
		r.restart()
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.check()
		r.Replace([]device.PodDemand{pod("c", sharing("main", "d0")), pod("a", sharing("main", "d0"))})
		r.check()
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
	})
}

func TestSharing_FirstPodEndsWhileDeviceFails_TheOtherIsTold(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"before", "running", "after"} {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 2)
			r.RuntimeSynced(nil, nil)
			r.bind("a", sharing("main", "d0"))
			r.bind("b", sharing("main", "d0"))
			r.RuntimeCreating(running("1", "a", "main"))
			if when == "before" {
				r.Drop("a") // its container runs on
			}
			r.plugins.stock(gpu, 2, 0)
			r.after(2 * time.Second)
			if when != "before" {
				r.Drop("a")
			}
			if when == "after" {
				r.RuntimeStopped(running("1", "a", "main"))
			}
			r.after(time.Minute)
			r.check()
			n := 0
			for _, told := range r.plugins.told {
				if told == "b failed for long vendor.com/gpu/d0" {
					n++
				}
			}
			if n != 1 {
				t.Errorf("%s: told %q", when, r.plugins.told)
			}
			if n := r.metric("devmgrd_device_failures_total", string(gpu)); n != 1 {
				t.Errorf("%s: %v failures, want 1", when, n)
			}
		})
	}
}

// Both pods with a failed device have ended, and the first has left it, when the other one returns: the device is still failed.
func TestSharing_BothPodsEndWhileDeviceFails_TheOneThatReturnsHasTheFailure(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.bind("b", sharing("main", "d0"))
		for i, pod := range []string{"a", "b"} {
			r.RuntimeCreating(running(fmt.Sprint(i), pod, "main"))
		}
		r.plugins.stock(gpu, 2, 0)
		r.after(time.Minute)
		r.Drop("a")
		r.Drop("b")
		r.RuntimeStopped(running("0", "a", "main"))
		r.after(time.Minute)
		if p := r.PodByUID("a"); p.PodAllocation != nil {
			t.Fatalf("pod a is not gone: %+v", p)
		}
		r.bind("b", sharing("main", "d0"))
		if got := r.health("b"); got != "known DeviceUnhealthy d0+0" {
			t.Errorf("pod b: %s", got)
		}
		if n := r.metric("devmgrd_device_failures_total", string(gpu)); n != 1 {
			t.Errorf("%v failures, want 1", n)
		}
	})
}

// Only the newer of the two grants shows that the devices are different.
func TestSharing_PodWithTheNewerGrantLeaves_DeviceAddedBetweenIsWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.recalls(gpu, at("d0", 100))
		r.RuntimeSynced(nil, nil)
		r.bind("a", sharing("main", "d0"))
		r.plugins.continues(gpu, at("d0", 100), at("d1", 200))
		r.bind("b", sharing("main", "d0"))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.plugins.continues(gpu, at("d1", 200))
		r.check()
		r.Drop("b")
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.check()
	})
}

// The pod that stays has not used the device since the boot, as the plugin of its other resource is away.
func TestSharing_OnlyUserOfAnUnlistedDeviceLeaves_NothingIsWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.boot = "1"
		r.restart()
		r.plugins.recalls(gpu, at("d0", 100))
		r.plugins.stock(nic, 1)
		r.RuntimeSynced(nil, nil)
		both := sharing("main", "d0")
		both.Wants[nic] = 1
		r.bind("a", both)
		r.bind("b", sharing("main", "d0"))
		r.plugins.offer(nic, func(o *device.Offer) { o.State = device.Lost })
		r.reboot()
		r.bind("a", both)
		r.bind("b", sharing("main", "d0"))
		r.plugins.continues(gpu, at("d0", 100))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.plugins.continues(gpu, at("d1", 200))
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.Drop("b")
		r.expect("c", "main", "ready vendor.com/gpu[d1]")
		r.check()
	})
}
