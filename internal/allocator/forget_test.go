package allocator_test

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// lose makes a resource's plugin lost.
func (s *fakePlugins) lose(r device.ResourceName) {
	s.offer(r, func(o *device.Offer) { o.State = device.Lost })
}

// A resource that is served, held or requested is not forgotten, and the attempt changes nothing.
func TestForgetWhatIsInUse(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		inUse := func(want device.InUseError) {
			t.Helper()
			var got *device.InUseError
			if _, err := r.Forget(gpu); !errors.As(err, &got) || !reflect.DeepEqual(*got, want) {
				t.Errorf("got %v, want %v", err, &want)
			}
			r.check()
		}
		a, b := pod("a").Pod, pod("b").Pod
		inUse(device.InUseError{Resource: gpu, Pods: []device.Pod{a}})
		r.plugins.lose(gpu)
		r.bind("b", app(gpu, 1))
		inUse(device.InUseError{Resource: gpu, Pods: []device.Pod{a, b}})
		r.Drop("a")
		r.Drop("b")
		r.plugins.stock(gpu, 2)
		r.check()
		if _, err := r.Cordon(cordon("fan", "d1")); err != nil {
			t.Fatal(err)
		}
		inUse(device.InUseError{Resource: gpu, Serving: true})
		if got := r.Resources().ByName[gpu].OutOfService; !got["d1"] {
			t.Errorf("cordoned are %v", got)
		}
		r.plugins.lose(gpu)
		r.disk.fails(func() {})
		if _, err := r.Forget(gpu); !errors.As(err, new(*device.UnsavedError)) || r.Resources().ByName[gpu].OutOfService == nil {
			t.Errorf("a disk that is full has not kept it: %v", err)
		}
		r.disk.fails(nil)
		r.published(numbers{gpu: 0})
	})
}

// A resource that no plugin serves leaves the state file, the capacity and the metrics, with its cordons. It stays retired
// until the Node no longer shows it.
func TestForget(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		if _, err := r.Cordon(cordon("fan", "d1")); err != nil {
			t.Fatal(err)
		}
		r.Drop("a")
		r.plugins.lose(gpu)
		r.check()
		lifted, err := r.Forget(gpu)
		if err != nil || len(lifted) != 1 || lifted[0].Reason != "fan" {
			t.Fatalf("lifted %v, %v", lifted, err)
		}
		gone := func() {
			t.Helper()
			r.check()
			if _, known := r.Devices(gpu); known || len(r.Resources().Capacity()) > 0 || len(r.Resources().ByName) > 0 {
				t.Errorf("it is known: %v, %v", r.Resources().Capacity(), r.Resources().ByName)
			}
			if !slices.Equal(r.Resources().Retired, []device.ResourceName{gpu}) {
				t.Errorf("to be taken off the Node: %v", r.Resources().Retired)
			}
		}
		gone()
		r.restart()
		r.RuntimeSynced(nil, nil)
		gone()

		r.bind("b", app(gpu, 1)) // a pod that asks is in doubt's favour
		r.expect("b", "main", "waiting PluginMissing")
		if got := r.Resources().Retired; len(got) > 0 {
			t.Errorf("%v is taken off the Node while a pod asks for it", got)
		}
		r.Drop("b")
		r.check()
		r.disk.fails(func() {})
		if r.ResourcesRemoved([]device.ResourceName{gpu}) == nil {
			t.Error("what cannot be written is not noted")
		}
		r.disk.fails(nil)
		gone()
		if err := r.ResourcesRemoved([]device.ResourceName{gpu}); err != nil || len(r.Resources().Retired) > 0 {
			t.Errorf("%v, %v", err, r.Resources().Retired)
		}
		r.restart()
		if len(r.Resources().Retired) > 0 {
			t.Errorf("after a restart there is %v again", r.Resources().Retired)
		}

		r.plugins.stock(gpu, 2) // it is back, and nothing is remembered against it
		r.RuntimeSynced(nil, nil)
		r.bind("c", app(gpu, 2))
		r.expect("c", "main", "ready vendor.com/gpu[d0 d1]")
		r.published(numbers{gpu: 2})
	})
}

