package allocator_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// madeUp is a container that requests resources that no plugin has.
func madeUp(n int) device.Demand {
	d := device.Demand{Container: device.Container{Name: "main"}, Kind: device.App, Wants: map[device.ResourceName]int{}}
	for i := range n {
		d.Wants[device.ResourceName(fmt.Sprintf("made.up/r%d", i))] = 1
	}
	return d
}

func TestMadeUpResources_GoWithTheirPods(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		r.after(time.Second)
		before := r.ResourceCount()
		for i := range 10 {
			name := fmt.Sprint("p", i)
			r.bind(name, madeUp(64))
			r.after(time.Second)
			r.expect(name, "main", "waiting PluginMissing")
			if i%2 == 0 {
				r.Drop(device.PodUID(name))
			}
		}
		r.bind("mixed", madeUp(3), app(gpu, 1))
		r.Replace(nil)
		r.after(time.Minute)
		if n := r.ResourceCount(); n != before {
			t.Errorf("%d resources are kept when all pods have ended, and %d before", n, before)
		}
		r.bind("honest", app(gpu, 1))
		r.expect("honest", "main", "ready vendor.com/gpu[d0]")
	})
}

// The runtime drops a plugin whose hook is late.
func TestHooks_AllocatorIsBusy_AnswerInTime(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.bind("p", app(gpu, 1))
		unlock := r.Hold()
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		st := r.Allocator.RuntimeCreating(ctx, running("1", "p", "main"))
		if took := time.Since(began); took != time.Second || st.State != device.Waiting || st.Wait.Reason != device.Allocating {
			t.Errorf("the answer took %v: %+v", took, st)
		}
		began = time.Now()
		main := running("1", "p", "main")
		r.RuntimeAborted(main)
		r.Refused(main.Container, device.Wait{Reason: device.HostDeviceMissing}, false)
		r.RuntimeInjected(main)
		r.RuntimeStopped(main)
		r.RuntimeRemoved("p", "sandbox")
		r.DropLocal("p")
		if waited := time.Since(began); waited > 0 {
			t.Errorf("reports waited for %v", waited)
		}
		unlock()
		r.expect("p", "main", "waiting PluginMissing")
	})
}

// Any user may write a pod that looks like a static pod's mirror.
func TestForgedMirror_RaisesNoNumber(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.Replace(nil)
		r.plugins.stock(gpu, 8)
		static := pod("static", app(gpu, 4))
		static.Local = true
		r.RuntimeSynced(nil, []device.PodDemand{static})
		r.published(map[device.ResourceName]int{gpu: 4}) // the scheduler does not know the static pod
		forged := pod("evil", app(gpu, 1000))
		forged.Mirror = true
		r.Bind(forged)
		r.published(map[device.ResourceName]int{gpu: 4})
		forged = pod("mirror", app(gpu, 1000))
		forged.Pod.Name, forged.Mirror = "static", true // in the static pod's namespace
		r.Bind(forged)
		r.published(map[device.ResourceName]int{gpu: 8}) // as much as the static pod requests
	})
}

// A plugin registers resources, which are lost and forgotten.
func TestForgottenResources_AreNotKept(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		r.plugins.stock(gpu, 1)
		r.after(time.Second)
		before := r.ResourceCount()
		for i := range 20 {
			name := device.ResourceName(fmt.Sprintf("junk.example/r%d", i))
			r.plugins.stock(name, 1)
			r.after(time.Second)
			r.plugins.lose(name)
			r.after(time.Second)
			if _, err := r.Forget(name); err != nil {
				t.Fatal(err)
			}
			r.after(time.Second)
		}
		if n := r.ResourceCount(); n != before {
			t.Errorf("%d resources are kept, and %d before", n, before)
		}
	})
}

// The eviction of a pod with a failed device is tried again when the pod has ended, and its resource has been forgotten.
func TestStillBroken_ResourceIsForgotten_IsFalse(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.Replace(nil)
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.plugins.stock(gpu, 2, 0)
		r.after(time.Second)
		if !r.StillBroken("a", gpu, "d0") {
			t.Fatal("the device is not broken")
		}
		r.plugins.lose(gpu)
		r.after(time.Second)
		r.Drop("a")
		r.after(5 * time.Second)
		if _, err := r.Forget(gpu); err != nil {
			t.Fatal(err)
		}
		r.after(time.Second)
		r.bind("b", app(gpu, 1)) // names it once more, and ends
		r.after(time.Second)
		r.Drop("b")
		r.after(time.Second)
		if r.StillBroken("a", gpu, "d0") {
			t.Error("the device of a forgotten resource is broken")
		}
	})
}
