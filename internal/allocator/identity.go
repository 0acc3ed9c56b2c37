package allocator

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

// withholdLocked withholds the devices that may be in use under an ID that is no longer listed, and frees withheld devices
// that are no longer in doubt. Callers run it whenever the list, or the set of unlisted devices in use, has changed.
func (a *Allocator) withholdLocked(r device.ResourceName) {
	p := a.pools[r]
	if p.unlisted == 0 && p.withheld == nil && p.withheldLogged == 0 && p.unlistedLapsed == 0 {
		return
	}
	unlisted := a.unlistedLocked(r, p)
	p.unlistedLapsed = p.unlisted - len(unlisted)
	p.withhold(unlisted)
	n, before := p.withheldCount(), p.withheldLogged
	p.withheldLogged = n
	switch {
	case n == before:
	case n > 0:
		a.log.Warn("devices withheld: possibly in use under former IDs", "resource", r, "withheld", n, "unlisted_in_use", p.unlisted)
	default:
		a.log.Info("devices no longer withheld", "resource", r)
	}
	if n < before {
		a.wakeLocked(r, false)
	}
}

// freeLocked takes devices back from a pod.
func (a *Allocator) freeLocked(r device.ResourceName, ids []device.ID, from device.PodUID) {
	p := a.pools[r]
	before := p.unlisted
	p.release(ids, from)
	if p.unlisted != before {
		a.withholdLocked(r)
	}
}

// unlistedLocked returns the devices in use that the plugin does not list, with the time of each grant. An unknown time
// counts as earlier than all others.
func (a *Allocator) unlistedLocked(r device.ResourceName, p *pool) map[device.ID]int64 {
	if p.unlisted == 0 {
		return nil
	}
	granted := make(map[device.ID]int64, p.unlisted)
	holders := map[device.PodUID]bool{}
	for id, uid := range p.taken {
		if _, listed := p.listing.at[id]; !listed {
			granted[id] = -1
			holders[uid] = true
		}
	}
	for uid := range holders {
		if a.pods[uid] == nil {
			continue
		}
		for _, as := range a.pods[uid].assigned {
			why, lapsed := a.pods[uid].lapsed[as.Container.Name]
			for _, s := range as.Shares {
				if s.Resource != r || s.At == 0 {
					continue
				}
				for _, id := range s.IDs {
					if _, unlisted := granted[id]; unlisted {
						granted[id] = s.At
					}
					if lapsed && why == otherBoot {
						delete(granted, id) // no container has used it since the boot
					}
				}
			}
		}
	}
	return granted
}

// withhold removes the listed devices that may be one of the unlisted ones from the free ones, and frees those that no longer
// may.
func (p *pool) withhold(unlisted map[device.ID]int64) {
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
		}
	}
	p.withheld = withheld
}

// withheldCount returns the number of devices that would be free if they were not withheld.
func (p *pool) withheldCount() (n int) {
	for i := p.withheld.next(0, p.listing.usable); i >= 0; i = p.withheld.next(i+1, p.listing.usable) {
		if _, taken := p.taken[p.listing.devices[i].ID]; !taken {
			n++
		}
	}
	return n
}
