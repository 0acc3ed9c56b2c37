package allocator_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
)

type numbers = map[device.ResourceName]int

func TestTwoPodsGetDifferentDevices(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.published(numbers{gpu: 3}) // never less than the pods on the node ask for

		r.RuntimeSynced(nil, nil)
		r.Drop("a")
		r.expect("c", "main", "ready vendor.com/gpu[d0]")
		r.expect("a", "main", "unknown")
		r.published(numbers{gpu: 2})
	})
}

func TestAContainerWithoutDevicesIsFree(t *testing.T) {
	run(t, func(r *rig) {
		r.expect("p", "main", "unknown")
		r.bind("p")
		r.expect("p", "main", "free")
		r.bind("q", app(gpu, 1))
		r.expect("q", "other", "free")
		r.expect("q", "main", "waiting PluginMissing")
		r.published(numbers{}) // no plugin has ever listed it: it is not ours to publish
	})
}

func TestWaitingEndsWhenThePluginIsThere(t *testing.T) {
	run(t, func(r *rig) {
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting PluginMissing")
		r.shop.offer(gpu, func(o *device.Offer) {})
		r.expect("a", "main", "waiting PluginMissing") // registered, nothing listed
		r.shop.stock(gpu, 1, 0)
		r.expect("a", "main", "waiting DeviceUnhealthy")
		r.shop.stock(gpu, 1)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		// Its owner is told of each cause once, and of the end.
		if want := []string{"a waits: PluginMissing", "a waits: PluginMissing", "a waits: DeviceUnhealthy", "a has its devices"}; !slices.Equal(r.shop.told, want) {
			t.Errorf("told %q, want %q", r.shop.told, want)
		}
	})
}

func TestStaleAndLostOffersGiveNothingAndKeepTheirNumbers(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 4)
		r.bind("a", app(gpu, 1))
		r.shop.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting PluginStale")
		r.published(numbers{gpu: 4})
		r.shop.offer(gpu, func(o *device.Offer) { o.State = device.Lost })
		r.expect("b", "main", "waiting PluginMissing")
		r.published(numbers{gpu: 2}) // one assigned, and two asked for
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.shop.stock(gpu, 4)
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
	})
}

func TestVanishedAndUnhealthyDevicesInUseCount(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 3)
		r.bind("a", app(gpu, 1))
		r.shop.stock(gpu, 3, 0, 1)
		r.published(numbers{gpu: 2}) // d0 is in use, d2 is healthy
		r.shop.offer(gpu, func(o *device.Offer) { o.Inventory.Devices = o.Inventory.Devices[1:] })
		r.published(numbers{gpu: 2})
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.RuntimeSynced(nil, nil)
		r.Drop("a")
		r.published(numbers{gpu: 1})
	})
}

func TestAllOrNothing(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		r.shop.stock(nic, 1)
		r.shop.answers(func(_ context.Context, _ device.Pod, res device.ResourceName) error {
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

		r.shop.stock(gpu, 2)
		r.shop.answers(nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d1] vendor.com/nic[d0]")
	})
}

func TestAFailingPluginIsTriedAgainWithLongerAndLongerPauses(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		r.shop.answers(func(context.Context, device.Pod, device.ResourceName) error { return errPlugin })
		r.bind("a", app(gpu, 1))
		r.after(time.Minute)
		// at 0, 1, 3, 7, 15, 31 and 61 s
		if n := len(r.shop.asked); n != 6 {
			t.Errorf("asked %d times in a minute, want 6", n)
		}
	})
}

func TestAHungPluginHoldsUpNobodyElse(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 8)
		r.shop.stock(nic, 8)
		r.shop.answers(func(ctx context.Context, _ device.Pod, res device.ResourceName) error {
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
	run(t, func(r *rig) {
		for _, name := range []string{"d", "b", "c", "a"} {
			r.bind(name, app(gpu, 1))
		}
		r.shop.stock(gpu, 2)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.expect("d", "main", "waiting NotEnoughDevices")
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1)), pod("d", app(gpu, 1))})
		r.RuntimeSynced([]device.Running{running("1", "b", "main")}, nil)
		r.expect("d", "main", "ready vendor.com/gpu[d0]")
	})
}

