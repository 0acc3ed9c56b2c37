package allocator_test

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
)

// The reasons of a choice are kept with it, over restarts and renewed grants.
func TestWhy_SaysWhatThePlanKnew(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 8)
		r.plugins.places(gpu, 2) // d1, d3 and so on are near node 1
		r.plugins.prefers(gpu, last)
		r.RuntimeSynced(nil, nil)
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { return errPlugin })
		r.bind("a", app(gpu, 1))
		r.plugins.answers(nil)
		r.after(time.Second)
		r.bind("b", wants("init", device.Init, gpu, 1), app(gpu, 2))
		why := func(pod, container string) device.Why {
			t.Helper()
			st := r.Readiness(device.Container{Pod: device.PodUID(pod), Name: container})
			if st.State != device.Ready {
				t.Fatalf("%s/%s stands %+v", pod, container, st)
			}
			return st.Assignment.Shares[0].Why
		}
		for range 2 {
			for at, want := range map[string]device.Why{
				"a/main": {Preferred: 1, Near: []int{0}, Avoided: 1},
				"b/init": {Preferred: 1, Near: []int{0}, Avoided: 1},
				"b/main": {Kept: 1, Near: []int{0}, Avoided: 1},
			} {
				if got := why(at[:1], at[2:]); !reflect.DeepEqual(got, want) {
					t.Errorf("%s has its devices for %+v, want %+v", at, got, want)
				}
			}
			r.reboot()
			r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Serving })
			r.after(time.Second)
		}
	}, func(r *harness) {
		r.boot = "one"
		r.topology = allocator.Topology{Policy: placement.BestEffort, Scope: placement.PerContainer}
	})
}
