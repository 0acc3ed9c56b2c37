package allocator_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// TestRelease plays the inputs of releases at random: events of the runtime that are lost, late, doubled or about unknown
// containers; pods deleted by force while their containers live; pods that go while the API server is away; a runtime that
// restarts while containers end. A pod always waits for a device, so a device freed too early belongs to two pods at once.
// After a reconcile only devices in use remain.
func TestRelease(t *testing.T) {
	t.Parallel()
	for seed := range uint64(25) {
		inWorld(t, func(w *world) { w.unheard(rand.New(rand.NewPCG(seed, 1))) }, nil)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (w *world) unheard(dice *rand.Rand) {
	w.shop.stock(gpu, 4)
	w.begin()
	var late []device.Running // events that are still under way
	named := 0
	someContainer := func() string {
		if ids := slices.Sorted(maps.Keys(w.containers)); len(ids) > 0 {
			return ids[dice.IntN(len(ids))]
		}
		return ""
	}
	away := false // the API server
	reconcile := func() {
		away = false
		w.now().RuntimeLost()
		synctest.Wait()
		w.now().RuntimeSynced(slices.Collect(maps.Values(w.containers)), nil)
		w.now().Replace(w.bound)
		w.settle()
	}
	for range 150 {
		switch dice.IntN(12) {
		case 0, 1, 2:
			if len(w.bound) < 8 {
				named++
				d := pod(fmt.Sprintf("p%03d", named), app(gpu, 1+dice.IntN(2)))
				w.bound = append(w.bound, d)
				if !away {
					w.now().Bind(d)
				}
			}
		case 3: // by force, or by the kubelet when it has ended its containers
			if len(w.bound) > 0 {
				at := dice.IntN(len(w.bound))
				gone := w.bound[at]
				w.bound = slices.Delete(w.bound, at, at+1)
				if !away {
					w.now().Drop(gone.Pod.UID)
				}
			}
		case 4, 5: // a container ends, and the report comes sooner or later, once or twice, or never
			if id := someContainer(); id != "" {
				r := w.containers[id]
				delete(w.containers, id)
				r.Stamp = nil
				for range dice.IntN(3) {
					late = append(late, r)
				}
			}
		case 6, 7:
			if len(late) > 0 {
				at := dice.IntN(len(late))
				w.now().RuntimeStopped(late[at])
				late = slices.Delete(late, at, at+1)
			}
		case 8:
			w.now().RuntimeStopped(running("unknown", "p001", "main"))
		case 9: // the runtime restarts; ends meanwhile are not reported
			w.now().RuntimeLost()
			synctest.Wait()
			for range dice.IntN(3) {
				delete(w.containers, someContainer())
			}
			w.now().RuntimeSynced(slices.Collect(maps.Values(w.containers)), nil)
		case 10:
			if away = !away; !away {
				w.now().Replace(w.bound)
			}
		case 11:
			reconcile()
			// Every device in use has a pod: in the API or in the runtime.
			left, err := podsOnDisk(w.now().store)
			if err != nil {
				w.t.Fatal(err)
			}
			for _, r := range left {
				uid := r.Demand.Pod.UID
				if !slices.ContainsFunc(w.bound, func(d device.PodDemand) bool { return d.Pod.UID == uid }) &&
					!slices.ContainsFunc(slices.Collect(maps.Values(w.containers)), func(c device.Running) bool { return c.Container.Pod == uid }) {
					w.t.Errorf("pod %s holds devices, and is nowhere", uid)
				}
			}
		}
		w.settle()
		for _, d := range w.bound {
			w.sync(d)
		}
		w.check()
	}
	w.bound = nil
	clear(w.containers)
	reconcile()
	time.Sleep(time.Minute)
	w.nothingIsLeft()
}

// A power cut between the creation of a container and its start. The restarted runtime lists the container, and never reports
// its end.
func TestAContainerThatWasNeverStarted(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		idle := running("1", "a", "main")
		idle.Idle = true
		r.RuntimeSynced([]device.Running{idle}, nil)
		r.bind("b", app(gpu, 1))
		r.after(time.Hour)
		r.expect("b", "main", "waiting NotEnoughDevices") // the pod is still there: it may be started
		r.Drop("a")
		r.after(29 * time.Second)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.after(2 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
	run(t, func(r *harness) { // another of the pod runs
		r.plugins.stock(gpu, 1)
		r.bind("a", app(gpu, 1))
		idle := running("1", "a", "main")
		idle.Idle = true
		r.RuntimeSynced([]device.Running{idle, running("2", "a", "main")}, nil)
		r.Drop("a")
		r.bind("b", app(gpu, 1))
		r.after(time.Hour)
		r.expect("b", "main", "waiting NotEnoughDevices")
	})
}
