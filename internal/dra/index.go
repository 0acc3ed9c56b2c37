package dra

import (
	"slices"
	"strconv"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// An index finds the listed devices that claims name. It keeps them by their names in slices until the lists change: names are hashes, and a search for each
// device of each pod that waits would take seconds. Even one of a plugin's longest list takes a quarter of a second.
type index struct {
	node    string
	plugins Plugins
	pool    func(device.ResourceName, device.ID) string // ClaimsConfig.Pool

	// mu guards what follows. It is held while names are computed, so that one index is made at a time; neither the watch of the pods nor a hook waits for it.
	mu       locks.Mutex[locks.Index]
	revision uint64 // of the lists that it has; 0: none
	offers   map[device.ResourceName]device.Offer
	named    map[device.ResourceName]map[string][]device.ID
	pools    map[string]device.ResourceName // those of claims; empty: no listed resource has one of this name
}

// find returns the devices that results name. One that is not listed has no resource.
func (x *index) find(all []result) []device.Key {
	if len(all) == 0 {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.updateLocked()
	found := make([]device.Key, len(all))
	for i, one := range all {
		found[i] = x.findLocked(one)
	}
	return found
}

func (x *index) findLocked(one result) device.Key {
	r := x.resourceLocked(one.pool)
	all := x.devicesLocked(r)[one.device]
	switch at := slices.IndexFunc(all, func(id device.ID) bool { return x.pool(r, id) == one.pool }); {
	case at >= 0:
		return device.Key{Resource: r, ID: all[at]}
	case len(all) == 1: // it has another place since it returned to its plugin's list
		return device.Key{Resource: r, ID: all[0]}
	}
	return device.Key{}
}

// updateLocked takes the plugins' lists if they have changed.
func (x *index) updateLocked() {
	if now := x.plugins.Revision(); x.revision != now { // before the lists are read
		x.revision, x.offers = now, x.plugins.Offers()
		x.named, x.pools = map[device.ResourceName]map[string][]device.ID{}, map[string]device.ResourceName{}
	}
}

// drop frees the memory of the lists.
func (x *index) drop() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.revision, x.offers, x.named, x.pools = 0, nil, nil, nil
}

// resourceLocked returns the listed resource of a pool; empty: there is none.
func (x *index) resourceLocked(pool string) device.ResourceName {
	r, known := x.pools[pool]
	if known {
		return r
	}
	at := strings.LastIndexByte(pool, '/')
	if k, err := strconv.Atoi(pool[at+1:]); at >= 0 && err == nil {
		for one := range x.offers {
			if PoolName(x.node, one, k) == pool {
				r = one
			}
		}
	}
	x.pools[pool] = r
	return r
}

// devicesLocked returns the listed devices of a resource by their names.
func (x *index) devicesLocked(r device.ResourceName) map[string][]device.ID {
	if x.named[r] == nil {
		named := map[string][]device.ID{}
		for _, d := range x.offers[r].Inventory.Devices {
			name := Name(d.ID)
			named[name] = append(named[name], d.ID)
		}
		x.named[r] = named
	}
	return x.named[r]
}
