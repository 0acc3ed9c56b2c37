package allocator_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// lists makes a resource's plugin list these devices, healthy.
func (s *fakePlugins) lists(r device.ResourceName, ids ...string) {
	s.offer(r, func(o *device.Offer) {
		o.Inventory.Devices, o.State, o.Reported = dated(*o, ids), device.Serving, true
	})
}

// dated returns healthy devices with these IDs. As in the registry, a device missing from the previous list was added now.
func dated(before device.Offer, ids []string) []device.Device {
	known := map[device.ID]int64{}
	for _, d := range before.Inventory.Devices {
		known[d.ID] = d.Added
	}
	devices := make([]device.Device, len(ids))
	for i, id := range slices.Sorted(slices.Values(ids)) {
		devices[i] = device.Device{ID: device.ID(id), Healthy: true}
		if added, listed := known[devices[i].ID]; listed {
			devices[i].Added = added
		} else if before.Reported {
			devices[i].Added = time.Now().UnixNano()
		}
	}
	return devices
}

func numbered(prefix string, n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return ids
}

func TestRenamedDevices_AllInUse_NoneIsGivenTwice(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.lists(gpu, numbered("d", 8)...)
		r.RuntimeSynced(nil, nil)
		for i := range 8 {
			r.bind(fmt.Sprintf("p%d", i), app(gpu, 1))
		}
		r.published(map[device.ResourceName]int{gpu: 8})
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		r.after(time.Second)
		r.plugins.lists(gpu, numbered("GPU-", 8)...)
		r.published(map[device.ResourceName]int{gpu: 8})
		r.bind("q", app(gpu, 1))
		r.expect("q", "main", "waiting NotEnoughDevices")
		if n := r.metric("devmgrd_devices", string(gpu), "withheld"); n != 8 {
			t.Errorf("%v devices are counted as withheld, want 8", n)
		}
		r.restart() // changes nothing
		r.RuntimeSynced(nil, nil)
		r.expect("q", "main", "waiting NotEnoughDevices")
		r.published(map[device.ResourceName]int{gpu: 8})

		for i := range 8 {
			r.Drop(device.PodUID(fmt.Sprintf("p%d", i)))
			r.after(time.Second)
			want := "waiting NotEnoughDevices"
			if i == 7 {
				want = "ready vendor.com/gpu[GPU-0]"
			}
			r.expect("q", "main", want)
		}
		r.published(map[device.ResourceName]int{gpu: 8})
	})
}

func TestRenamedDevices_SomeInUse_AllNewOnesWait(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.lists(gpu, numbered("d", 8)...)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 3))
		r.after(time.Second)
		r.plugins.lists(gpu, numbered("GPU-", 8)...)
		r.published(map[device.ResourceName]int{gpu: 3}) // the scheduler has none to give
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting NotEnoughDevices")
		if w := r.Readiness(device.Container{Pod: "b", Name: "main"}).Wait.Message; !strings.Contains(w, "8 withheld") {
			t.Errorf("b waits with %q", w)
		}
		r.Drop("a")
		r.expect("b", "main", "ready vendor.com/gpu[GPU-0]")
	})
}

func TestUnpluggedDevice_OthersAreGivenOut(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.lists(gpu, "a", "b", "c")
		r.RuntimeSynced(nil, nil)
		r.bind("p", app(gpu, 1))
		r.expect("p", "main", "ready vendor.com/gpu[a]")
		r.after(time.Second)
		r.plugins.lists(gpu, "b", "c")
		r.published(map[device.ResourceName]int{gpu: 3}) // the one in use, and two more
		r.bind("q", app(gpu, 2))
		r.expect("q", "main", "ready vendor.com/gpu[b c]")
		r.plugins.lists(gpu, "b", "c", "d") // replaced or renamed: unknown
		r.after(time.Second)
		r.bind("s", app(gpu, 1))
		r.expect("s", "main", "waiting NotEnoughDevices")
		r.Drop("p")
		r.expect("s", "main", "ready vendor.com/gpu[d]")
	})
}

// NVIDIA's plugin lists the replicas of a shared GPU-x as GPU-x::0, GPU-x::1 and so on.
func TestTimeSlicing_SwitchedOnAndOff_OtherDevicesStayAvailable(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		shared := []string{"GPU-x::0", "GPU-x::1", "GPU-y::0", "GPU-y::1"}
		r.plugins.lists(gpu, "GPU-x", "GPU-y")
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[GPU-x]")
		r.after(time.Second)
		r.plugins.lists(gpu, shared...)
		r.published(map[device.ResourceName]int{gpu: 3})
		r.bind("b", app(gpu, 2))
		r.expect("b", "main", "ready vendor.com/gpu[GPU-y::0 GPU-y::1]")
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting NotEnoughDevices")
		r.Drop("a")
		r.expect("c", "main", "ready vendor.com/gpu[GPU-x::0]")
		r.after(time.Second)

		r.Drop("b")
		r.plugins.lists(gpu, "GPU-x", "GPU-y")
		r.after(time.Second)
		r.bind("d", app(gpu, 1))
		r.expect("d", "main", "ready vendor.com/gpu[GPU-y]")
		r.bind("e", app(gpu, 1))
		r.expect("e", "main", "waiting NotEnoughDevices")
		r.Drop("c")
		r.expect("e", "main", "ready vendor.com/gpu[GPU-x]")
	})
}

