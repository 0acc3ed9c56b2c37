package allocator_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
)

type numbers = map[device.ResourceName]int

func TestTwoPodsGetDifferentDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.Replace(nil)
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.published(numbers{gpu: 2})
		admitted := pod("c", app(gpu, 1))
		admitted.Admitted = true
		r.Bind(admitted)
		r.published(numbers{gpu: 2}) // the other two may not have been admitted
		r.RuntimeCreating(running("1", "a", "main"))
		r.RuntimeCreating(running("2", "b", "main"))
		r.published(numbers{gpu: 3}) // never less than admitted pods ask for

		r.RuntimeSynced(nil, nil)
		r.Drop("a")
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
		r.expect("a", "main", "unknown")
		r.published(numbers{gpu: 2})
	})
}

// Devices in use that the plugin lists no longer stand among the others, in the order of their names. A reader may stop at any of them.
func TestEachDevice_SomeAreNotListed_OrderIsThatOfNames(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.Replace(nil)
		r.plugins.stock(gpu, 3)
		r.bind("a", app(gpu, 3))
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1 d2]")
		r.plugins.offer(gpu, func(o *device.Offer) { o.Inventory.Devices = []device.Device{{ID: "d1", Healthy: true}} })
		synctest.Wait()
		for n, want := range []string{"", "d0 false", "d0 false, d1 true", "d0 false, d1 true, d2 false", "d0 false, d1 true, d2 false"} {
			var got []string
			for d := range r.EachDevice("") {
				if len(got) == n {
					break
				}
				got = append(got, fmt.Sprint(d.ID, " ", d.Listed))
			}
			if all := strings.Join(got, ", "); all != want {
				t.Errorf("the first %d are %q, want %q", n, all, want)
			}
		}
	})
}

func TestAContainerWithoutDevicesIsFree(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.expect("p", "main", "unknown")
		r.bind("p")
		r.expect("p", "main", "free")
		r.bind("q", app(gpu, 1))
		r.expect("q", "other", "free")
		r.expect("q", "main", "waiting PluginMissing")
		r.published(numbers{}) // no plugin has ever listed the resource: devmgrd does not publish it
	})
}

func TestWaitingEndsWhenThePluginIsThere(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting PluginMissing")
		r.plugins.offer(gpu, func(o *device.Offer) {})
		r.expect("a", "main", "waiting PluginMissing") // registered, nothing listed
		r.plugins.stock(gpu, 1, 0)
		r.expect("a", "main", "waiting DeviceUnhealthy")
		r.plugins.stock(gpu, 1)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		// The owner receives one event for each cause, and one for the end.
		if want := []string{"a waits: PluginMissing", "a waits: PluginMissing", "a waits: DeviceUnhealthy", "a has its devices"}; !slices.Equal(r.plugins.told, want) {
			t.Errorf("told %q, want %q", r.plugins.told, want)
		}
	})
}

// Pods that come and go change how many devices are free. One that waits for more is announced once.
func TestWaiting_NumberOfFreeDevicesChanges_IsAnnouncedOnce(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 8)
		r.bind("w", app(gpu, 9))
		r.after(time.Second)
		messages := map[string]bool{}
		for range 10 {
			r.bind("a", app(gpu, 1))
			r.bind("b", app(gpu, 1))
			r.after(time.Second)
			for _, uid := range []device.PodUID{"a", "b"} {
				r.Drop(uid)
				r.after(time.Second)
				messages[r.PodByUID("w").Wait.Message] = true
			}
		}
		announced := 0
		for _, line := range r.plugins.told {
			if line == "w waits: NotEnoughDevices" {
				announced++
			}
		}
		if announced != 1 || len(messages) < 2 {
			t.Errorf("%d announcements of %v: %q", announced, messages, r.plugins.told)
		}
	})
}

func TestStaleAndLostOffersGiveNothingAndKeepTheirNumbers(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.bind("a", app(gpu, 1))
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting PluginStale")
		r.published(numbers{gpu: 4})
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Lost })
		r.expect("b", "main", "waiting PluginMissing")
		r.published(numbers{gpu: 1}) // one assigned
		if got := r.Resources().Requested(); !maps.Equal(got, numbers{gpu: 2}) {
			t.Errorf("bound pods ask for %v, want 2", got)
		}
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.plugins.stock(gpu, 4)
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
	})
}

