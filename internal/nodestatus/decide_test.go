package nodestatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// values reads "gpu:3 nic:1/2": 3 as capacity and allocatable, 1 as capacity and 2 as allocatable.
func values(text string) (capacity, allocatable map[device.ResourceName]int) {
	capacity, allocatable = map[device.ResourceName]int{}, map[device.ResourceName]int{}
	for _, one := range strings.Fields(text) {
		name, number, _ := strings.Cut(one, ":")
		var c, a int
		if n, _ := fmt.Sscanf(number, "%d/%d", &c, &a); n == 1 {
			a = c
		}
		r := device.ResourceName("vendor.com/" + name)
		capacity[r], allocatable[r] = c, a
	}
	return capacity, allocatable
}

// written formats a patch like values; "gpu:-" removes a resource.
func written(patch quantities) string {
	var all []string
	for _, r := range slices.Sorted(maps.Keys(patch)) {
		name, number := strings.TrimPrefix(string(r), "vendor.com/"), "-"
		if n := patch[r]; n != nil {
			number = fmt.Sprint(*n)
		}
		all = append(all, name+":"+number)
	}
	return strings.Join(all, " ")
}

// A turn is one decision at a time. The Node shows what the patches so far have made of it, unless it is given.
type turn struct {
	at        time.Duration
	node      string // another writer's values; "": unchanged; "none": no resources
	capacity  string
	requested string
	unlisted  bool
	retired   string
	cordoned  string        // devices that no pod has
	away      bool          // the plugins count as lost
	lost      bool          // the patch fails
	back      time.Duration // when the API server was back; 0: it was never away
	began     time.Duration // when devmgrd started; 0: long ago

	patch       string
	again       time.Duration // 0: never
	overwritten string
	settled     bool
}

