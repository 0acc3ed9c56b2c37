package placement

import (
	"fmt"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Check recounts the devices, and returns an error if a count or a set is wrong. It is for tests.
func (p *Resource) Check() error {
	free, unusable, listed := 0, 0, 0
	freeAt := make([]int, len(p.freeAt))
	for i, d := range p.listing.devices {
		_, taken := p.taken[d.ID]
		_, cordoned := p.listing.cordons[d.ID]
		usable := d.Healthy && !cordoned
		isFree := usable && !taken && !(p.withheld != nil && p.withheld.has(i))
		if p.free.has(i) != isFree {
			return fmt.Errorf("device %s: free is %v", d.ID, !isFree)
		}
		at := p.listing.place(i)
		if at >= 0 && !slices.Equal(p.listing.places[at], d.NUMA) {
			return fmt.Errorf("device %s is said to be at %v", d.ID, p.listing.places[at])
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
	if free != p.freeCount || unusable != p.takenUnusable || len(p.taken)-listed != p.unlisted {
		return fmt.Errorf("%d free, %d taken and unusable, %d not listed, counted %d, %d and %d",
			free, unusable, len(p.taken)-listed, p.freeCount, p.takenUnusable, p.unlisted)
	}
	if !slices.Equal(freeAt, p.freeAt) {
		return fmt.Errorf("%v free near %v, counted %v", freeAt, p.listing.places, p.freeAt)
	}
	for i, number := range p.freed {
		if id := p.listing.devices[i].ID; number != p.released[id] || number > p.releases {
			return fmt.Errorf("device %s was last freed by release %d of %d, counted %d", id, p.released[id], p.releases, number)
		}
	}
	for of := range p.releasing {
		if !p.Has(of.id, of.pod) || p.quarantined[of.id] {
			return fmt.Errorf("device %s is being released, and pod %s has not been assigned it", of.id, of.pod)
		}
	}
	for id, pods := range p.sharers {
		if holder, taken := p.taken[id]; !taken || len(pods) == 0 || slices.Contains(pods, holder) || p.quarantined[id] {
			return fmt.Errorf("device %s: taken %v, by %s and %v, quarantined %v", id, taken, holder, pods, p.quarantined[id])
		}
	}
	for id := range p.quarantined {
		if _, taken := p.taken[id]; !taken {
			return fmt.Errorf("device %s is set aside and not taken", id)
		}
	}
	return nil
}

// Withheld reports whether a device is withheld, be it free otherwise or not. It is for tests.
func (p *Resource) Withheld(id device.ID) bool {
	i, listed := p.listing.at[id]
	return listed && p.withheld != nil && p.withheld.has(i)
}