func TestVanishedAndUnhealthyDevicesInUseCount(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.bind("a", app(gpu, 1))
		r.plugins.stock(gpu, 3, 0, 1)
		r.published(numbers{gpu: 2}) // d0 is in use, d2 is healthy
		r.plugins.offer(gpu, func(o *device.Offer) { o.Inventory.Devices = o.Inventory.Devices[1:] })
		r.published(numbers{gpu: 2})
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.RuntimeSynced(nil, nil)
		r.Drop("a")
		r.published(numbers{gpu: 1})
	})
}

// With no device in use, capacity and allocatable are the number of healthy devices.
func TestNumbersWithNothingInUse(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		state := func(res device.ResourceName, s device.OfferState) {
			r.plugins.offer(res, func(o *device.Offer) { o.State = s })
		}
		for _, step := range []struct {
			what string
			do   func()
			want string // each resource's number, and its devices by the metric
		}{
			{"one of three is unhealthy", func() { r.plugins.stock(gpu, 3, 2) }, "gpu 2: 2 free, 1 unhealthy"},
			{"the unhealthy one vanishes", func() { r.plugins.stock(gpu, 2) }, "gpu 2: 2 free"},
			{"it is back, and another is unhealthy too", func() { r.plugins.stock(gpu, 3, 1, 2) }, "gpu 1: 1 free, 2 unhealthy"},
			{"the healthy one vanishes", func() {
				r.plugins.offer(gpu, func(o *device.Offer) { o.Inventory.Devices = o.Inventory.Devices[1:] })
			}, "gpu 0: 2 unhealthy"},
			{"another resource joins", func() { r.plugins.stock(nic, 3, 1, 2) }, "gpu 0: 2 unhealthy; nic 1: 1 free, 2 unhealthy"},
			{"all get well", func() { r.plugins.stock(gpu, 3) }, "gpu 3: 3 free; nic 1: 1 free, 2 unhealthy"},
			{"a plugin goes", func() { state(gpu, device.Stale) }, "gpu 3: 3 stale; nic 1: 1 free, 2 unhealthy"},
			{"lost", func() { state(gpu, device.Lost) }, "gpu 0: 3 stale; nic 1: 1 free, 2 unhealthy"},
			{"the other one goes", func() { state(nic, device.Stale) }, "gpu 0: 3 stale; nic 1: 1 stale, 2 unhealthy"},
			{"devmgrd restarts", r.restart, "gpu 0: 3 stale; nic 1: 1 stale, 2 unhealthy"},
			{"lost too", func() { state(nic, device.Lost) }, "gpu 0: 3 stale; nic 0: 1 stale, 2 unhealthy"},
			{"one is back with an empty list", func() { r.plugins.stock(nic, 0) }, "gpu 0: 3 stale; nic 0:"},
			{"the other one as it was", func() { state(gpu, device.Serving) }, "gpu 3: 3 free; nic 0:"},
			{"its list is empty now", func() { r.plugins.stock(gpu, 0) }, "gpu 0:; nic 0:"},
		} {
			step.do()
			synctest.Wait()
			var all []string
			numbers := r.Resources().Capacity()
			for _, res := range slices.Sorted(maps.Keys(numbers)) {
				var states []string
				for _, s := range []string{"free", "stale", "assigned", "quarantined", "unhealthy"} {
					if n := r.metric("devmgrd_devices", string(res), s); n > 0 {
						states = append(states, fmt.Sprint(n, " ", s))
					}
				}
				text := fmt.Sprintf("%s %d: %s", strings.TrimPrefix(string(res), "vendor.com/"), numbers[res], strings.Join(states, ", "))
				all = append(all, strings.TrimSpace(text))
			}
			if got := strings.Join(all, "; "); got != step.want {
				t.Errorf("%s: %q, want %q", step.what, got, step.want)
			}
			r.check()
		}
	})
}

func TestAllOrNothing(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.stock(nic, 1)
		r.plugins.answers(func(_ context.Context, _ device.Pod, res device.ResourceName) error {
			if res == nic {
				return device.Refuse(device.PluginError, errPlugin, "Allocate of %s", res)
			}
			return nil
		})
		both := app(gpu, 1)
		both.Wants[nic] = 1
		r.bind("a", both)
		r.expect("a", "main", "waiting PluginError")
		r.bind("b", app(gpu, 1)) // the first plugin's device is free again
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()

		r.plugins.stock(gpu, 2)
		r.plugins.answers(nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d1] vendor.com/nic[d0]")
	})
}

func TestAFailingPluginIsTriedAgainWithLongerAndLongerPauses(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { return errPlugin })
		r.bind("a", app(gpu, 1))
		r.after(time.Minute)
		// at 0, 1, 3, 7, 15, 31 and 61 s
		if n := len(r.plugins.asked); n != 6 {
			t.Errorf("asked %d times in a minute, want 6", n)
		}
	})
}

func TestAHungPluginHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 8)
		r.plugins.stock(nic, 8)
		r.plugins.answers(func(ctx context.Context, _ device.Pod, res device.ResourceName) error {
			if res == gpu {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		})
		r.bind("a", app(gpu, 1))
		r.bind("b", app(nic, 1))
		r.bind("c")
		r.expect("a", "main", "busy Allocating")
		r.expect("b", "main", "ready vendor.com/nic[d0]")
		r.expect("c", "main", "free")
		r.stop()
	})
}

func TestOldestFirst(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		for _, name := range []string{"d", "b", "c", "a"} {
			r.bind(name, app(gpu, 1))
		}
		r.plugins.stock(gpu, 2)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.expect("d", "main", "waiting NotEnoughDevices")
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1)), pod("d", app(gpu, 1))})
		r.RuntimeSynced([]device.Running{running("1", "b", "main")}, nil)
		r.expect("d", "main", "ready vendor.com/gpu[d0]")
	})
}

// A large demand that does not fit never delays a smaller one that does.
func TestNobodyIsHeldUp(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 3))
		r.bind("b", app(gpu, 2))
		r.expect("a", "main", "waiting NotEnoughDevices")
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1]")
	})
}

func TestInitContainersHandTheirDevicesOn(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 6)
		r.bind("a", wants("i1", device.Init, gpu, 1), wants("i2", device.Init, gpu, 2),
			wants("c1", device.App, gpu, 1), wants("c2", device.App, gpu, 1))
		r.expect("a", "i1", "ready vendor.com/gpu[d0]")
		r.expect("a", "i2", "ready vendor.com/gpu[d0 d1]")
		r.expect("a", "c1", "ready vendor.com/gpu[d0]")
		r.expect("a", "c2", "ready vendor.com/gpu[d1]")
		r.bind("b", wants("i", device.Init, gpu, 1), wants("side", device.Sidecar, gpu, 1), wants("c", device.App, gpu, 1))
		r.expect("b", "i", "ready vendor.com/gpu[d2]")
		r.expect("b", "side", "ready vendor.com/gpu[d2]")
		r.expect("b", "c", "ready vendor.com/gpu[d3]")
		r.published(numbers{gpu: 6})
		r.check()
		r.restart()
		r.expect("b", "c", "ready vendor.com/gpu[d3]")
	})
}

// The plugin is away while devmgrd starts. Earlier assignments remain usable.
func TestARestartWithoutThePlugin(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.RuntimeSynced(nil, nil)
		a := pod("a", wants("init", device.Init, gpu, 1), app(gpu, 2))
		r.bind("a", a.Demands...)
		first := running("1", "a", "init")
		if st := r.RuntimeCreating(first); st.State != device.Ready {
			t.Fatalf("the init container stands %+v", st)
		}
		r.RuntimeInjected(first)
		r.RuntimeStopped(first) // it has ended, and its device is main's
		runs := []device.Running(nil)
		for i, away := range []struct {
			state  device.OfferState
			number int
			reason string
		}{{device.Stale, 3, "PluginStale"}, {device.Lost, 2, "PluginMissing"}} {
			r.plugins.offer(gpu, func(o *device.Offer) { o.State = away.state })
			r.restart()
			r.expect("a", "main", "ready vendor.com/gpu[d0 d1]") // before any report
			r.Replace([]device.PodDemand{a})
			r.RuntimeSynced(runs, nil)
			r.expect("a", "init", "ready vendor.com/gpu[d0]")
			r.published(numbers{gpu: away.number})
			r.check()
			for _, c := range runs { // containers that ran through the restart end, and are recreated
				r.RuntimeStopped(c)
			}
			next := running(fmt.Sprint("main", i), "a", "main")
			if st := r.RuntimeCreating(next); st.State != device.Ready || !slices.Equal(st.Assignment.Shares[0].IDs, []device.ID{"d0", "d1"}) {
				t.Errorf("%s: main is not made: %+v", away.state, st)
			}
			r.RuntimeInjected(next)
			runs = []device.Running{next}
			r.bind("b", app(gpu, 1)) // new pods wait
			r.expect("b", "main", "waiting "+away.reason)
			r.Drop("b")
			r.check()
		}
		if want := []string{"a/init vendor.com/gpu [d0]", "a/main vendor.com/gpu [d0 d1]"}; !slices.Equal(r.plugins.asked, want) {
			t.Errorf("asked %q, want %q", r.plugins.asked, want)
		}
		r.plugins.stock(gpu, 3)
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "ready vendor.com/gpu[d2]")
	})
}

