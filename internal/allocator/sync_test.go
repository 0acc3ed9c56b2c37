package allocator_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// behind stops the planning loop before it compares the runtime's lists with the state file, while f runs.
func (r *harness) behind(f func()) {
	synctest.Wait()
	r.plugins.mu.Lock() // the loop asks for the offers first
	f()
	r.plugins.mu.Unlock()
	synctest.Wait()
}

func TestSynchronization_NotComparedYet_AnswersNothing(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		c, old := running("1", "a", "main"), running("0", "old", "main")
		old.Stamp = device.Choice{gpu: {"d1"}}
		var st, free device.Readiness
		r.bind("plain")
		r.behind(func() {
			r.RuntimeSynced([]device.Running{old}, nil)
			st, free = r.RuntimeCreating(c), r.RuntimeCreating(running("2", "plain", "main"))
			r.Bind(pod("b", app(gpu, 1)))
		})
		if st.State != device.Pending || st.Wait.Reason != device.Allocating {
			t.Errorf("Claim answers %+v before the comparison", st)
		}
		if free.State != device.NoDevices {
			t.Errorf("a container that asks for nothing is answered %+v", free)
		}
		select {
		case <-st.Done:
		default:
			t.Fatal("the wait does not end with the comparison")
		}
		if st := r.RuntimeCreating(c); st.State != device.Ready {
			t.Errorf("Claim answers %+v after the comparison", st)
		}
		r.expect("b", "main", "waiting NotEnoughDevices")
	}, func(r *harness) { r.mute = true })
}

// Reports of the runtime after its lists are applied after the lists.
func TestSynchronization_ReportsBehindIt_KeepTheirOrder(t *testing.T) {
	t.Parallel()
	local := pod("l", app(gpu, 1))
	local.Local = true
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.Drop("a")
		ended := running("1", "a", "main")
		r.behind(func() {
			r.RuntimeSynced([]device.Running{ended}, nil)
			r.RuntimeStopped(ended)
			r.Bind(local)
		})
		r.after(time.Minute)
		r.expect("l", "main", "ready vendor.com/gpu[d1]") // planned before the release of pod a was on disk
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.behind(func() {
			r.RuntimeSynced(nil, []device.PodDemand{local})
			r.RuntimeLost()
		})
		r.Drop("b")
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "waiting NotEnoughDevices") // nothing is released while the runtime is away
	})
}
