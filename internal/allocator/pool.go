package allocator

import (
	"fmt"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A listing is an inventory prepared for look-ups. It never changes.
type listing struct {
	devices []device.Device
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
}

// Bounds of a resource, far above those of any machine: distinct sets of NUMA nodes, and nodes in all of
// these sets together. Devices beyond a bound have no place.
const (
	maxPlaces = 256
	maxNear   = 2048
)

// makeListing reuses parts of the previous listing: where only health has changed, the positions stay the same, and
// rebuilding them would be most of the work.
func makeListing(devices []device.Device, cordons map[device.ID]device.Cordon, before *listing) *listing {
	l := &listing{devices: devices, cordons: cordons, usable: newBitset(len(devices))}
	if before != nil && sameIDs(devices, before.devices) {
		l.at = before.at
	} else {
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
	if before != nil && samePlaces(devices, before.devices) {
		l.places, l.of, l.sizes, l.here, l.placed = before.places, before.of, before.sizes, before.here, before.placed
	} else {
		l.findPlaces()
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

// findPlaces groups the devices by the NUMA nodes that they are near.
func (l *listing) findPlaces() {
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
func (l *listing) placeOf(nodes []int, known map[string]int16) int16 {
	if len(nodes) == 0 {
		return -1
	}
	key := fmt.Sprint(nodes)
	at, is := known[key]
	switch {
	case is:
	case len(l.places) == maxPlaces || l.near+len(nodes) > maxNear:
		return -1
	default:
		at = int16(len(l.places))
		known[key] = at
		l.near += len(nodes)
		l.places, l.sizes, l.here = append(l.places, nodes), append(l.sizes, 0), append(l.here, newBitset(len(l.devices)))
	}
	return at
}

// place returns the index of a device's place, or -1.
func (l *listing) place(i int) int {
	if l.of == nil {
		return -1
	}
	return int(l.of[i])
}

// nodes returns the NUMA nodes of each device; nil if no device has a place.
func (l *listing) nodes(ids []device.ID) [][]int {
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
func (l *listing) has(id device.ID) bool {
	i, ok := l.at[id]
	return ok && l.usable.has(i)
}

// A pool is one resource as plans and the scheduler see it: an index over the offer, the holds and the assignments.
type pool struct {
	offer          device.Offer
	offered        bool // an offer has been seen; otherwise only the devices in use by the state file are known
	listing        *listing
	taken          map[device.ID]device.PodUID  // held or assigned
	free           bitset                       // usable and not taken
	freeCount      int                          // members of free
	freeAt         []int                        // free devices at each place of the listing
	takenUnusable  int                          // taken, listed, and not usable
	requests       int                          // sum of the requests of the node's active pods in the API
	admitted       int                          // the part of requests from pods that the kubelet has admitted
	unlisted       int                          // taken, and not listed
	unlistedLapsed int                          // the part of unlisted granted in another boot, so not in use
	withheld       bitset                       // listed, and possibly the same hardware as an unlisted device; nil: none
	withheldLogged int                          // number of withheld devices last logged
	unknownUsers   int                          // containers with devices that only a lost state file named
	quarantined    map[device.ID]bool           // taken, and set aside because the state file does not assign them
	refused        map[device.ID]refusal        // recently, by the plugin
	failures       map[device.ID]*failureRecord // of devices that have failed while in use
	away           bool                         // the plugin has been disconnected since the last examination
}

func newPool() *pool {
	return &pool{listing: makeListing(nil, nil, nil), taken: map[device.ID]device.PodUID{}, quarantined: map[device.ID]bool{}, failures: map[device.ID]*failureRecord{}, refused: map[device.ID]refusal{}}
}

// A refusal records that a device's plugin has refused it, or that its grant could not be used.
type refusal struct {
	times int       // consecutive
	until time.Time // until then the device is chosen last
}

// refuse records a refusal of a device.
func (p *pool) refuse(id device.ID) {
	p.refused[id] = refusal{p.refused[id].times + 1, time.Now().Add(refusalMemory)}
}

// accept replaces the offer. The caller has built its listing without the lock.
func (p *pool) accept(o device.Offer, l *listing) {
	p.offer, p.offered = o, true
	p.setListing(l)
}

// retract removes the offer, as if there had never been one.
func (p *pool) retract() {
	p.offer, p.offered, p.failures, p.away = device.Offer{}, false, map[device.ID]*failureRecord{}, false
	p.setListing(makeListing(nil, nil, nil))
}

// setListing replaces the listing and recounts.
func (p *pool) setListing(l *listing) {
	p.listing = l
	p.free, p.freeCount, p.takenUnusable, p.unlisted, p.withheld = slices.Clone(l.usable), l.usableCount, 0, 0, nil
	p.freeAt = slices.Clone(l.usableAt)
	for id := range p.taken {
		p.countTaken(id)
	}
}

// take marks devices as a pod's. Devices that are taken already stay as they are.
func (p *pool) take(ids []device.ID, pod device.PodUID) {
	for _, id := range ids {
		if _, taken := p.taken[id]; taken {
			continue
		}
		p.taken[id] = pod
		p.countTaken(id)
	}
}

// countTaken counts a device that has been taken.
func (p *pool) countTaken(id device.ID) {
	switch i, listed := p.listing.at[id]; {
	case !listed:
		p.unlisted++
	case p.free.has(i):
		p.free.remove(i)
		p.count(i, -1)
	case !p.listing.usable.has(i):
		p.takenUnusable++
	}
}

// count counts a device that becomes free (1) or stops being free (-1).
func (p *pool) count(i, by int) {
	p.freeCount += by
	if at := p.listing.place(i); at >= 0 {
		p.freeAt[at] += by
	}
}

// release frees a pod's devices.
func (p *pool) release(ids []device.ID, pod device.PodUID) {
	for _, id := range ids {
		if p.taken[id] != pod {
			continue
		}
		delete(p.taken, id)
		switch i, listed := p.listing.at[id]; {
		case !listed:
			p.unlisted--
		case !p.listing.usable.has(i):
			p.takenUnusable--
		case p.withheld == nil || !p.withheld.has(i):
			p.free.add(i)
			p.count(i, 1)
		}
	}
}

// quarantine sets aside devices that a pod runs with, unless they are taken already.
func (p *pool) quarantine(ids []device.ID, pod device.PodUID) {
	for _, id := range ids {
		if _, taken := p.taken[id]; !taken {
			p.take([]device.ID{id}, pod)
			p.quarantined[id] = true
		}
	}
}

// counts returns the number of devices in each state of the metric devmgrd_devices. Each device is in exactly one state.
func (p *pool) counts() map[string]int {
	free, stale := p.freeCount, 0
	if p.offer.State != device.Serving {
		free, stale = 0, p.freeCount
	}
	return map[string]int{
		"free": free, "stale": stale, "assigned": len(p.taken) - len(p.quarantined), "quarantined": len(p.quarantined),
		"unhealthy": p.unhealthy(), "cordoned": p.cordoned(), "withheld": p.withheldCount(),
	}
}

// unhealthy returns the number of devices that would be free if they were healthy.
func (p *pool) unhealthy() int {
	return len(p.listing.devices) - p.listing.usableCount - p.takenUnusable - p.cordoned()
}

// cordoned returns the number of devices that are listed, cordoned and not taken.
func (p *pool) cordoned() int {
	n := 0
	for id := range p.listing.cordons {
		_, listed := p.listing.at[id]
		if _, taken := p.taken[id]; listed && !taken {
			n++
		}
	}
	return n
}

// pools are all resources that have been offered or are in use.
type pools map[device.ResourceName]*pool

// of returns the pool of a resource, creating an empty one if necessary.
func (ps pools) of(r device.ResourceName) *pool {
	p := ps[r]
	if p == nil {
		p = newPool()
		ps[r] = p
	}
	return p
}

// request adds (sign 1) or subtracts (sign -1) the requests of an active pod of the API.
func (ps pools) request(d device.PodDemand, sign int) {
	if d.Local {
		return
	}
	for r, n := range d.Requests() {
		p := ps.of(r)
		p.requests += sign * n
		if d.Admitted {
			p.admitted += sign * n
		}
	}
}
