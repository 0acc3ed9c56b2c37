package ledger

import (
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/device"
)

// An index counts the devices of a listing, so that the cost of a plan does not depend on their number. Each change counts one device; only a
// new listing recounts all.
type index struct {
	free          bitset.Mutable // the positions of the free devices
	freeCount     int
	freeAt        []int // free devices at each place of the listing
	takenUnusable int   // taken, listed, and not usable
	unlisted      int   // taken, and not listed
}

func (x *index) Free() bitset.Set     { return x.free.Set } // their positions; each change of the ledger changes the set
func (x *index) FreeCount() int       { return x.freeCount }
func (x *index) FreeAt(place int) int { return x.freeAt[place] } // the number at a place of the listing
func (x *index) Unlisted() int        { return x.unlisted }      // the number of taken devices that the plugin does not list

// set counts the device at a position as free, or no longer as free.
func (x *index) set(l *Listing, i int, free bool) {
	by := 1
	if free {
		x.free.Add(i)
	} else {
		x.free.Remove(i)
		by = -1
	}
	x.freeCount += by
	if at := l.Place(i); at >= 0 {
		x.freeAt[at] += by
	}
}

// setListing replaces the listing and recounts. Nothing is withheld until the next withhold.
func (r *Resource) setListing(l *Listing) {
	same := r.listing.matched == l.matched
	r.listing, r.withheld = l, bitset.Mutable{}
	r.index = index{free: l.usable.Clone(), freeCount: l.usableCount, freeAt: slices.Clone(l.usableAt)}
	if l.ordering.Order == Oldest && (!same || r.freed == nil) {
		r.releases.locate(l)
	}
	for id := range r.taken {
		r.countTaken(id)
	}
	maps.DeleteFunc(r.granted, func(id device.ID, _ device.PodUID) bool { return !l.Lists(id) && !r.IsTaken(id) })
}

// take records a device as a pod's, unless it is taken already. It reports whether it was not.
func (r *Resource) take(id device.ID, pod device.PodUID) bool {
	if r.IsTaken(id) {
		return false
	}
	r.taken[id] = pod
	r.countTaken(id)
	return true
}

// countTaken counts a device that has been taken.
func (r *Resource) countTaken(id device.ID) {
	switch i, listed := r.listing.At(id); {
	case !listed:
		r.unlisted++
	case r.free.Has(i):
		r.index.set(r.listing, i, false)
	case !r.listing.usable.Has(i):
		r.takenUnusable++
	}
}

// leave removes devices from those of a pod. Those that other pods have too stay theirs.
func (r *Resource) leave(ids []device.ID, pod device.PodUID) {
	now := time.Now()
	for _, id := range ids {
		r.failures.Leave(id, pod, now)
		if !r.Has(id, pod) || r.holders.remove(id, pod) {
			continue
		}
		delete(r.vanished, id)
		switch i, listed := r.listing.At(id); {
		case !listed:
			r.unlisted--
		case !r.listing.usable.Has(i):
			r.takenUnusable--
		case !r.withheld.Has(i):
			r.index.set(r.listing, i, true)
		}
	}
}

// quarantine records devices that a pod runs with, unless they are taken already.
func (r *Resource) quarantine(ids []device.ID, pod device.PodUID) {
	for _, id := range ids {
		if r.take(id, pod) {
			r.quarantined[id] = true
		}
	}
}

// maxUnlistedReleases bounds the devices whose release is remembered though they are not listed: a plugin lists nothing for a
// moment after its start.
const maxUnlistedReleases = 4096

// releases are the order in which devices have been released, if the resource's order is Oldest.
type releases struct {
	count    int64               // so far
	released map[device.ID]int64 // by device, the number of its last release; not listed devices as well
	freed    []int64             // the same by position
}

// Freed returns the number of the last release of the device at a position; 0: it has never been released. The order must be Oldest.
func (rs *releases) Freed(i int) int64 { return rs.freed[i] }

// locate finds the positions of released devices in a new listing.
func (rs *releases) locate(l *Listing) {
	rs.freed = make([]int64, len(l.devices))
	for id, number := range rs.released {
		if i, listed := l.At(id); listed {
			rs.freed[i] = number
		} else if len(rs.released) > len(l.devices)+maxUnlistedReleases {
			delete(rs.released, id)
		}
	}
}

// used records that pods have used devices, which are released. The end of a hold is no use.
func (r *Resource) used(ids []device.ID) {
	if r.listing.ordering.Order != Oldest {
		return
	}
	for _, id := range ids {
		r.releases.count++
		r.released[id] = r.releases.count
		if i, listed := r.listing.At(id); listed {
			r.freed[i] = r.releases.count
		}
	}
}
