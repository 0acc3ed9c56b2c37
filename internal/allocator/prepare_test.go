package allocator_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

func TestPreStartRunsBeforeEachStart(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		gate := make(chan struct{})
		r.plugins.prepares(func(context.Context) error { <-gate; return nil })
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "busy Preparing")
		close(gate)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.RuntimeInjected(running("1", "a", "main"))
		synctest.Wait()
		if n := len(r.plugins.prepared); n != 1 {
			t.Fatalf("prepared %d times before the first start, want once", n)
		}
		r.RuntimeStopped(running("1", "a", "main"))
		synctest.Wait()
		if n := len(r.plugins.prepared); n != 2 {
			t.Fatalf("prepared %d times after the first stop, want twice", n)
		}
		// The next instance starts before the end of the last one is reported: its devices are not touched then.
		r.RuntimeInjected(running("2", "a", "main"))
		r.RuntimeInjected(running("3", "a", "main"))
		r.RuntimeStopped(running("2", "a", "main"))
		synctest.Wait()
		if n := len(r.plugins.prepared); n != 2 {
			t.Errorf("prepared %d times while an instance runs, want twice", n)
		}
		r.restart()
		r.expect("a", "main", "busy Preparing") // allocating has it prepared
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		if n := len(r.plugins.prepared); n != 3 {
			t.Errorf("prepared %d times after a restart, want 3", n)
		}
	})
}

// A call names all of the container's devices of a resource, from any source; a plugin that requires no call gets none.
func TestPreStartNamesAllDevices(t *testing.T) {
	t.Parallel()
	const plain device.ResourceName = "vendor.com/plain"
	run(t, func(r *harness) {
		for _, res := range []device.ResourceName{gpu, nic, plain} {
			r.plugins.stock(res, 6)
			r.plugins.offer(res, func(o *device.Offer) { o.PreStart = res != plain })
		}
		r.RuntimeSynced(nil, nil)
		all := app(gpu, 3)
		all.Wants[nic], all.Wants[plain] = 2, 2
		r.bind("0", app(gpu, 1))
		r.bind("a", wants("init", device.Init, gpu, 2), all)
		r.expect("a", "main", "ready vendor.com/gpu[d1 d2 d3] vendor.com/nic[d0 d1] vendor.com/plain[d0 d1]")
		calls := func() []string {
			synctest.Wait()
			made := slices.Sorted(slices.Values(r.plugins.prepared)) // containers are prepared side by side
			r.plugins.prepared = nil
			return made
		}
		of := []string{"main vendor.com/gpu [d1 d2 d3]", "main vendor.com/nic [d0 d1]"}
		if got, want := calls(), append([]string{"init vendor.com/gpu [d1 d2]", "main vendor.com/gpu [d0]"}, of...); !slices.Equal(got, want) {
			t.Errorf("prepared %q, want %q", got, want)
		}
		r.RuntimeInjected(running("1", "a", "main"))
		r.RuntimeStopped(running("1", "a", "main"))
		if got := calls(); !slices.Equal(got, of) {
			t.Errorf("prepared %q for the next start, want %q", got, of)
		}
		r.restart()
		r.expect("a", "main", "busy Preparing") // allocating has it prepared, as the state file says
		if got := calls(); !slices.Equal(got, of) {
			t.Errorf("prepared %q after a restart, want %q", got, of)
		}
	})
}

func TestAFailedPreStartIsARefusalAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.plugins.prepares(func(context.Context) error { return errPlugin })
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting PreStartFailed")
		r.plugins.prepares(nil)
		r.expect("a", "main", "waiting PreStartFailed")
		r.after(time.Second)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")

		c := running("1", "a", "main")
		start(r, c)
		r.plugins.prepares(func(context.Context) error { return errPlugin })
		r.RuntimeStopped(c)
		r.expect("a", "main", "waiting PreStartFailed") // it has run: the devices stay its own
		r.wouldRefuse("a", "main", device.PreStartFailed)
		r.plugins.prepares(nil)
		r.after(time.Second)
		r.wouldRefuse("a", "main", device.PreStartFailed) // which asks no plugin
		r.expect("a", "main", "busy Preparing")
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.wouldRefuse("a", "", "")
	})
}

// An init container that has failed is started again; one that has ended well is not, and only what runs after it tells.
func TestWouldRefuse_InitContainers_CountUntilAnAppContainerExists(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		d := pod("a", wants("init", device.Init, gpu, 1), wants("side", device.Sidecar, gpu, 1))
		d.Containers, d.Sidecars = []string{"side", "main"}, 1
		r.Bind(d)
		r.expect("a", "init", "ready vendor.com/gpu[d0]")
		side := running("side", "a", "side")
		start(r, side)
		first := running("1", "a", "init")
		start(r, first)
		r.plugins.prepares(func(context.Context) error { return errPlugin })
		r.RuntimeStopped(first)
		r.expect("a", "init", "waiting PreStartFailed")
		r.wouldRefuse("a", "init", device.PreStartFailed)
		main := running("2", "a", "main") // it has no devices
		r.RuntimeCreating(main)
		r.wouldRefuse("a", "", "")
		r.RuntimeStopped(main)
		r.wouldRefuse("a", "init", device.PreStartFailed)
	})
}

// Whether an imported share's plugin requires the call is unknown until the plugin is connected.
func TestPreStartOfWhatWasImported(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		c := device.Container{Pod: "a", Name: "main"}
		r.halt()
		books, err := store.Open(store.Config{Dir: r.dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		err = books.SaveAll([]device.PodRecord{{Demand: pod("a", app(gpu, 1)), Assignments: []device.Assignment{{
			Container: c, Imported: time.Now(), Shares: []device.Share{{Resource: gpu, IDs: []device.ID{"d0"}}},
		}}}}, nil)
		if err := errors.Join(err, books.Close()); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.Bind(pod("a", app(gpu, 1)))
		r.RuntimeSynced([]device.Running{running("1", "a", "main")}, nil)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.plugins.stock(gpu, 2)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		synctest.Wait()
		r.RuntimeStopped(running("1", "a", "main"))
		synctest.Wait()
		if n := len(r.plugins.prepared); n != 1 {
			t.Errorf("prepared %d times before the next start, want once", n)
		}
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}
