package allocator_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A plugin grants a device to the init container, counts it, and refuses the app container for a minute. It is not asked again for what it has granted.
func TestKept_OneContainerIsRefused_TheOtherIsAskedOnce(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		var refuses atomic.Bool
		refuses.Store(true)
		r.plugins.answers(func(_ context.Context, _ device.Pod, of device.ResourceName) error {
			if refuses.Load() && of == nic {
				return errPlugin
			}
			return nil
		})
		r.plugins.stock(gpu, 2)
		r.plugins.stock(nic, 1)
		r.RuntimeSynced(nil, nil)
		r.asked()
		r.Bind(pod("a", wants("init", device.Init, gpu, 1), wants("main", device.App, nic, 1)))
		r.after(time.Minute)
		count := func(asked []string) (n int) {
			return len(slices.DeleteFunc(asked, func(s string) bool { return s != "a/init vendor.com/gpu [d0]" }))
		}
		if asked := r.asked(); count(slices.Clone(asked)) != 1 || len(asked) < 4 {
			t.Errorf("asked %q", asked)
		}
		if w := r.Readiness(device.Container{Pod: "a", Name: "main"}).Wait.Message; w == "" || w[:15] != "container main:" {
			t.Errorf("the pod waits for %q", w)
		}

		// Another pod has the device in between: what the plugin has granted before is void.
		r.Bind(pod("b", claims(wants("main", device.App, gpu, 1), "x", "d0")))
		r.after(time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.Drop("b")
		r.after(time.Minute)
		if asked := r.asked(); count(slices.Clone(asked)) != 1 {
			t.Errorf("after another pod had the device: asked %q", asked)
		}
		// So is it when the plugin has restarted.
		r.plugins.offer(gpu, func(o *device.Offer) { o.Session++ })
		r.after(time.Minute)
		if asked := r.asked(); count(slices.Clone(asked)) != 1 {
			t.Errorf("after a restart of the plugin: asked %q", asked)
		}
		refuses.Store(false)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/nic[d0]")
		r.expect("a", "init", "ready vendor.com/gpu[d0]")
		if asked := r.asked(); count(slices.Clone(asked)) != 0 {
			t.Errorf("in the end: asked %q", asked)
		}
	})
}

// A device is listed as healthy and always refused. A pod that was refused gets the next device that is freed, although it waits between two tries, and
// before younger pods.
func TestRefusedDevice_AnotherIsFreed_OldestPodGetsIt(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.allocates(func(_ context.Context, _ device.ResourceName, ids []device.ID) error {
			if slices.Contains(ids, "d0") {
				return errPlugin
			}
			return nil
		})
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("busy", app(gpu, 1))
		r.after(2 * time.Second)
		r.expect("busy", "main", "ready vendor.com/gpu[d1]")
		r.Bind(pod("old", app(gpu, 1)))
		r.after(10 * time.Minute)
		r.expect("old", "main", "waiting NotEnoughDevices")
		r.Bind(pod("young", app(gpu, 1)))
		r.after(time.Second)
		r.Drop("busy")
		r.after(time.Second)
		r.expect("old", "main", "ready vendor.com/gpu[d1]")
		r.check()
	})
}

// A grant that is too large is not kept: the plugin may answer with less the next time.
func TestKept_GrantTooLarge_PluginIsAskedAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.padding = device.MaxGrant + 1
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.asked()
		r.Bind(pod("a", app(gpu, 1)))
		r.after(time.Minute)
		if asked := r.asked(); len(asked) < 2 {
			t.Errorf("asked %q", asked)
		}
		r.plugins.mu.Lock()
		r.plugins.padding = 0
		r.plugins.mu.Unlock()
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

// Another process of the plugin serves the resource before the answer of the former one has come: the grant is not kept for the new process.
func TestKept_PluginIsReplacedDuringTheCall_NewOneIsAsked(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		var replaced, grants atomic.Bool
		r.plugins.answers(func(_ context.Context, _ device.Pod, of device.ResourceName) error {
			if of == nic && !grants.Load() {
				return errPlugin
			}
			if of == gpu && replaced.CompareAndSwap(false, true) {
				r.plugins.offer(gpu, func(o *device.Offer) { o.Session++ })
				<-time.After(time.Millisecond) // the allocator has seen it
			}
			return nil
		})
		r.plugins.stock(gpu, 1)
		r.plugins.stock(nic, 1)
		r.RuntimeSynced(nil, nil)
		r.asked()
		r.Bind(pod("a", wants("init", device.Init, gpu, 1), wants("main", device.App, nic, 1)))
		r.after(time.Minute)
		if asked := slices.DeleteFunc(r.asked(), func(s string) bool { return s != "a/init vendor.com/gpu [d0]" }); len(asked) != 2 {
			t.Errorf("the two processes were asked %d times", len(asked))
		}
		grants.Store(true)
		r.after(time.Minute)
		r.expect("a", "init", "ready vendor.com/gpu[d0]")
	})
}

// The grants of two pods are too large, and each pod's attempt frees the device that the other one wants: their pauses double all the same.
func TestKept_GrantsOfTwoPodsTooLarge_PausesDouble(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.padding = device.MaxGrant + 1
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.asked()
		r.Bind(pod("a", app(gpu, 1)))
		r.Bind(pod("b", app(gpu, 1)))
		r.after(time.Minute)
		if asked := r.asked(); len(asked) > 14 { // each at 0, 1, 3, 7, 15, 31 and 61 s
			t.Errorf("asked %d times within a minute", len(asked))
		}
	})
}
