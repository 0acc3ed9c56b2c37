package feed

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Bounds of the changes kept for followers: their number, and their memory by weight. Changes of pods with few devices weigh
// some 2 KiB each, those of a pod with 8000 devices a megabyte.
const (
	maxChanges      = 4096
	maxChangesBytes = 16 << 20
)

// A Feed publishes allocations to readers. Its methods must not run at the same time.
type Feed struct {
	revision uint64          // of the newest change
	changes  []device.Change // the newest changes, the oldest first
	weight   int             // of all of them
	updated  chan struct{}   // closed with the next change
}

// New returns a Feed without changes.
func New() *Feed { return &Feed{updated: make(chan struct{})} }

// Publish adds the change of one pod's allocation, if it is one, and wakes the followers. before is nil for a new pod, and now
// for a pod that is gone.
func (f *Feed) Publish(before, now *device.PodAllocation, at time.Time) (changed bool) {
	if alike(before, now) {
		return false
	}
	f.revision++
	f.keep(device.Change{Revision: f.revision, At: at, Before: before, After: now})
	f.Notify()
	return true
}

// Notify wakes the followers.
func (f *Feed) Notify() {
	close(f.updated)
	f.updated = make(chan struct{})
}

// Updated returns a channel that the next Publish or Notify closes.
func (f *Feed) Updated() <-chan struct{} { return f.updated }

// Revision returns the revision of the newest change.
func (f *Feed) Revision() uint64 { return f.revision }

// Since returns the changes after a revision in order, at most most of them. It returns false if the feed no longer has all of
// them, or never had: then the reader needs a new Snapshot.
func (f *Feed) Since(revision uint64, most int) ([]device.Change, bool) {
	if revision > f.revision || f.revision-revision > uint64(len(f.changes)) {
		return nil, false
	}
	after := f.changes[len(f.changes)-int(f.revision-revision):]
	all := make([]device.Change, min(len(after), most))
	copy(all, after)
	return all, true
}

// keep adds a change and drops the oldest ones until the bounds hold. It always keeps the newest.
func (f *Feed) keep(c device.Change) {
	f.changes, f.weight = append(f.changes, c), f.weight+weight(c)
	for len(f.changes) > 1 && (len(f.changes) > maxChanges || f.weight > maxChangesBytes) {
		f.weight -= weight(f.changes[0])
		f.changes[0] = device.Change{} // the array behind the slice stays until it is full
		f.changes = f.changes[1:]
	}
}

// weight estimates the memory that a change holds, in bytes. Memory shared by several changes counts for each of them.
func weight(c device.Change) int {
	n := 128
	for _, h := range []*device.PodAllocation{c.Before, c.After} {
		if h == nil {
			continue
		}
		n += 256
		for _, name := range h.Containers {
			n += 16 + len(name)
		}
	}
	if c.After != nil {
		n += weightOf(c.After.Assignments)
	}
	if c.Before != nil && (c.After == nil || !sameAssignments(c.Before, c.After)) {
		n += weightOf(c.Before.Assignments)
	}
	return n
}

func weightOf(all []device.Assignment) int {
	n := 128 * len(all)
	for _, s := range device.Shares(all) {
		n += 256 + 24*len(s.Near) + s.Grant.Size()
		for _, id := range s.IDs {
			n += 16 + len(id)
		}
	}
	return n
}

// alike reports whether two allocations of one pod are published in the same way.
func alike(a, b *device.PodAllocation) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Active == b.Active && a.Incomplete == b.Incomplete && a.Sidecars == b.Sidecars && slices.Equal(a.Containers, b.Containers) &&
		sameAssignments(a, b)
}

// sameAssignments reports whether two allocations share their assignments in memory: values are replaced, never edited.
func sameAssignments(a, b *device.PodAllocation) bool {
	return len(a.Assignments) == len(b.Assignments) && (len(a.Assignments) == 0 || &a.Assignments[0] == &b.Assignments[0])
}
