package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
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
		r.expect("a", "main", "busy Preparing") // the devices have been prepared for init
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
		d := pod("a", wants("side", device.Sidecar, gpu, 1), wants("init", device.Init, gpu, 1))
		d.Containers, d.Sidecars = []string{"side", "main"}, 1
		r.Bind(d)
		r.expect("a", "init", "ready vendor.com/gpu[d1]")
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

// The kubelet starts one container after the other with the devices that an init container hands on: no call names a device that a container uses, and
// each start is preceded by a call that names all devices of the container, since others have used them.
func TestPreStart_DevicesThatAreHandedOn_AreInNoUse(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		r.plugins.prepares(func(context.Context) error { time.Sleep(5 * time.Second); return nil })
		used := map[device.ID]bool{}
		r.plugins.preparesDevices(func(ids []device.ID) {
			for _, id := range ids {
				if used[id] {
					t.Errorf("PreStartContainer for %v, and a container uses %s", ids, id)
				}
			}
		})
		r.bind("a", wants("one", device.Init, gpu, 1), wants("two", device.Init, gpu, 2), app(gpu, 3))
		n := 0
		runs := func(name string, calls ...string) {
			t.Helper()
			n++
			c := r.created(fmt.Sprint(n), "a", name)
			if !slices.Equal(r.plugins.prepared, calls) {
				t.Errorf("before the start of %s, the calls were %q, want %q", name, r.plugins.prepared, calls)
			}
			r.plugins.prepared = nil
			for _, id := range r.Readiness(c.Container).Assignment.Shares[0].IDs {
				used[id] = true
			}
			r.after(10 * time.Second)
			if err := r.RuntimeStarting(context.Background(), c); err != nil {
				t.Error(err)
			}
			r.after(time.Minute)
			clear(used)
			r.RuntimeStopped(c)
			r.after(0)
		}
		one, two, main := "one vendor.com/gpu [d0]", "two vendor.com/gpu [d0 d1]", "main vendor.com/gpu [d0 d1 d2]"
		runs("one", one)
		runs("two", two)
		r.after(time.Hour)
		runs("main", main)
		runs("main", main)
		r.after(time.Hour)
		runs("one", main, one) // all containers are started again
		runs("one", two, one)  // it has failed
		runs("two", two)
		runs("main", main)
		r.check()
	})
}

// created has the runtime create a container, as often as the hook says that its devices are being prepared.
func (r *harness) created(id, pod, name string) device.Running {
	r.t.Helper()
	c := running(id, pod, name)
	st := r.RuntimeCreating(c)
	for tries := 0; st.State == device.Pending && tries < 10; tries++ {
		r.after(5 * time.Second)
		st = r.RuntimeCreating(c)
	}
	if st.State != device.Ready {
		r.t.Fatalf("%s stands %+v", name, st)
	}
	r.RuntimeInjected(c)
	return c
}

// An init container that could not be started is removed when a later instance has ended and the app container runs.
func TestPreStart_RemovalOfOlderContainer_TouchesNoDeviceInUse(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.cdi = true
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		r.bind("a", wants("init", device.Init, gpu, 1), app(gpu, 1))
		older := r.created("1", "a", "init")
		r.after(time.Minute)
		for id, name := range []string{"init", "main"} {
			c := r.created(fmt.Sprint("later ", id), "a", name)
			if err := r.RuntimeStarting(context.Background(), c); err != nil {
				t.Fatal(err)
			}
			if name == "init" {
				r.RuntimeStopped(c)
			}
		}
		r.after(time.Minute)
		r.plugins.prepared = nil
		r.asked()
		r.RuntimeStopped(older)
		r.after(time.Minute)
		if asked := r.asked(); len(r.plugins.prepared)+len(asked) > 0 {
			t.Errorf("the calls for devices in use are %q and %q", r.plugins.prepared, asked)
		}
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

// Another NRI plugin has hidden the end of the init container: the kubelet has seen it.
func TestPreStart_EndOfInitContainerIsHidden_NextStarts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		r.bind("a", wants("init", device.Init, gpu, 1), app(gpu, 1))
		r.RuntimeStarting(context.Background(), r.created("1", "a", "init"))
		r.created("2", "a", "main")
	})
}

// A call for one container is under way when the call for another one fails: neither is the pod moved, nor is the plugin called again, before it ends.
func TestPreStart_CallUnderWay_NoOtherForItsDevices(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		var mu sync.Mutex
		calls, underway := 0, map[device.ID]bool{}
		check := func(what string, ids []device.ID) {
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				if underway[id] {
					t.Errorf("%s for %s during PreStartContainer", what, id)
				}
			}
		}
		during := func(ids []device.ID, is bool) {
			mu.Lock()
			defer mu.Unlock()
			for _, id := range ids {
				underway[id] = is
			}
		}
		r.plugins.preparesDevices(func(ids []device.ID) {
			check("PreStartContainer", ids)
			during(ids, true)
			time.Sleep(20 * time.Second)
			during(ids, false)
		})
		r.plugins.allocates(func(_ context.Context, _ device.ResourceName, ids []device.ID) error {
			check("Allocate", ids)
			return nil
		})
		r.plugins.prepares(func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			calls++
			if calls == 1 {
				return errPlugin
			}
			return nil
		})
		r.bind("a", wants("one", device.App, gpu, 1), wants("two", device.App, gpu, 1))
		r.bind("0", app(gpu, 2))
		r.after(5 * time.Minute)
		if calls < 3 {
			t.Errorf("%d calls", calls)
		}
		r.check()
	})
}

// A hook asks about a container of a pod that has ended.
func TestPreStart_PodHasEnded_HookDoesNotTurn(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.RuntimeStarting(context.Background(), r.created("1", "a", "main"))
		r.Drop("a")
		if st := r.RuntimeCreating(running("2", "a", "main")); st.State != device.Waiting {
			t.Errorf("the container stands %+v", st)
		}
	})
}

// A Job's container has ended, and the plugin prepares its next start, when the pod's end is seen.
func TestPreStart_PodEnds_DevicesAreReleasedAfterTheCall(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.plugins.offer(gpu, func(o *device.Offer) { o.PreStart = true })
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		c := running("1", "a", "main")
		start(r, c)
		r.plugins.prepares(func(context.Context) error { time.Sleep(20 * time.Second); return nil })
		r.bind("b", app(gpu, 1))
		r.RuntimeStopped(c)
		r.after(0)
		r.Drop("a")
		r.after(19 * time.Second)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.plugins.prepares(nil)
		r.after(2 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
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
