package ledger

import (
	"fmt"
	"slices"
)

// Check recounts the devices, and returns an error if a count or a set is wrong. It is for tests.
func (r *Resource) Check() error {
	free, unusable, listed := 0, 0, 0
	freeAt := make([]int, len(r.freeAt))
	for i, d := range r.listing.devices {
		taken := r.IsTaken(d.ID)
		_, cordoned := r.listing.cordons[d.ID]
		usable := d.Healthy && !cordoned
		isFree := usable && !taken && !r.withheld.Has(i)
		if r.free.Has(i) != isFree {
			return fmt.Errorf("device %s: free is %v", d.ID, !isFree)
		}
		at := r.listing.Place(i)
		if at >= 0 && !slices.Equal(r.listing.places[at], d.NUMA) {
			return fmt.Errorf("device %s is said to be at %v", d.ID, r.listing.places[at])
		}
		if taken {
			listed++
			if !usable {
				unusable++
			}
		}
		if isFree {
			free++
			if at >= 0 {
				freeAt[at]++
			}
		}
	}
	if free != r.freeCount || unusable != r.takenUnusable || len(r.taken)-listed != r.unlisted {
		return fmt.Errorf("%d free, %d taken and unusable, %d not listed, counted %d, %d and %d",
			free, unusable, len(r.taken)-listed, r.freeCount, r.takenUnusable, r.unlisted)
	}
	if !slices.Equal(freeAt, r.freeAt) {
		return fmt.Errorf("%v free near %v, counted %v", freeAt, r.listing.places, r.freeAt)
	}
	for i, number := range r.freed {
		if id := r.listing.devices[i].ID; number != r.released[id] || number > r.count {
			return fmt.Errorf("device %s was last freed by release %d of %d, counted %d", id, r.released[id], r.count, number)
		}
	}
	for of := range r.releasing {
		if !r.Has(of.id, of.pod) || r.quarantined[of.id] {
			return fmt.Errorf("device %s is being released, and pod %s has not been assigned it", of.id, of.pod)
		}
	}
	for id, pods := range r.sharers {
		if holder, taken := r.taken[id]; !taken || len(pods) == 0 || slices.Contains(pods, holder) || r.quarantined[id] {
			return fmt.Errorf("device %s: taken %v, by %s and %v, quarantined %v", id, taken, holder, pods, r.quarantined[id])
		}
	}
	for id := range r.quarantined {
		if !r.IsTaken(id) {
			return fmt.Errorf("device %s is set aside and not taken", id)
		}
	}
	return r.failures.Check(r.Has)
}
