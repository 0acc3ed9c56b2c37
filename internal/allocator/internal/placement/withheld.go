package placement

import (
	"math"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A plugin that restarts may list its devices under other IDs while pods use them under the old ones: time-slicing is
// switched on or off, a driver numbers its devices differently, or IDs are random. The device plugin API does not say
// which new ID is which old one, so a device is withheld while it may be in use under another ID.
//
// Two IDs are different devices if the plugin listed both at one time: when it granted the old one, it listed the new one
// already. NVIDIA's shared devices are named UUID::N, so their names say more: an ID of a physical device that is listed
// under any name stands for no other physical device.

// physical returns the part of an ID that names the physical device.
func physical(id device.ID) string {
	name, _, _ := strings.Cut(string(id), "::")
	return name
}

// Withhold removes the listed devices that may be one of the unlisted ones from the free ones, frees those that no longer
// may, and reports whether there are any of the latter.
func (p *Resource) Withhold(unlisted map[device.ID]int64) (freed bool) {
	since := map[string]int64{} // by physical device: IDs added later may name it
	for id, at := range unlisted {
		name := physical(id)
		if was, known := since[name]; !known || at < was {
			since[name] = at
		}
	}
	listed := map[string]bool{} // physical devices with an unlisted ID in use, and a listed one
	if len(since) > 0 {
		for _, d := range p.listing.devices {
			if name := physical(d.ID); since[name] != 0 {
				listed[name] = true
			}
		}
	}
	unknown := int64(math.MaxInt64) // IDs added later may name a device that is listed under no name
	for name, at := range since {
		if !listed[name] {
			unknown = min(unknown, at)
		}
	}
	var withheld bitset
	for i, d := range p.listing.devices {
		at := unknown
		if len(listed) > 0 {
			if name := physical(d.ID); listed[name] {
				at = min(at, since[name])
			}
		}
		hold := d.Added > at
		if hold {
			if withheld == nil {
				withheld = newBitset(len(p.listing.devices))
			}
			withheld.add(i)
		}
		was := p.withheld != nil && p.withheld.has(i)
		if _, taken := p.taken[d.ID]; was == hold || taken || !p.listing.usable.has(i) {
			continue
		}
		if hold {
			p.free.remove(i)
			p.count(i, -1)
		} else {
			p.free.add(i)
			p.count(i, 1)
			freed = true
		}
	}
	p.withheld = withheld
	return freed
}

// Withholds reports whether any listed device is withheld, be it free otherwise or not.
func (p *Resource) Withholds() bool { return p.withheld != nil }

// WithheldCount returns the number of devices that would be free if they were not withheld.
func (p *Resource) WithheldCount() (n int) {
	for i := p.withheld.next(0, p.listing.usable); i >= 0; i = p.withheld.next(i+1, p.listing.usable) {
		if _, taken := p.taken[p.listing.devices[i].ID]; !taken {
			n++
		}
	}
	return n
}