func TestDecide(t *testing.T) {
	t.Parallel()
	for name, turns := range map[string][]turn{
		"a new resource is shown at once": {
			{capacity: "gpu:2", patch: "gpu:2"},
			{capacity: "gpu:2", settled: true},
		},
		"a rise is one patch": {
			{node: "gpu:2", capacity: "gpu:2", settled: true},
			{at: time.Second, capacity: "gpu:3", patch: "gpu:3"},
			{at: time.Second, capacity: "gpu:3", settled: true},
		},
		"a fall waits for the window, then the resource is off the Node for a second": {
			{node: "gpu:3", capacity: "gpu:3", settled: true},
			{at: time.Second, capacity: "gpu:2", again: 6 * time.Second, settled: true},
			{at: 6 * time.Second, capacity: "gpu:2", patch: "gpu:-"},
			{at: 6500 * time.Millisecond, capacity: "gpu:2", again: 7 * time.Second},
			{at: 7 * time.Second, capacity: "gpu:2", patch: "gpu:2"},
			{at: 7 * time.Second, capacity: "gpu:2", settled: true},
		},
		"a fall that is reverted in time changes nothing": {
			{node: "gpu:3", capacity: "gpu:3", settled: true},
			{at: time.Second, capacity: "gpu:0", again: 6 * time.Second, settled: true},
			{at: 2 * time.Second, capacity: "gpu:3", settled: true},
		},
		"a cordon falls at once, also after a device has wavered": {
			{node: "gpu:4", capacity: "gpu:4", settled: true},
			{at: 1 * time.Second, capacity: "gpu:3", again: 6 * time.Second, settled: true},
			{at: 6 * time.Second, capacity: "gpu:3", patch: "gpu:-"},
			{at: 7 * time.Second, capacity: "gpu:3", patch: "gpu:3"},
			{at: 16 * time.Second, capacity: "gpu:4", patch: "gpu:4"},
			{at: 20 * time.Second, capacity: "gpu:3", cordoned: "gpu:1", patch: "gpu:-"},
			{at: 21 * time.Second, capacity: "gpu:3", cordoned: "gpu:1", patch: "gpu:3"},
			{at: 21 * time.Second, capacity: "gpu:3", cordoned: "gpu:1", settled: true},
			{at: 22 * time.Second, capacity: "gpu:2", cordoned: "gpu:1", again: 42 * time.Second, settled: true}, // another one has failed: that may pass
			{at: 23 * time.Second, capacity: "gpu:2", cordoned: "gpu:2", patch: "gpu:-"},                         // and is cordoned
			{at: 24 * time.Second, capacity: "gpu:2", cordoned: "gpu:2", patch: "gpu:2"},
			{at: 25 * time.Second, capacity: "gpu:3", cordoned: "gpu:1", patch: "gpu:3"},
		},
		"a lost plugin's number falls at once, at most every ten seconds": {
			{node: "gpu:4 nic:1", capacity: "gpu:4 nic:1", settled: true},
			{at: 20 * time.Second, capacity: "gpu:1 nic:1", away: true, patch: "gpu:-"},
			{at: 21 * time.Second, capacity: "gpu:1 nic:1", away: true, patch: "gpu:1"},
			{at: 22 * time.Second, capacity: "gpu:4 nic:1", patch: "gpu:4"},
			{at: 23 * time.Second, capacity: "gpu:1 nic:1", away: true, again: 30 * time.Second, settled: true},
			{at: 30 * time.Second, capacity: "gpu:1 nic:1", away: true, patch: "gpu:-"},
		},
		"nothing falls before all pods are listed": {
			{node: "gpu:3", capacity: "gpu:1", unlisted: true, settled: true},
			{at: time.Minute, capacity: "gpu:1", unlisted: true, settled: true},
			{at: time.Minute, capacity: "gpu:1", again: time.Minute + shortest, settled: true},
		},
		"nothing falls for a while after an outage of the API server": {
			{node: "gpu:3", capacity: "gpu:3", settled: true},
			{at: time.Second, capacity: "gpu:2", again: 6 * time.Second, settled: true},
			{at: 6 * time.Second, capacity: "gpu:2", patch: "gpu:-", lost: true},
			{at: 10 * time.Second, capacity: "gpu:2", back: 10 * time.Second, again: 40 * time.Second, settled: true},
			{at: 40 * time.Second, capacity: "gpu:2", back: 10 * time.Second, patch: "gpu:-"},
		},
		"nothing rises for a while after an outage of the API server, except for pods that are bound and what the Node does not show": {
			{node: "gpu:1 old:1", capacity: "gpu:1 old:1", settled: true},
			{at: 10 * time.Second, capacity: "gpu:4 nic:2 old:1", back: 10 * time.Second, patch: "nic:2", again: 40 * time.Second},
			{at: 11 * time.Second, capacity: "gpu:4 nic:2 old:1", back: 10 * time.Second, again: 40 * time.Second, settled: true},
			{at: 12 * time.Second, node: "gpu:0 nic:2 old:1", capacity: "gpu:4 nic:2 old:1", back: 10 * time.Second, patch: "gpu:1", overwritten: "gpu", again: 40 * time.Second},
			{at: 13 * time.Second, capacity: "gpu:4 nic:2 old:1", requested: "gpu:3", back: 10 * time.Second, patch: "gpu:3", again: 40 * time.Second},
			{at: 14 * time.Second, capacity: "gpu:4 nic:2 old:1", requested: "gpu:9", back: 10 * time.Second, patch: "gpu:4", again: 40 * time.Second}, // bound past the scheduler
			{at: 15 * time.Second, capacity: "gpu:6 nic:2 old:1", back: 10 * time.Second, again: 40 * time.Second, settled: true},
			{at: 40 * time.Second, capacity: "gpu:6 nic:2 old:1", back: 10 * time.Second, patch: "gpu:6"},
		},
		"what the Node shows at the start does not rise for a while, except for pods that are bound, from zero, and after a fall": {
			{at: time.Second, node: "gpu:1 fpga:0", capacity: "gpu:4 nic:2 fpga:2", began: time.Second, patch: "fpga:2 nic:2", again: 31 * time.Second},
			{at: 2 * time.Second, capacity: "gpu:4 nic:3 fpga:2", requested: "gpu:2", began: time.Second, patch: "gpu:2 nic:3", again: 31 * time.Second},
			{at: 3 * time.Second, capacity: "gpu:0 nic:3 fpga:2", began: time.Second, again: 8 * time.Second, settled: true},
			{at: 8 * time.Second, capacity: "gpu:0 nic:3 fpga:2", began: time.Second, patch: "gpu:-", again: 31 * time.Second},
			{at: 9 * time.Second, capacity: "gpu:0 nic:3 fpga:2", began: time.Second, patch: "gpu:0", again: 31 * time.Second},
			{at: 10 * time.Second, capacity: "gpu:4 nic:3 fpga:2", began: time.Second, patch: "gpu:1", again: 31 * time.Second},
			{at: 31 * time.Second, capacity: "gpu:4 nic:3 fpga:2", began: time.Second, patch: "gpu:4"},
		},
		"nothing rises for pods of the state file before all pods are listed, after an outage": {
			{at: 9 * time.Second, node: "gpu:3", capacity: "gpu:4", requested: "gpu:4", unlisted: true, began: time.Second, back: 9 * time.Second, again: 39 * time.Second, settled: true},
			{at: 10 * time.Second, capacity: "gpu:4", requested: "gpu:3", began: time.Second, back: 9 * time.Second, again: 39 * time.Second, settled: true},
			{at: 11 * time.Second, capacity: "gpu:4", requested: "gpu:4", began: time.Second, back: 9 * time.Second, patch: "gpu:4", again: 39 * time.Second},
		},
		"nothing rises for pods of the state file before all pods are listed, at the start": {
			{at: time.Second, node: "gpu:3", capacity: "gpu:4", requested: "gpu:4", unlisted: true, began: time.Second, again: 31 * time.Second, settled: true},
			{at: 2 * time.Second, capacity: "gpu:4", requested: "gpu:3", began: time.Second, again: 31 * time.Second, settled: true},
			{at: 3 * time.Second, capacity: "gpu:4", requested: "gpu:4", began: time.Second, patch: "gpu:4", again: 31 * time.Second},
		},
		"what was withdrawn before an outage is back as it was": {
			{node: "gpu:2 nic:2", capacity: "gpu:2 nic:2", settled: true},
			{at: time.Second, capacity: "gpu:1 nic:1", again: 6 * time.Second, settled: true},
			{at: 6 * time.Second, capacity: "gpu:1 nic:1", patch: "gpu:- nic:-"},
			{at: 10 * time.Second, capacity: "gpu:1 nic:4", back: 10 * time.Second, patch: "gpu:2 nic:2", again: 40 * time.Second},
			{at: 40 * time.Second, capacity: "gpu:1 nic:4", back: 10 * time.Second, patch: "gpu:- nic:4"},
		},
		"what is found at the start and withdrawn does not come back higher": {
			{at: time.Second, node: "gpu:2", capacity: "gpu:1", began: time.Second, again: 6 * time.Second, settled: true},
			{at: 6 * time.Second, capacity: "gpu:1", began: time.Second, patch: "gpu:-", again: 31 * time.Second},
			{at: 7 * time.Second, capacity: "gpu:4", began: time.Second, patch: "gpu:2", again: 31 * time.Second},
		},
		"another writer's value is replaced after an outage too, also at the second try": {
			{node: "gpu:4 nic:2", capacity: "gpu:4 nic:2", settled: true},
			{at: 12 * time.Second, node: "gpu:0 nic:8", capacity: "gpu:4 nic:2", back: 10 * time.Second, patch: "gpu:4 nic:-", overwritten: "gpu nic", again: 40 * time.Second, lost: true},
			{at: 13 * time.Second, capacity: "gpu:4 nic:2", back: 10 * time.Second, patch: "gpu:4 nic:-", again: 40 * time.Second},
			{at: 14 * time.Second, capacity: "gpu:4 nic:2", back: 10 * time.Second, patch: "nic:2", again: 40 * time.Second},
		},
		"an outage right after the start": {
			{at: time.Second, node: "gpu:1", capacity: "gpu:4", began: time.Second, again: 31 * time.Second, settled: true},
			{at: 5 * time.Second, capacity: "gpu:4", began: time.Second, back: 5 * time.Second, again: 35 * time.Second, settled: true},
			{at: 31 * time.Second, capacity: "gpu:4", began: time.Second, back: 5 * time.Second, again: 35 * time.Second, settled: true},
			{at: 35 * time.Second, capacity: "gpu:4", began: time.Second, back: 5 * time.Second, patch: "gpu:4"},
		},
		"pods that were bound by a higher value hold it": {
			{node: "gpu:3", capacity: "gpu:3", settled: true},
			{at: time.Second, capacity: "gpu:0", requested: "gpu:3", settled: true},
			{at: 2 * time.Second, capacity: "gpu:0", requested: "gpu:9", settled: true}, // bound past the scheduler
		},
		"a device is back in service, and pods have held the number meanwhile": {
			{node: "gpu:4", capacity: "gpu:4", settled: true},
			{at: time.Second, capacity: "gpu:3", cordoned: "gpu:1", requested: "gpu:4", settled: true},
			{at: 2 * time.Second, capacity: "gpu:4", requested: "gpu:4", again: 7 * time.Second, settled: true},
			{at: 7 * time.Second, capacity: "gpu:4", requested: "gpu:4", settled: true},
			{at: 8 * time.Second, capacity: "gpu:3", again: 17 * time.Second, settled: true},
			{at: 9 * time.Second, capacity: "gpu:5", patch: "gpu:5"},
		},
		"another writer's value is replaced, and counted while devmgrd shows its own": {
			{node: "gpu:2", capacity: "gpu:2", settled: true},
			{at: time.Second, node: "gpu:1", capacity: "gpu:2", patch: "gpu:2", overwritten: "gpu"},
			{at: 2 * time.Second, node: "gpu:2/1", capacity: "gpu:2", patch: "gpu:2", overwritten: "gpu"},
			{at: 3 * time.Second, node: "none", capacity: "gpu:2", patch: "gpu:2", overwritten: "gpu"},
			{at: 4 * time.Second, node: "gpu:8", capacity: "gpu:2", patch: "gpu:-", overwritten: "gpu"},
		},
		"a patch whose answer is lost is not contention": {
			{capacity: "gpu:2", patch: "gpu:2", lost: true},
			{at: time.Second, node: "gpu:2", capacity: "gpu:2", settled: true},
			{at: 2 * time.Second, capacity: "gpu:3", patch: "gpu:3", lost: true},
			{at: 3 * time.Second, node: "gpu:3", capacity: "gpu:3", settled: true},
		},
		"retired resources go, with all else in one patch": {
			{node: "old:0 gpu:1", capacity: "gpu:2", retired: "old never", patch: "gpu:2 old:-"},
			{at: time.Second, capacity: "gpu:2", retired: "old never", settled: true},
			{at: 2 * time.Second, node: "gpu:2 old:1", capacity: "gpu:2", settled: true}, // another writer's from now on
		},
		"two resources take their steps independently": {
			{node: "gpu:2 nic:2", capacity: "gpu:2 nic:2", settled: true},
			{at: time.Second, capacity: "gpu:1 nic:2", again: 6 * time.Second, settled: true},
			{at: 6 * time.Second, capacity: "gpu:1 nic:3", patch: "gpu:- nic:3"},
			{at: 6 * time.Second, capacity: "gpu:1 nic:3", again: 7 * time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d, start := newDecider(), time.Unix(1000, 0)
			node := nodeState{there: true}
			for i, turn := range turns {
				switch turn.node {
				case "":
				case "none":
					node.capacity, node.allocatable = nil, nil
				default:
					node.capacity, node.allocatable = values(turn.node)
				}
				s := situation{node: node, listed: !turn.unlisted}
				s.capacity, _ = values(turn.capacity)
				s.requested, _ = values(turn.requested)
				s.certain.out, _ = values(turn.cordoned)
				s.certain.lost = map[device.ResourceName]bool{"vendor.com/gpu": turn.away}
				for _, r := range strings.Fields(turn.retired) {
					s.retired = append(s.retired, device.ResourceName("vendor.com/"+r))
				}
				if turn.back > 0 {
					s.back = start.Add(turn.back)
				}
				if turn.began > 0 {
					s.began = start.Add(turn.began)
				}
				before := fmt.Sprint(node, s.capacity, s.requested)
				got := d.decide(s, start.Add(turn.at))
				if fmt.Sprint(node, s.capacity, s.requested) != before {
					t.Fatalf("turn %d has changed its input", i)
				}
				var again time.Duration
				if !got.again.IsZero() {
					again = got.again.Sub(start)
				}
				var overwritten []string
				for _, r := range got.overwritten {
					overwritten = append(overwritten, strings.TrimPrefix(string(r), "vendor.com/"))
				}
				is := fmt.Sprintf("patch %q again %s overwritten %q settled %v", written(got.patch), again, strings.Join(overwritten, " "), got.settled)
				want := fmt.Sprintf("patch %q again %s overwritten %q settled %v", turn.patch, turn.again, turn.overwritten, turn.settled)
				if is != want {
					t.Fatalf("turn %d: %s, want %s", i, is, want)
				}
				if len(got.patch) == 0 || turn.lost {
					continue
				}
				d.patched(got.patch)
				after := nodeState{there: true, capacity: maps.Clone(node.capacity), allocatable: maps.Clone(node.allocatable)}
				if after.capacity == nil {
					after.capacity, after.allocatable = map[device.ResourceName]int{}, map[device.ResourceName]int{}
				}
				for r, n := range got.patch {
					delete(after.capacity, r)
					if n != nil {
						after.capacity[r], after.allocatable[r] = *n, *n
					} else {
						delete(after.allocatable, r)
					}
				}
				node = after
			}
		})
	}
}

