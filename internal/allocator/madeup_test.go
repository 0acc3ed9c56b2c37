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
		st := r.Allocator.Claim(ctx, running("1", "p", "main"))
		if took := time.Since(began); took != time.Second || st.State != device.Waiting || st.Wait.Reason != device.Allocating {
			t.Errorf("the answer took %v: %+v", took, st)
		}
		began = time.Now()
		main := running("1", "p", "main")
		r.Unclaim(main)
		r.Refused(main.Container, device.Wait{Reason: device.HostDeviceMissing}, false)
		r.RuntimeStarted(main)
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
