package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"testing/synctest"

	"github.com/devmgrd/devmgrd/internal/device"
)

// kept is more than the number of changes that the feed keeps.
const kept = 5000

// holding returns the published allocation of a pod.
func (r *harness) holding(pod string) *device.PodAllocation {
	synctest.Wait()
	for _, h := range r.Snapshot().Pods {
		if h.Pod.Name == pod {
			return h.PodAllocation
		}
	}
	return nil
}

// The feed publishes a pod's true state from its binding to its release, and wakes readers that wait for the next change.
func TestTheBoard(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.plugins.places(gpu, 2)
		r.RuntimeSynced(nil, nil)
		synctest.Wait()
		moved := r.Updated()
		r.bind("a", app(gpu, 1), wants("first", device.Init, gpu, 1))
		h := r.holding("a")
		switch {
		case h == nil || !h.Active || len(h.Assignments) != 2 || !reflect.DeepEqual(h.Containers, []string{"main"}):
			t.Fatalf("the board shows %+v", h)
		case !reflect.DeepEqual(h.Assignments[0].Shares[0].Near, [][]int{{0}}):
			t.Errorf("the device is near %v", h.Assignments[0].Shares[0].Near)
		}
		select {
		case <-moved:
		default:
			t.Error("the change woke no reader")
		}
		if one, other := r.Snapshot(), r.Snapshot(); one != other {
			t.Error("nothing has changed, and there are two boards")
		}

		// Where a device is by now is another matter.
		r.plugins.places(gpu, 1)
		if h := r.holding("a"); !reflect.DeepEqual(h.Assignments[0].Shares[0].Near, [][]int{{0}}) {
			t.Errorf("the device was near %v", h.Assignments[0].Shares[0].Near)
		}

		c := running("1", "a", "main")
		r.RuntimeCreating(c)
		r.Drop("a")
		if h := r.holding("a"); h == nil || h.Active || len(h.Assignments) != 2 {
			t.Errorf("of a pod that is over and still runs the board shows %+v", h)
		}
		r.RuntimeStopped(c)
		if h := r.holding("a"); h != nil {
			t.Errorf("of a pod that is gone the board shows %+v", h)
		}
	})
}

// Offers are not in the feed, but their changes wake its readers.
func TestTheBoardMovesWithOffers(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		synctest.Wait()
		moved, before := r.Updated(), r.Snapshot()
		r.plugins.stock(gpu, 3)
		synctest.Wait()
		select {
		case <-moved:
		default:
			t.Error("the offer woke no reader")
		}
		if r.Snapshot() != before {
			t.Error("there is another board")
		}
		if got := len(r.Resources().Offers()[gpu].Inventory.Devices); got != 3 {
			t.Errorf("%d devices are offered, want 3", got)
		}
	})
}

// The writer of the state file may not have recorded all containers of a pod.
func TestTheBoardLearnsAPodsContainers(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.bind("a", app(gpu, 1))
		more := pod("a", app(gpu, 1))
		more.Containers = []string{"side", "main"}
		r.Bind(more)
		if h := r.holding("a"); !reflect.DeepEqual(h.Containers, more.Containers) || len(h.Assignments) != 1 {
			t.Errorf("the board shows %+v", h)
		}
		r.after(2e9)
		r.restart()
		if h := r.holding("a"); !reflect.DeepEqual(h.Containers, more.Containers) {
			t.Errorf("after a restart the board shows %+v", h)
		}
	})
}

// A static pod is known by the containers that request devices, and by its mirror pod when there is one.
func TestTheBoardShowsALocalPodsContainers(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		local := pod("static", app(gpu, 1))
		local.Local = true
		r.Bind(local)
		if h := r.holding("static"); !reflect.DeepEqual(h.Containers, []string{"main"}) {
			t.Errorf("the board shows %+v", h)
		}
		mirror := pod("static")
		mirror.Pod.UID, mirror.Mirror, mirror.Containers = "mirror", true, []string{"main", "other"}
		r.Bind(mirror)
		if h := r.holding("static"); !reflect.DeepEqual(h.Containers, mirror.Containers) {
			t.Errorf("with a mirror pod the board shows %+v", h)
		}
		r.Drop("mirror")
		if h := r.holding("static"); !reflect.DeepEqual(h.Containers, []string{"main"}) {
			t.Errorf("without it the board shows %+v", h)
		}
	})
}

// Only the newest changes are kept, and a reader that asks for older ones learns that.
func TestChangesThatAreNotKept(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		for i := range kept {
			r.Bind(pod(fmt.Sprint("p", i)))
			if i%100 == 0 {
				r.follow()
			}
		}
		if _, known := r.ChangesSince(0, 10); known {
			t.Error("the first change is still known")
		}
		if _, known := r.ChangesSince(kept+1, 10); known {
			t.Error("changes after one that is still to come are known")
		}
		if all, known := r.ChangesSince(kept-5, 10); !known || len(all) != 5 || all[4].After.Pod.Name != fmt.Sprint("p", kept-1) {
			t.Errorf("the last five changes: %v, %v", all, known)
		}
	})
}

// A pod has a status as a whole, even before its first container is created.
func TestSnapshot_Pod_HasItsStatus(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		expect := func(name string, want device.ReadinessState, reason device.Reason) {
			t.Helper()
			synctest.Wait()
			if st := r.PodByUID(device.PodUID(name)); st.State != want || st.Wait.Reason != reason {
				t.Errorf("%s stands %v, want %v %v", name, st, want, reason)
			}
		}
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		expect("a", device.Unknown, "")
		r.bind("plain")
		expect("plain", device.NoDevices, "")
		answer := make(chan error)
		r.plugins.answers(func(context.Context, device.Pod, device.ResourceName) error { return <-answer })
		r.bind("a", app(gpu, 1))
		expect("a", device.Waiting, device.Allocating)
		answer <- nil
		expect("a", device.Ready, "")
		r.bind("b", app(gpu, 1))
		expect("b", device.Waiting, device.NotEnoughDevices)
		r.Drop("a")
		answer <- errors.New("no")
		expect("b", device.Waiting, device.PluginError)
		r.Drop("b")
		expect("b", device.Unknown, "")
	})
}

// A mirror pod's status changes often; the feed changes only if its published content does.
func TestAMirrorsStatusIsNoChange(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 2)
		d := pod("static", app(gpu, 1))
		d.Local = true
		r.Bind(d)
		m := pod("static", app(gpu, 1))
		m.Pod.UID, m.Mirror, m.Containers = "mirror", true, []string{"side", "main"}
		m.Sidecars = 1
		r.Bind(m)
		synctest.Wait()
		at := r.Snapshot().Revision
		for range 5 {
			r.Bind(m)
		}
		synctest.Wait()
		if now := r.Snapshot().Revision; now != at {
			t.Errorf("%d changes", now-at)
		}
	})
}
