package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// withholdLocked withholds the devices that may be in use under an ID that is no longer listed, and frees withheld devices
// that are no longer in doubt. Callers run it whenever the list, or the set of unlisted devices in use, has changed.
func (a *Allocator) withholdLocked(r device.ResourceName) {
	p := a.pools[r]
	if p.Unlisted() == 0 && !p.Withholds() && p.withheldLogged == 0 && p.unlistedLapsed == 0 {
		return
	}
	unlisted := a.unlistedLocked(r, p)
	p.unlistedLapsed = p.Unlisted() - len(unlisted)
	p.Withhold(unlisted)
	n, before := p.WithheldCount(), p.withheldLogged
	p.withheldLogged = n
	switch {
	case n == before:
	case n > 0:
		a.log.Warn("devices withheld: possibly in use under former IDs", "resource", r, "withheld", n, "unlisted_in_use", p.Unlisted())
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
	before := p.Unlisted()
	p.Release(ids, from)
	if p.Unlisted() != before {
		a.withholdLocked(r)
	}
}

// unlistedLocked returns the devices in use that the plugin does not list, with the time of each grant. An unknown time
// counts as earlier than all others.
func (a *Allocator) unlistedLocked(r device.ResourceName, p *pool) map[device.ID]int64 {
	if p.Unlisted() == 0 {
		return nil
	}
	granted := make(map[device.ID]int64, p.Unlisted())
	holders := map[device.PodUID]bool{}
	for id, uid := range p.Taken() {
		if _, listed := p.Listing().Find(id); !listed {
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