// A replica that is no longer listed was once listed together with the current ones: they share one GPU on purpose.
func TestTimeSlicing_FewerReplicas_NoneIsWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.lists(gpu, "GPU-x::0", "GPU-x::1", "GPU-x::2")
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 3))
		r.bind("b", app(gpu, 1))
		r.after(time.Second)
		r.plugins.lists(gpu, "GPU-x::0", "GPU-x::1")
		r.after(time.Second)
		if n := r.metric("devmgrd_devices", string(gpu), "withheld"); n != 0 {
			t.Errorf("%v devices are withheld", n)
		}
	})
}

func TestFirstListEmpty_FullListLater_NothingIsWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.lists(gpu, "a", "b")
		r.RuntimeSynced(nil, nil)
		r.bind("p", app(gpu, 1))
		var was []device.Device
		r.plugins.offer(gpu, func(o *device.Offer) { was, o.Inventory.Devices = o.Inventory.Devices, nil })
		r.after(time.Second)
		r.plugins.offer(gpu, func(o *device.Offer) { o.Inventory.Devices = was })
		r.published(map[device.ResourceName]int{gpu: 2})
		r.bind("q", app(gpu, 1))
		r.expect("q", "main", "ready vendor.com/gpu[b]")
	})
}

// The scheduler does not know the devices of a static pod.
func TestRenamedDevices_UsedByALocalPod_AreNotPublished(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		local := pod("l", app(gpu, 1))
		local.Local = true
		r.plugins.lists(gpu, "a", "b")
		r.RuntimeSynced([]device.Running{running("1", "l", "main")}, []device.PodDemand{local})
		r.expect("l", "main", "ready vendor.com/gpu[a]")
		r.published(map[device.ResourceName]int{gpu: 1})
		r.after(time.Second)
		r.plugins.lists(gpu, "c", "d")
		r.published(map[device.ResourceName]int{gpu: 0})
		r.plugins.lists(gpu, "b")
		r.after(time.Second)
	})
}

func TestPodBoundPastTheScheduler_RaisesNoNumber(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.Replace(nil)
		r.plugins.stock(gpu, 8)
		r.RuntimeSynced(nil, nil)
		r.published(map[device.ResourceName]int{gpu: 8})
		r.bind("a", app(gpu, 1000))
		r.published(map[device.ResourceName]int{gpu: 8})
		r.bind("b", app(gpu, 8))
		r.plugins.stock(gpu, 8, 0, 1) // pods bound and not yet admitted hold up the capacity
		r.published(map[device.ResourceName]int{gpu: 8})
		r.Drop("b")
		r.Drop("a")
		r.after(time.Second)
		r.published(map[device.ResourceName]int{gpu: 6})

		admitted := pod("c", app(gpu, 7))
		r.Bind(admitted)
		r.published(map[device.ResourceName]int{gpu: 6})
		admitted.Demands[0].Wants = map[device.ResourceName]int{gpu: 7}
		admitted.Admitted = true // the kubelet has written its status
		r.Bind(admitted)
		r.published(map[device.ResourceName]int{gpu: 7})
	})
}

// The stamp of a container missing from the state file names a device that the plugin does not list: the list at the time of
// its grant is unknown.
func TestUnlistedStamp_AllDevicesAreWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		old := running("1", "old", "main")
		old.Stamp = map[device.ResourceName][]device.ID{gpu: {"gone"}}
		r.RuntimeSynced([]device.Running{old}, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting NotEnoughDevices")
		r.check()
		r.RuntimeStopped(old)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

func TestRenamedDevices_DuringAllocate_AreWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.lists(gpu, numbered("d", 2)...)
		r.RuntimeSynced(nil, nil)
		gate := make(chan struct{})
		r.plugins.answers(func(_ context.Context, p device.Pod, _ device.ResourceName) error {
			if p.Name == "a" {
				<-gate
			}
			return nil
		})
		r.bind("a", app(gpu, 1))
		r.after(time.Second)
		r.plugins.lists(gpu, numbered("GPU-", 2)...)
		r.after(time.Second)
		close(gate)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.bind("b", app(gpu, 2))
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.Drop("a")
		r.expect("b", "main", "ready vendor.com/gpu[GPU-0 GPU-1]")
	})
}

// A grant of before the boot is asked for again, and the plugin renames its devices before it answers.
func TestRenamedDevices_WhileAGrantIsGivenAgain_NoneIsGivenTwice(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errPlugin} {
		run(t, func(r *harness) {
			r.plugins.lists(gpu, "old-d0")
			r.RuntimeSynced(nil, nil)
			r.bind("a", app(gpu, 1))
			start(r, running("1", "a", "main"))
			r.reboot()
			r.plugins.answers(func(_ context.Context, p device.Pod, _ device.ResourceName) error {
				if p.Name == "a" {
					time.Sleep(10 * time.Second)
					return err
				}
				return nil
			})
			r.plugins.lists(gpu, "old-d0")
			r.after(time.Second)
			r.plugins.lists(gpu, "new-d0")
			r.bind("b", app(gpu, 1))
			r.after(time.Second)
			r.expect("b", "main", "waiting NotEnoughDevices")
			r.after(20 * time.Second)
			if err == nil {
				r.expect("a", "main", "ready vendor.com/gpu[old-d0]")
				r.expect("b", "main", "waiting NotEnoughDevices")
			} else {
				r.expect("b", "main", "ready vendor.com/gpu[new-d0]")
			}
		}, func(r *harness) { r.boot = "boot" })
	}
}
