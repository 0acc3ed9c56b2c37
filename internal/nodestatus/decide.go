package nodestatus

import (
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// withdrawDelay is how long a resource is off the Node before its lower capacity appears: a pod may take that long from the
// scheduler's decision to the kubelet's.
const withdrawDelay = time.Second

// A situation is what one decision is about.
type situation struct {
	node      nodeState // an existing Node
	capacity  map[device.ResourceName]int
	certain   certain
	shared    map[device.ResourceName]bool // of capacity: the kubelet manages them too
	requested map[device.ResourceName]int  // by the pods bound to the node
	listed    bool                         // requested and capacity count the pods bound to the node; else some are missing, and some are gone
	began     time.Time                    // when devmgrd started: the API server may have been away just before
	back      time.Time                    // when the API server was back after an outage; zero: it was never away
	retired   []device.ResourceName        // resources to remove from the Node; empty until listed
}

// A decision is what the publisher does about a situation.
type decision struct {
	want        map[device.ResourceName]int // the values that the Node shows in the end
	overwritten []device.ResourceName       // wanted and retired resources whose values another writer has changed
	patch       quantities                  // empty: none now
	again       time.Time                   // when to decide again if nothing changes; zero: never
	settled     bool                        // the Node shows want, and none of the retired resources
}

// A decider decides what the Node shows next. It is what the publisher remembers from one decision to the next. It reads no clock,
// and does nothing itself: its caller passes the time, which never runs backwards, and reports each patch that succeeded.
type decider struct {
	stable    stabilizers
	peaks     peaks                             // values that the scheduler may have seen
	ours      quantities                        // the values of devmgrd's patches
	withdrawn map[device.ResourceName]time.Time // resources removed from the Node on their way to a lower value, and when
	found     map[device.ResourceName]int       // what the Node showed at the first decision; nil: not read yet
	latest    map[device.ResourceName]int       // devmgrd's latest values, which others know until they see another one
}

func newDecider() *decider {
	return &decider{stable: stabilizers{}, peaks: peaks{}, ours: quantities{}, withdrawn: map[device.ResourceName]time.Time{}, latest: map[device.ResourceName]int{}}
}

// forget drops what is remembered of a Node that is gone: a kubelet creates the next one without devmgrd's values, which is not
// contention.
func (d *decider) forget() { *d = *newDecider() }

// decide returns the next step. A patch in it counts as sent from then on, because its answer may be lost.
func (d *decider) decide(s situation, now time.Time) decision {
	want, again := d.wanted(s, now)
	out := decision{want: want, again: again}
	for _, r := range s.node.overwritten(d.ours) {
		delete(d.ours, r) // until devmgrd writes the value again
		if _, wanted := want[r]; wanted || slices.Contains(s.retired, r) {
			out.overwritten = append(out.overwritten, r)
		}
	}
	diff, left := s.node.differences(want), s.node.shown(s.retired)
	if len(diff) == 0 && len(left) == 0 {
		for r, n := range want {
			d.ours[r], d.latest[r] = &n, n
		}
		clear(d.withdrawn)
		out.settled = true
		return out
	}
	patch, rest := s.node.step(diff, func(r device.ResourceName) time.Duration { return d.withdrawn[r].Add(withdrawDelay).Sub(now) })
	for _, r := range left {
		patch[r] = nil
		delete(d.latest, r)
	}
	for r, n := range patch {
		delete(d.ours, r)
		if _, wanted := want[r]; wanted && n == nil {
			d.withdrawn[r] = now
		}
	}
	out.patch = patch
	if len(patch) == 0 {
		out.again = loops.Earliest(now.Add(rest), again)
	}
	return out
}

// patched records that a patch has succeeded.
func (d *decider) patched(patch quantities) {
	maps.Copy(d.ours, patch)
	for r, n := range patch {
		if n != nil {
			d.latest[r] = *n
			delete(d.withdrawn, r)
		}
	}
}

// following returns the values that will follow withdrawn ones.
func (d *decider) following(want map[device.ResourceName]int) map[device.ResourceName]int {
	values := map[device.ResourceName]int{}
	for r := range d.withdrawn {
		if n, wanted := want[r]; wanted {
			values[r] = n
		}
	}
	return values
}

// last returns the patch at the end: the values of resources that have just been withdrawn. What the Node still shows does not fall: the
// patch that was to withdraw it may have failed. A kubelet that has the resource fails the pods in any case.
func (d *decider) last(s situation, now time.Time) quantities {
	want, _ := d.wanted(s, now)
	patch := quantities{}
	for r, n := range d.following(want) {
		if !s.shared[r] {
			n = max(n, s.node.capacity[r])
		}
		patch[r] = &n
	}
	return patch
}
