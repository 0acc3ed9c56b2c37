package dra

import (
	"slices"
	"strconv"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An index finds the listed devices that claims name. It keeps them by their names in slices until the lists change: names are hashes, and a search for each
// device of each pod that waits would take seconds.
type index struct {
	node    string
	plugins Plugins
	pool    func(device.ResourceName, device.ID) string // ClaimsConfig.Pool

	revision uint64 // of the lists that it has; 0: none
	offers   map[device.ResourceName]device.Offer
	named    map[device.ResourceName]map[string][]device.ID
	pools    map[string]device.ResourceName // those of claims; empty: no listed resource has one of this name
}

// find returns the device that a result names; false: it is not listed.
func (x *index) find(one result) (device.Key, bool) {
	x.update()
	r := x.resourceOf(one.pool)
	all := x.devices(r)[one.device]
	switch at := slices.IndexFunc(all, func(id device.ID) bool { return x.pool(r, id) == one.pool }); {
	case at >= 0:
		return device.Key{Resource: r, ID: all[at]}, true
	case len(all) == 1: // it has another place since it returned to its plugin's list
		return device.Key{Resource: r, ID: all[0]}, true
	}
	return device.Key{}, false
}

// device returns a device that has been found.
func (x *index) device(of device.Key) device.Device {
	list := x.offers[of.Resource].Inventory.Devices
	at, listed := slices.BinarySearchFunc(list, of.ID, func(d device.Device, id device.ID) int { return device.CompareIDs(d.ID, id) })
	if !listed {
		return device.Device{ID: of.ID}
	}
	return list[at]
}

// update takes the plugins' lists if they have changed.
func (x *index) update() {
	if now := x.plugins.Revision(); x.revision != now { // before the lists are read
		x.revision, x.offers = now, x.plugins.Offers()
		x.named, x.pools = map[device.ResourceName]map[string][]device.ID{}, map[string]device.ResourceName{}
	}
}

// drop frees the memory of the lists.
func (x *index) drop() {
	x.revision, x.offers, x.named, x.pools = 0, nil, nil, nil
}

// resourceOf returns the listed resource of a pool; empty: there is none.
func (x *index) resourceOf(pool string) device.ResourceName {
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

// devices returns the listed devices of a resource by their names.
func (x *index) devices(r device.ResourceName) map[string][]device.ID {
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
