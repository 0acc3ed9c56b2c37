package allocator_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

var errSync = errors.New("fdatasync: input/output error")

func TestFailedCommit_DevicesStayHeldUntilTheNextOne(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1, 0)
		r.RuntimeSynced(nil, nil)
		r.bind("b", app(gpu, 1)) // a is older
		r.after(5 * time.Second) // b is on disk
		r.expect("b", "main", "waiting DeviceUnhealthy")

		r.disk.failsLate(errSync)
		r.plugins.stock(gpu, 1)
		r.expect("b", "main", "waiting StoreUnavailable")
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting NotEnoughDevices") // the file may say that b has it
		r.after(time.Minute)
		r.expect("a", "main", "waiting NotEnoughDevices")
		r.disk.failsLate(nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "waiting NotEnoughDevices")
	})
}

func TestFailedCommit_OfAPodThatIsDeleted_LeavesNoRecord(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.disk.failsLate(errSync)
		r.bind("a", app(gpu, 1)) // nothing of it is on disk
		r.expect("a", "main", "waiting StoreUnavailable")
		r.Drop("a")
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.disk.failsLate(nil)
		r.after(2 * time.Second)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		onDisk, err := podsOnDisk(r.store)
		if err != nil || len(onDisk) != 1 {
			t.Errorf("on disk are %v, %v", onDisk, err)
		}
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.Replace([]device.PodDemand{pod("b", app(gpu, 1)), pod("c", app(gpu, 1))})
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.expect("c", "main", "waiting NotEnoughDevices")
	})
}

// contradict writes two records with d0 into the state file, as an older version without holds leaves them.
func contradict(r *harness) {
	r.t.Helper()
	var records []device.PodRecord
	for _, name := range []string{"a", "b"} {
		d := pod(name, app(gpu, 1))
		records = append(records, device.PodRecord{Demand: d, Assignments: []device.Assignment{
			{Container: d.Demands[0].Container, Shares: []device.Share{{Resource: gpu, IDs: []device.ID{"d0"}}}}}})
	}
	if err := r.store.SavePods(records, nil); err != nil {
		r.t.Fatal(err)
	}
	r.restart()
}

func TestContradictingRecords_ServedToNeither_UntilTheRuntimeTells(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"neither", "a", "b"} {
		t.Run(who, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 3)
				contradict(r)
				r.after(time.Minute)
				r.expect("a", "main", "waiting AssignmentConflict")
				r.expect("b", "main", "waiting AssignmentConflict")
				r.bind("c", app(gpu, 1))
				r.expect("c", "main", "busy Allocating")
				var all []device.Running
				if who != "neither" {
					c := running("1", who, "main")
					c.Stamp = map[device.ResourceName][]device.ID{gpu: {"d0"}}
					all = append(all, c)
				}
				r.RuntimeSynced(all, nil)
				r.after(time.Minute)
				for _, name := range []string{"a", "b", "c"} {
					if st := r.stands(name, "main"); !strings.HasPrefix(st, "ready") || name == who && st != "ready vendor.com/gpu[d0]" {
						t.Errorf("%s stands %q", name, st)
					}
				}
				r.check()
				r.restart()
				r.check()
			}, func(r *harness) { r.mute = true })
		})
	}
}
