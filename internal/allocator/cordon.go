package allocator

import (
	"maps"
	"reflect"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Cordon takes devices out of service, or changes the reason. All are known, or nothing is done: a *device.UnknownDeviceError.
// When it returns nil that is durable, and none of them is given to anybody from then on. It returns those that somebody has:
// they go when their pods do.
func (a *Allocator) Cordon(cordons []device.Cordon) (held []device.Cordon, err error) {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	if err := a.checkKnown(cordons); err != nil {
		return nil, err
	}
	if err := a.store.SaveCordons(cordons, nil); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cloneCordonsLocked(cordons)
	for _, c := range cordons {
		a.cordons[c.Resource][c.ID] = c
		if _, taken := a.pools.of(c.Resource).taken[c.ID]; taken {
			held = append(held, c)
		}
		a.log.Info("device cordoned", "resource", c.Resource, "device", c.ID, "reason", c.Reason)
	}
	a.cordonsChangedLocked(cordons)
	return held, nil
}

// Uncordon puts devices back into service. It returns those that were out of it; others are left as they are. All are known, as with
// Cordon, or nothing is done.
func (a *Allocator) Uncordon(devices []device.Cordon) (lifted []device.Cordon, err error) {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	if err := a.checkKnown(devices); err != nil {
		return nil, err
	}
	a.mu.Lock()
	for _, d := range devices {
		if c, cordoned := a.cordons[d.Resource][d.ID]; cordoned {
			lifted = append(lifted, c)
		}
	}
	a.mu.Unlock()
	if len(lifted) == 0 {
		return nil, nil
	}
	if err := a.store.SaveCordons(nil, lifted); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cloneCordonsLocked(lifted)
	for _, c := range lifted {
		delete(a.cordons[c.Resource], c.ID)
		a.log.Info("device uncordoned", "resource", c.Resource, "device", c.ID)
	}
	a.cordonsChangedLocked(lifted)
	return lifted, nil
}

// cloneCordonsLocked puts copies in the place of the maps that have cordons of these devices, once each: listings have the others.
func (a *Allocator) cloneCordonsLocked(devices []device.Cordon) {
	own := map[device.ResourceName]bool{}
	for _, d := range devices {
		if own[d.Resource] {
			continue
		}
		own[d.Resource] = true
		if a.cordons[d.Resource] = maps.Clone(a.cordons[d.Resource]); a.cordons[d.Resource] == nil {
			a.cordons[d.Resource] = map[device.ID]device.Cordon{}
		}
	}
}

// Withdrawn returns the cordoned devices that nobody has: they are not to be had.
func (a *Allocator) Withdrawn() map[device.ResourceName]map[device.ID]bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[device.ResourceName]map[device.ID]bool{}
	for r, of := range a.cordons {
		for id := range of {
			if _, taken := a.pools.of(r).taken[id]; taken {
				continue
			}
			if all[r] == nil {
				all[r] = map[device.ID]bool{}
			}
			all[r][id] = true
		}
	}
	return all
}

// checkKnown fails if one of the devices has never been listed, is nobody's, and is not cordoned either: then it is a mistake.
func (a *Allocator) checkKnown(devices []device.Cordon) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range devices {
		_, known := a.cordons[d.Resource][d.ID]
		if p := a.pools[d.Resource]; p != nil && !known {
			if _, known = p.listing.at[d.ID]; !known {
				_, known = p.taken[d.ID]
			}
		}
		if !known {
			return &device.UnknownDeviceError{Resource: d.Resource, ID: d.ID}
		}
	}
	return nil
}

// cordonsChangedLocked has plans and numbers mind what has become of the cordons of these devices.
func (a *Allocator) cordonsChangedLocked(devices []device.Cordon) {
	done := map[device.ResourceName]bool{}
	for _, d := range devices {
		if !done[d.Resource] {
			done[d.Resource] = true
			a.refreshCordonsLocked(d.Resource)
			a.wakeLocked(d.Resource, false)
		}
	}
	a.feed.notify()
	signal(a.capacityChanged)
	signal(a.kick)
}

// refreshCordonsLocked makes a resource's listing again if it was made with other cordons.
func (a *Allocator) refreshCordonsLocked(r device.ResourceName) {
	p := a.pools.of(r)
	if l := p.listing; !sameMap(l.cordons, a.cordons[r]) {
		p.setListing(makeListing(l.devices, a.cordons[r], l))
		a.withholdLocked(r)
	}
}

// sameMap reports whether two maps are one. They are replaced, and never changed.
func sameMap[K comparable, V any](a, b map[K]V) bool {
	return len(a) == len(b) && (len(a) == 0 || reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer())
}