// A big demand that does not fit never holds up a smaller one that does.
func TestNobodyIsHeldUp(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 2)
		r.bind("a", app(gpu, 3))
		r.bind("b", app(gpu, 2))
		r.expect("a", "main", "waiting NotEnoughDevices")
		r.expect("b", "main", "ready vendor.com/gpu[d0 d1]")
	})
}

func TestInitContainersHandTheirDevicesOn(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 6)
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

func TestARestartGivesTheSameAnswerWithoutAskingAgain(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 2)
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
		if n := len(r.shop.asked); n != 1 {
			t.Errorf("Allocate was called %d times, want once: %v", n, r.shop.asked)
		}
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
	})
}

func TestAPodThatGoesDuringItsAllocationLeavesNothing(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		gate := make(chan struct{})
		r.shop.answers(func(context.Context, device.Pod, device.ResourceName) error { <-gate; return nil })
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

// One commit makes a pod's assignments durable, and one call each its devices usable.
func TestOneCallPerResourceAndContainer(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 8)
		r.shop.stock(nic, 8)
		both := wants("x", device.App, gpu, 2)
		both.Wants[nic] = 1
		r.bind("a", both, wants("y", device.App, gpu, 1))
		want := []string{"a/x vendor.com/gpu [d0 d1]", "a/x vendor.com/nic [d0]", "a/y vendor.com/gpu [d2]"}
		if !slices.Equal(r.shop.asked, want) {
			t.Errorf("asked %v, want %v", r.shop.asked, want)
		}
	})
}

// After a restart a resource may not be ignored any more: pods that passed have to wait now.
func TestADemandThatGrows(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		r.bind("a")
		r.expect("a", "main", "free")
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.published(numbers{gpu: 1})

		gate := make(chan struct{})
		r.shop.stock(nic, 3)
		r.shop.answers(func(context.Context, device.Pod, device.ResourceName) error { <-gate; return errPlugin })
		r.bind("b", app(nic, 1))
		r.bind("b", app(nic, 2)) // while the plugin is being asked
		r.shop.answers(nil)
		close(gate)
		r.expect("b", "main", "ready vendor.com/nic[d0 d1]")
		r.published(numbers{gpu: 1, nic: 3})
	})
}

// The disk fails while a pod is being forgotten, and the API changes its mind meanwhile.
func TestForgettingFailsInTheMiddle(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.books.fails(func() { // gone, back, and gone again
			r.Bind(pod("a", app(gpu, 1)))
			r.Drop("a")
		})
		r.Drop("a")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.books.fails(nil)
		r.after(2 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")

		r.bind("c", app(nic, 1))
		r.after(2 * time.Second) // it is remembered
		r.books.fails(func() { r.Bind(pod("c", app(nic, 1))) })
		r.Drop("c")
		r.after(time.Millisecond)
		r.books.fails(nil)
		r.shop.stock(nic, 1)
		r.after(2 * time.Second)
		r.expect("c", "main", "ready vendor.com/nic[d0]")
	})
}

// An assignment that cannot be written is none; it is tried again as soon as the books can be written.
func TestADiskThatFails(t *testing.T) {
	run(t, func(r *rig) {
		r.shop.stock(gpu, 1)
		r.books.fails(func() {})
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting StoreUnavailable")
		r.check()
		r.after(20 * time.Second) // its pauses have grown
		r.books.fails(nil)
		r.after(2 * time.Second)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

// The numbers are complete once every pod has been heard of.
func TestComplete(t *testing.T) {
	run(t, func(r *rig) {
		r.bind("a", app(gpu, 1))
		if r.Complete() {
			t.Error("complete before the first full list")
		}
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1))})
		if !r.Complete() {
			t.Error("not complete after a full list")
		}
	})
}

// TestChurn plays many random steps and checks everything after each.
func TestChurn(t *testing.T) {
	for seed := range uint64(10) {
		places := []allocator.Topology{{}, {Policy: allocator.BestEffort}, {Policy: allocator.Restricted, Scope: allocator.PerPod}, {Policy: allocator.SingleNUMA}}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			run(t, func(r *rig) { churn(r, seed) }, func(r *rig) { r.topology = places[seed%4] })
		})
	}
}