// A plugin that is back before the patch of the Node keeps its capacity.
func TestForgottenTooEarly(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.lose(gpu)
		r.check()
		if _, err := r.Forget(gpu); err != nil {
			t.Fatal(err)
		}
		r.plugins.stock(gpu, 3)
		r.check()
		r.published(numbers{gpu: 3})
		if len(r.Resources().Retired) > 0 {
			t.Error("it is retired")
		}
		r.restart()
		r.published(numbers{gpu: 3})
		if len(r.Resources().Retired) > 0 {
			t.Error("after a restart it is retired")
		}
	})
}

// The plugin's record removes the note of the state file, and nothing would ever remove the one in memory.
func TestForget_PluginRegistersMeanwhile_NoNoteIsLeft(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.lose(gpu)
		r.check()
		r.plugins.forgotten = func() {
			r.plugins.stock(gpu, 3)
			r.Refresh()
		}
		if _, err := r.Forget(gpu); err != nil {
			t.Fatal(err)
		}
		if n := r.NotedRetired(); n != 0 {
			t.Errorf("%d notes are left of a resource that is served", n)
		}
		r.published(numbers{gpu: 3})
	})
}

// A busy device is its ended pod's, over restarts too. So its resource stays known until the device is proved free.
func TestForget_BusyDevice_KeepsItsResource(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(opener)
		r.Drop("b")
		r.plugins.lose(gpu)
		r.after(time.Minute)
		kept := func() {
			t.Helper()
			var got *device.InUseError
			if _, err := r.Forget(gpu); !errors.As(err, &got) || len(got.Pods) != 1 || got.Pods[0].UID != "a" {
				t.Errorf("got %v, want that pod a has a device", err)
			}
			r.expectState(device.StateBusy)
			r.check()
		}
		kept()
		r.restart()
		r.plugins.lose(gpu)
		r.Replace(nil)
		r.RuntimeSynced(nil, nil)
		r.after(time.Minute)
		kept()
		r.releaser.holds("a", device.Release{})
		r.after(0)
		if _, err := r.Forget(gpu); err != nil {
			t.Errorf("the device is free: %v", err)
		}
		r.check()
	}, gated)
}

// The same is true of a device whose command has failed: an operator decides.
func TestForget_FailedRelease_KeepsItsResourceUntilUncordon(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.ends(device.Release{Why: "release.command failed", Failed: "exit code 3"})
		r.Drop("b")
		r.plugins.lose(gpu)
		r.after(24 * time.Hour)
		if _, err := r.Forget(gpu); !errors.As(err, new(*device.InUseError)) {
			t.Errorf("got %v, want that the resource is in use", err)
		}
		if _, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil {
			t.Fatal(err)
		}
		r.after(0)
		if _, err := r.Forget(gpu); err != nil {
			t.Errorf("the device is released: %v", err)
		}
		r.check()
	}, gated)
}

// A suspended device does not keep its resource. With the resource, its record of failures is forgotten, on disk too.
func TestForget_SuspendedDevice_IsForgottenWithItsResource(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 3)
		r.falls(3)
		r.expectSuspended(true)
		r.plugins.lose(gpu)
		r.after(time.Second)
		if _, err := r.Forget(gpu); err != nil {
			t.Fatal(err)
		}
		r.check()
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 3)
		r.expectSuspended(false)
		r.falls(1)
		r.expectSuspended(false)
	}, suspending)
}

