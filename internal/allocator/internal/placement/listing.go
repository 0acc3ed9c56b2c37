package placement

import (
	"slices"
	"strconv"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A Listing is an inventory prepared for look-ups. It never changes, apart from what it remembers of selections.
type Listing struct {
	devices []device.Device
	matched *selections                 // the same in listings with the same IDs
	at      map[device.ID]int           // position of an ID in devices
	cordons map[device.ID]device.Cordon // of the resource; never changed
	usable  bitset                      // healthy, and not cordoned

	usableCount int   // members of usable
	newest      int64 // the highest Added of the devices, at least 1

	places [][]int  // the distinct sets of NUMA nodes that devices are near, ascending; empty: the plugin reports none
	of     []int16  // the place of each device: an index into places, or -1; nil without places
	sizes  []int    // devices at each place
	here   []bitset // the devices at each place
	placed bitset   // the devices that have a place
	near   int      // total length of all places

	usableAt []int // usable devices at each place

	ordering Ordering
	group    []int32 // the group of each device; nil: groups do not matter
	groups   int     // number of groups
}

// Bounds of a resource, far above those of any machine: distinct sets of NUMA nodes, and nodes in all of
// these sets together. Devices beyond a bound have no place.
const (
	maxPlaces = 256
	maxNear   = 2048
)

// NewListing reuses parts of the previous listing: where only health has changed, the positions stay the same, and
// rebuilding them would be most of the work. A resource has the same ordering in all of its listings.
func NewListing(devices []device.Device, cordons map[device.ID]device.Cordon, ordering Ordering, before *Listing) *Listing {
	l := &Listing{devices: devices, cordons: cordons, ordering: ordering, usable: newBitset(len(devices))}
	sameIDs, samePlaces := before != nil && sameIDs(devices, before.devices), before != nil && samePlaces(devices, before.devices)
	if sameIDs {
		l.at, l.matched = before.at, before.matched
	} else {
		l.matched = &selections{known: map[string]bitset{}}
		l.at = make(map[device.ID]int, len(devices))
		for i, d := range devices {
			l.at[d.ID] = i
		}
	}
	l.newest = 1
	for i, d := range devices {
		l.newest = max(l.newest, d.Added)
		if d.Healthy {
			l.usable.add(i)
			l.usableCount++
		}
	}
	for id := range cordons {
		if i, listed := l.at[id]; listed && l.usable.has(i) {
			l.usable.remove(i)
			l.usableCount--
		}
	}
	if samePlaces {
		l.places, l.of, l.sizes, l.here, l.placed = before.places, before.of, before.sizes, before.here, before.placed
	} else {
		l.findPlaces()
	}
	if sameIDs && samePlaces {
		l.group, l.groups = before.group, before.groups
	} else {
		l.findGroups()
	}
	if l.of != nil {
		l.usableAt = make([]int, len(l.places))
		for i, at := range l.of {
			if at >= 0 && l.usable.has(i) {
				l.usableAt[at]++
			}
		}
	}
	return l
}

// Devices returns the devices, in the order of device.CompareIDs.
func (l *Listing) Devices() []device.Device { return l.devices }

// Find returns the device of that ID, if it is listed.
func (l *Listing) Find(id device.ID) (device.Device, bool) {
	i, listed := l.at[id]
	if !listed {
		return device.Device{}, false
	}
	return l.devices[i], true
}

// Cordons returns the resource's cordons as of the listing.
func (l *Listing) Cordons() map[device.ID]device.Cordon { return l.cordons }

// Newest returns the highest Added of the devices, and at least 1.
func (l *Listing) Newest() int64 { return l.newest }

// findPlaces groups the devices by the NUMA nodes that they are near.
func (l *Listing) findPlaces() {
	if !slices.ContainsFunc(l.devices, func(d device.Device) bool { return len(d.NUMA) > 0 }) {
		return
	}
	l.of, l.placed = make([]int16, len(l.devices)), newBitset(len(l.devices))
	known := map[string]int16{}
	var last []int // adjacent devices are mostly at one place
	var at int16 = -1
	for i, d := range l.devices {
		if !slices.Equal(d.NUMA, last) {
			last, at = d.NUMA, l.placeOf(d.NUMA, known)
		}
		if l.of[i] = at; at >= 0 {
			l.sizes[at]++
			l.here[at].add(i)
			l.placed.add(i)
		}
	}
}

// placeOf returns the index of a place, adding a new one.
func (l *Listing) placeOf(nodes []int, known map[string]int16) int16 {
	if len(nodes) == 0 {
		return -1
	}
	key := make([]byte, 0, 64)
	for _, node := range nodes {
		key = append(strconv.AppendInt(key, int64(node), 10), ' ')
	}
	at, is := known[string(key)]
	switch {
	case is:
	case len(l.places) == maxPlaces || l.near+len(nodes) > maxNear:
		return -1
	default:
		at = int16(len(l.places))
		known[string(key)] = at
		l.near += len(nodes)
		l.places, l.sizes, l.here = append(l.places, nodes), append(l.sizes, 0), append(l.here, newBitset(len(l.devices)))
	}
	return at
}

// place returns the index of a device's place, or -1.
func (l *Listing) place(i int) int {
	if l.of == nil {
		return -1
	}
	return int(l.of[i])
}

// Near returns the NUMA nodes of each device; nil if no device has a place.
func (l *Listing) Near(ids []device.ID) [][]int {
	var all [][]int
	for i, id := range ids {
		if at, listed := l.at[id]; listed && len(l.devices[at].NUMA) > 0 {
			if all == nil {
				all = make([][]int, len(ids))
			}
			all[i] = l.devices[at].NUMA
		}
	}
	return all
}

func samePlaces(a, b []device.Device) bool {
	return slices.EqualFunc(a, b, func(x, y device.Device) bool {
		return len(x.NUMA) == len(y.NUMA) && (len(x.NUMA) == 0 || &x.NUMA[0] == &y.NUMA[0] || slices.Equal(x.NUMA, y.NUMA))
	})
}

func sameIDs(a, b []device.Device) bool {
	return slices.EqualFunc(a, b, func(x, y device.Device) bool { return x.ID == y.ID })
}

// has reports whether the device is listed and usable.
func (l *Listing) has(id device.ID) bool {
	i, ok := l.at[id]
	return ok && l.usable.has(i)
}
