package ledger

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strconv"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// A Listing is an inventory prepared for look-ups. It never changes, apart from what it remembers of selections.
type Listing struct {
	devices []device.Device
	matched *selections                 // the same in listings with the same IDs
	at      map[device.ID]int           // position of an ID in devices
	cordons map[device.ID]device.Cordon // of the resource; never changed
	usable  bitset.Mutable              // healthy, and not cordoned, suspended or refused; usable in the Node's number if not withheld either

	usableCount int   // members of usable
	newest      int64 // the highest Added of the devices, at least 1

	places [][]int          // the distinct sets of NUMA nodes that devices are near, ascending; empty: the plugin reports none
	of     []int16          // the place of each device: an index into places, or -1; nil without places
	here   []bitset.Mutable // the devices at each place
	placed bitset.Mutable   // the devices that have a place
	near   int              // total length of all places

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
	l := &Listing{devices: devices, cordons: cordons, ordering: ordering, usable: bitset.New(len(devices))}
	sameIDs, samePlaces := before != nil && sameIDs(devices, before.devices), before != nil && samePlaces(devices, before.devices)
	if sameIDs {
		l.at, l.matched = before.at, before.matched
	} else {
		l.matched = &selections{known: map[device.SelectionKey]*matches{}}
		l.at = make(map[device.ID]int, len(devices))
		for i, d := range devices {
			l.at[d.ID] = i
		}
	}
	l.newest = 1
	for i, d := range devices {
		l.newest = max(l.newest, d.Added)
		if d.Healthy {
			l.usable.Add(i)
			l.usableCount++
		}
	}
	for id := range cordons {
		if i, listed := l.at[id]; listed && l.usable.Has(i) {
			l.usable.Remove(i)
			l.usableCount--
		}
	}
	if samePlaces {
		l.places, l.of, l.here, l.placed = before.places, before.of, before.here, before.placed
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
			if at >= 0 && l.usable.Has(i) {
				l.usableAt[at]++
			}
		}
	}
	return l
}

func (l *Listing) Devices() []device.Device             { return l.devices }    // in the order of device.CompareIDs
func (l *Listing) Cordons() map[device.ID]device.Cordon { return l.cordons }    // of the resource
func (l *Listing) Usable() bitset.Set                   { return l.usable.Set } // healthy and not cordoned
func (l *Listing) Newest() int64                        { return l.newest }     // the highest Added of the devices, at least 1
func (l *Listing) Ordering() Ordering                   { return l.ordering }
func (l *Listing) Groups() int                          { return l.groups }          // their number; 0: groups do not matter
func (l *Listing) Group(i int) int                      { return int(l.group[i]) }   // of the device at a position; the ordering is Grouped
func (l *Listing) Places() [][]int                      { return l.places }          // sets of NUMA nodes that devices are near, each ascending; empty: the plugin reports none
func (l *Listing) Here(place int) bitset.Set            { return l.here[place].Set } // the devices at a place
func (l *Listing) Placed() bitset.Set                   { return l.placed.Set }      // the devices that have a place

// At returns the position of a device in Devices, if it is listed.
func (l *Listing) At(id device.ID) (int, bool) {
	i, listed := l.at[id]
	return i, listed
}

// Lists reports whether a device is listed.
func (l *Listing) Lists(id device.ID) bool {
	_, listed := l.at[id]
	return listed
}

// Find returns the device of that ID, if it is listed.
func (l *Listing) Find(id device.ID) (device.Device, bool) {
	i, listed := l.at[id]
	if !listed {
		return device.Device{}, false
	}
	return l.devices[i], true
}

// IsUsable reports whether the device is listed, healthy and not cordoned.
func (l *Listing) IsUsable(id device.ID) bool {
	i, listed := l.at[id]
	return listed && l.usable.Has(i)
}