// At the end a resource that has just been withdrawn is put back: with its lower value, or the former one after an outage, for pods that were
// bound meanwhile, and where the Node shows it still.
func TestDecide_Last_RestoresWithdrawn(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		change func(*situation)
		want   string
	}{
		"nothing else has happened":    {func(*situation) {}, "gpu:2"},
		"all three are asked for":      {func(s *situation) { s.requested, _ = values("gpu:3") }, "gpu:3"},
		"the API server has been away": {func(s *situation) { s.back = time.Unix(1000, 0) }, "gpu:3"},
		"the patch has failed":         {func(s *situation) { s.node.capacity, s.node.allocatable = values("gpu:3 nic:1") }, "gpu:3"},
	} {
		d, start := newDecider(), time.Unix(1000, 0)
		s := situation{node: nodeState{there: true}, listed: true}
		s.node.capacity, s.node.allocatable = values("gpu:3 nic:1")
		s.capacity, _ = values("gpu:3 nic:1")
		d.decide(s, start)
		if last := d.last(s, start); len(last) > 0 {
			t.Errorf("with nothing withdrawn: %s", written(last))
		}
		s.capacity, _ = values("gpu:2 nic:1")
		d.decide(s, start)
		out := d.decide(s, start.Add(shortest))
		if written(out.patch) != "gpu:-" || d.following(out.want)["vendor.com/gpu"] != 2 {
			t.Fatalf("patch %s, to be followed by %v", written(out.patch), d.following(out.want))
		}
		s.node.capacity, s.node.allocatable = values("nic:1")
		test.change(&s)
		if last := written(d.last(s, start.Add(shortest))); last != test.want {
			t.Errorf("at the end, when %s: %q, want %q", what, last, test.want)
		}
	}
}
