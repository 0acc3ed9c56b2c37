package allocator_test

import (
	"context"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The hook has let a container of a static pod be created without devices, since the pod was not known. It is reported once when the pod is.
func TestUnserved_PodBecomesKnown_IsReportedOnce(t *testing.T) {
	t.Parallel()
	c := running("1", "a", "main")
	c.Sandbox = "sandbox"
	start := func(r *harness) {
		t.Helper()
		if err := r.RuntimeStarting(context.Background(), c); err != nil {
			t.Error(err)
		}
	}
	for name, test := range map[string]struct {
		story func(*harness)
		want  float64
	}{
		"after its start":  {func(r *harness) { r.RuntimeUnserved(c); start(r); r.bind("a", app(gpu, 1)); r.bind("a", app(gpu, 1)) }, 1},
		"before its start": {func(r *harness) { r.RuntimeUnserved(c); r.bind("a", app(gpu, 1)); start(r) }, 1},
		"while the hook answers": {func(r *harness) {
			r.RuntimeCreating(c)
			r.bind("a", app(gpu, 1))
			r.RuntimeUnserved(c)
			start(r)
		}, 1},
		"while the runtime's list is compared": {func(r *harness) {
			r.behind(func() { r.RuntimeSynced(nil, nil); r.RuntimeUnserved(c); r.Bind(pod("a", app(gpu, 1))) })
			start(r)
		}, 1},
		"in a list": {func(r *harness) { r.RuntimeUnserved(c); start(r); r.Replace([]device.PodDemand{pod("a", app(gpu, 1))}) }, 1},
		"and the runtime connects again": {func(r *harness) {
			r.RuntimeUnserved(c)
			start(r)
			r.bind("a", app(gpu, 1))
			r.RuntimeLost()
			r.RuntimeSynced([]device.Running{c}, nil)
		}, 1},
		"and requests nothing": {func(r *harness) { r.RuntimeUnserved(c); start(r); r.bind("a") }, 0},
		"after its end":        {func(r *harness) { r.RuntimeUnserved(c); start(r); r.RuntimeStopped(c); r.bind("a", app(gpu, 1)) }, 0},
		"it was not created":   {func(r *harness) { r.RuntimeUnserved(c); r.RuntimeStopped(c); r.bind("a", app(gpu, 1)) }, 0},
		"its sandbox is gone": {func(r *harness) {
			r.RuntimeUnserved(c)
			start(r)
			r.RuntimeRemoved("a", "sandbox")
			r.bind("a", app(gpu, 1))
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 1)
				r.RuntimeSynced(nil, nil)
				test.story(r)
				r.check()
				if n := r.metric("devmgrd_started_without_devices_total"); n != test.want {
					t.Errorf("%v containers are reported, want %v: %q", n, test.want, r.plugins.told)
				}
			})
		})
	}
}

// Its pod's devices are released after its end, or when it has been created and not started for a while.
func TestUnserved_PodEnds_DevicesAreReleased(t *testing.T) {
	t.Parallel()
	for _, starts := range []bool{true, false} {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 1)
			r.RuntimeSynced(nil, nil)
			c := running("1", "a", "main")
			r.RuntimeUnserved(c)
			if starts {
				if err := r.RuntimeStarting(context.Background(), c); err != nil {
					t.Error(err)
				}
			}
			r.bind("a", app(gpu, 1))
			r.bind("b", app(gpu, 1))
			r.expect("a", "main", "ready vendor.com/gpu[d0]")
			r.Drop("a")
			r.after(29 * time.Second)
			r.expect("b", "main", "waiting NotEnoughDevices")
			r.after(time.Minute)
			if starts {
				r.expect("b", "main", "waiting NotEnoughDevices")
				r.RuntimeStopped(c)
			}
			r.expect("b", "main", "ready vendor.com/gpu[d0]")
		})
	}
}

// It could not be created. The devices that its pod has by now are not the cause.
func TestUnserved_NotCreated_DevicesAreNotBlamed(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.cdi = true
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		c := running("1", "a", "main")
		r.RuntimeUnserved(c)
		r.bind("a", app(gpu, 1))
		r.RuntimeStopped(c)
		if w, _ := r.Snapshot().Pod("ns", "a"); w.State != device.Ready {
			t.Errorf("got %+v", w.Wait)
		}
	})
}

// The state file was lost, and the pod has a container from before the boot that was never started. The release of what that has does not keep
// the new one from starting.
func TestUnserved_PodHasALeftover_Starts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		idle := running("1", "a", "main")
		idle.Idle, idle.Stamp = true, device.Choice{gpu: {"d0"}}
		r.RuntimeSynced([]device.Running{idle}, nil)
		r.bind("b", app(gpu, 1))
		r.after(29 * time.Second)
		c := running("2", "a", "main")
		r.RuntimeUnserved(c)
		r.after(2 * time.Second)
		if err := r.RuntimeStarting(context.Background(), c); err != nil {
			t.Error(err)
		}
		r.RuntimeStopped(c)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}