// findPlaces groups the devices by the NUMA nodes that they are near.
func (l *Listing) findPlaces() {
	if !slices.ContainsFunc(l.devices, func(d device.Device) bool { return len(d.NUMA) > 0 }) {
		return
	}
	l.of, l.placed = make([]int16, len(l.devices)), bitset.New(len(l.devices))
	known := map[string]int16{}
	var last []int // adjacent devices are mostly at one place
	var at int16 = -1
	for i, d := range l.devices {
		if !slices.Equal(d.NUMA, last) {
			last, at = d.NUMA, l.placeOf(d.NUMA, known)
		}
		l.of[i] = at
		if at >= 0 {
			l.here[at].Add(i)
			l.placed.Add(i)
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
		l.places, l.here = append(l.places, nodes), append(l.here, bitset.New(len(l.devices)))
	}
	return at
}

// Place returns the place of the device at a position: an index into Places, or -1.
func (l *Listing) Place(i int) int {
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

// Changed returns the devices that only one of two listings has, or that are healthy in only one.
func (l *Listing) Changed(before *Listing) (all []device.ID) {
	for i, d := range l.devices {
		at, listed := i, l.matched == before.matched // then the IDs are the same
		if !listed {
			at, listed = before.At(d.ID)
		}
		if !listed || before.devices[at].Healthy != d.Healthy {
			all = append(all, d.ID)
		}
	}
	if l.matched == before.matched {
		return all
	}
	for _, d := range before.devices {
		if !l.Lists(d.ID) {
			all = append(all, d.ID)
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

// An Order selects which of several equal devices a container gets.
type Order string

// The orders. Each is complete: equal inputs lead to equal choices.
const (
	Lowest Order = "lowest" // the lowest IDs
	Pack   Order = "pack"   // from the smallest group that suffices, so that other groups stay whole
	Spread Order = "spread" // from as many groups as possible, the one with the most free devices first
	Oldest Order = "oldest" // those that have been free for the longest time
)

// An Ordering is the order in which the devices of one resource are given out. The zero value is Lowest.
type Ordering struct {
	Order Order
	// Group finds the group in a device's ID: the first parenthesis, or the whole match if there is none. A device whose ID
	// it does not match is a group of its own. nil: devices near the same NUMA nodes are a group. Only Pack and Spread have
	// groups.
	Group *regexp.Regexp
}

// Grouped reports whether groups matter.
func (o Ordering) Grouped() bool { return o.Order == Pack || o.Order == Spread }

// findGroups groups the devices, if the resource's ordering wants that.
func (l *Listing) findGroups() {
	l.group, l.groups = nil, 0
	if !l.ordering.Grouped() {
		return
	}
	l.group = make([]int32, len(l.devices))
	if l.ordering.Group == nil {
		l.groups = len(l.places) + 1 // devices without a place are a group as well
		for i := range l.devices {
			l.group[i] = int32(l.Place(i) + 1)
		}
		return
	}
	known := map[string]int32{}
	for i, d := range l.devices {
		name := "\x00" + string(d.ID) // no group's name begins so
		if found := l.ordering.Group.FindStringSubmatch(string(d.ID)); found != nil {
			name = found[min(1, len(found)-1)]
		}
		at, is := known[name]
		if !is {
			at = int32(len(known))
			known[name] = at
		}
		l.group[i] = at
	}
	l.groups = len(known)
}

// selections remembers which devices of a list selections select. The list's IDs decide that, so a change of health or places does not matter.
type selections struct {
	mu    locks.Mutex[locks.Leaf]
	known map[device.SelectionKey]*matches
	uses  uint64
}

// matches are the devices that a selection selects.
type matches struct {
	devices bitset.Set // never changes
	used    uint64     // by selections.uses, when it was asked for last
}

// maxSelections is how many selections are remembered for one list of IDs, those that were used last: as many as one pod may have. A device takes as many
// bits.
const maxSelections = 128

// Match returns the devices that a selection selects, and remembers them. No other step of a plan costs as much as a pod's author likes, so the
// allocator does it beforehand, without its lock.
func (l *Listing) Match(s device.Selection) bitset.Set {
	if len(l.devices) == 0 {
		return bitset.New(0).Set // of a name that only pods may know, and any number of them
	}
	m, key := l.matched, s.Key()
	if known, found := m.find(key); found {
		return known
	}
	all := bitset.New(len(l.devices))
	for i, d := range l.devices {
		if s.Selects(d.ID) {
			all.Add(i)
		}
	}
	m.remember(key, all.Set)
	return all.Set
}

func (m *selections) find(key device.SelectionKey) (bitset.Set, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, found := m.known[key]
	if !found {
		return bitset.Set{}, false
	}
	m.uses++
	known.used = m.uses
	return known.devices, true
}

func (m *selections) remember(key device.SelectionKey, all bitset.Set) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.known) >= maxSelections {
		delete(m.known, slices.MinFunc(slices.Collect(maps.Keys(m.known)), func(a, b device.SelectionKey) int { return cmp.Compare(m.known[a].used, m.known[b].used) }))
	}
	m.uses++
	m.known[key] = &matches{all, m.uses}
}