func TestARestartGivesTheSameAnswerWithoutAskingAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.bind("w", app(nic, 1))
		r.bind("plain")
		r.after(2 * time.Second)
		r.restart()
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("w", "main", "waiting PluginMissing")
		r.expect("plain", "main", "free")
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1)), pod("w", app(nic, 1)), pod("plain")})
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		if n := len(r.plugins.asked); n != 1 {
			t.Errorf("Allocate was called %d times, want once: %v", n, r.plugins.asked)
		}
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
	})
}

func TestAPodThatGoesDuringItsAllocationLeavesNothing(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		gate := make(chan struct{})
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { <-gate; return nil })
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.Drop("a")
		r.published(numbers{gpu: 1})
		close(gate)
		r.expect("a", "main", "unknown")
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.check()
		r.Drop("b")
		r.Bind(pod("b", app(gpu, 1))) // gone and there again, before anything was done about it
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// One commit makes a pod's assignments durable, and one Allocate call per resource and container makes the devices usable.
func TestOneCallPerResourceAndContainer(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 8)
		r.plugins.stock(nic, 8)
		both := wants("x", device.App, gpu, 2)
		both.Wants[nic] = 1
		r.bind("a", both, wants("y", device.App, gpu, 1))
		want := []string{"a/x vendor.com/gpu [d0 d1]", "a/x vendor.com/nic [d0]", "a/y vendor.com/gpu [d2]"}
		if !slices.Equal(r.plugins.asked, want) {
			t.Errorf("asked %v, want %v", r.plugins.asked, want)
		}
	})
}

// After a restart a resource may no longer be ignored: pods that passed before must wait now.
func TestADemandThatGrows(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.bind("a")
		r.expect("a", "main", "free")
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.published(numbers{gpu: 1})

		gate := make(chan struct{})
		r.plugins.stock(nic, 3)
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { <-gate; return errPlugin })
		r.bind("b", app(nic, 1))
		r.bind("b", app(nic, 2)) // while the plugin is being asked
		r.plugins.answers(nil)
		close(gate)
		r.expect("b", "main", "ready vendor.com/nic[d1 d2]") // the plugin has refused d0
		r.published(numbers{gpu: 1, nic: 3})
	})
}

// The commit that forgets a pod fails, and the pod returns to the API meanwhile.
func TestForgettingFailsInTheMiddle(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.disk.fails(func() { // gone, back, and gone again
			r.Bind(pod("a", app(gpu, 1)))
			r.Drop("a")
		})
		r.Drop("a")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.disk.fails(nil)
		r.after(2 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")

		r.bind("c", app(nic, 1))
		r.after(2 * time.Second) // it is remembered
		r.disk.fails(func() { r.Bind(pod("c", app(nic, 1))) })
		r.Drop("c")
		r.after(time.Millisecond)
		r.disk.fails(nil)
		r.plugins.stock(nic, 1)
		r.after(2 * time.Second)
		r.expect("c", "main", "ready vendor.com/nic[d0]")
	})
}

// An assignment that cannot be written does not count; the allocator retries as soon as the state file is writable.
func TestADiskThatFails(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.disk.fails(func() {})
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting StoreUnavailable")
		r.check()
		r.after(20 * time.Second) // its pauses have grown
		r.disk.fails(nil)
		r.after(2 * time.Second)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

// The capacity is complete once every pod has been reported.
func TestComplete(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bind("a", app(gpu, 1))
		if r.Resources().PodsListed {
			t.Error("complete before the first full list")
		}
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1))})
		if !r.Resources().PodsListed {
			t.Error("not complete after a full list")
		}
	})
}

// TestChurn plays many random steps and checks everything after each.
func TestChurn(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		places := []allocator.Topology{{}, {Policy: placement.BestEffort}, {Policy: placement.Restricted, Scope: placement.PerPod}, {Policy: placement.SingleNUMA}}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, func(r *harness) { churn(r, seed) }, func(r *harness) {
				r.topology, r.suspends, r.mute, r.boot = places[seed%4], true, true, "boot"
				if seed%5 < 3 {
					gated(r)
				}
			})
		})
	}
}

// TestUnrest has plugins change a thousand devices without a pause. run checks everything at the end.
func TestUnrest(t *testing.T) {
	t.Parallel()
	for _, scope := range []allocator.Scope{placement.PerContainer, placement.PerPod} {
		t.Run(string(scope), func(t *testing.T) {
			run(t, unrest, func(r *harness) { r.topology = allocator.Topology{Policy: placement.SingleNUMA, Scope: scope} })
		})
	}
}