// A lost resource that pods request only makes room for another. Its pod waits, and the Node shows none for others until it leaves with the pod.
func TestDisplace_Requested_PodWaitsAndTheNodeShowsNoneForOthers(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 2)
		r.plugins.lose(gpu)
		r.bind("a", app(gpu, 1))
		r.check()
		if got := r.Uses([]device.ResourceName{gpu})[gpu]; got != device.Requested {
			t.Errorf("its use is %d, want that pods request it", got)
		}
		if err := r.Displace(gpu); err != nil {
			t.Fatal(err)
		}
		r.check()
		r.expect("a", "main", "waiting PluginMissing")
		if s, known := r.Resources().ByName[gpu]; !known || s.Capacity > 1 || len(r.Resources().Retired) > 0 {
			t.Errorf("the Node is to show %+v, %v", s, r.Resources().Retired)
		}
		r.Drop("a")
		r.check()
		if got := r.Resources(); len(got.ByName) > 0 || !slices.Equal(got.Retired, []device.ResourceName{gpu}) {
			t.Errorf("to be taken off the Node: %v, %v", got.Retired, got.ByName)
		}
		r.bind("b", app(gpu, 1))
		r.plugins.stock(gpu, 2)
		r.check()
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// A lost resource of which a pod has a device, or an operator has cordoned one, makes no room: its list tells which devices are new.
func TestDisplace_HeldOrCordoned_IsKept(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.plugins.lose(gpu)
		r.check()
		kept := func() {
			t.Helper()
			if err := r.Displace(gpu); r.Uses([]device.ResourceName{gpu})[gpu] != device.Kept || !errors.As(err, new(*device.InUseError)) {
				t.Errorf("it is displaced: %v", err)
			}
			r.check()
		}
		kept()
		if _, err := r.Cordon(cordon("fan", "d1")); err != nil {
			t.Fatal(err)
		}
		r.Drop("a")
		kept()
	})
}

// A plugin registers, and is refused, as often as it likes: what devmgrd asks then costs as much with large pods on the node as with none.
func TestUses_PodsRequestMuch_CostsTheSame(t *testing.T) { // not parallel: it counts allocations
	run(t, func(r *harness) {
		uses := func() float64 {
			least := math.Inf(1)
			for range 100 { // other goroutines allocate too
				least = min(least, testing.AllocsPerRun(1, func() { r.Uses([]device.ResourceName{"junk.example/0"}) }))
			}
			return least
		}
		before := uses()
		for i := range 20 {
			d := device.PodDemand{Pod: device.Pod{UID: device.PodUID(fmt.Sprint("p", i)), Namespace: "n", Name: fmt.Sprint("p", i)}}
			for c := range 60 {
				one := device.Demand{Container: device.Container{Pod: d.Pod.UID, Name: fmt.Sprint("c", c)}, Kind: device.App, Wants: map[device.ResourceName]int{}}
				for n := range 40 {
					one.Wants[device.ResourceName(fmt.Sprintf("a.example/%d", n))] = 1
				}
				d.Demands = append(d.Demands, one)
			}
			r.Bind(d)
		}
		if after := uses(); after > before {
			t.Errorf("%v allocations, and %v before", after, before)
		}
	})
}

// Plugins' names come and go while the API server is away: the notes to take them off the Node have a limit.
func TestDisplace_ManyAreToBeTakenOffTheNode_IsRefused(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		for i := range 4097 {
			name := device.ResourceName(fmt.Sprintf("junk.example/%d", i))
			r.plugins.stock(name, 0)
			r.plugins.lose(name)
			err := r.Displace(name)
			if refused := err != nil; refused != (i == 4096) {
				t.Fatalf("the %dth: %v", i+1, err)
			}
		}
		if err := r.ResourcesRemoved([]device.ResourceName{"junk.example/0"}); err != nil {
			t.Fatal(err)
		}
		if err := r.Displace("junk.example/4096"); err != nil {
			t.Error(err)
		}
	})
}

// What proves devices free forgets a resource with the allocator.
func TestForget_Releaser_ForgetsTheResource(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 1)
		r.plugins.lose(gpu)
		r.check()
		if _, err := r.Forget(gpu); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(r.releaser.dropped, []device.ResourceName{gpu}) {
			t.Errorf("forgotten are %v", r.releaser.dropped)
		}
	}, gated)
}
