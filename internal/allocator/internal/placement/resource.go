package placement

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A Resource is one resource's devices: those that the plugin offers, and those that pods have. It is an index over the offer,
// the holds and the assignments, so that the cost of a plan does not depend on the number of devices.
type Resource struct {
	offer         device.Offer
	offered       bool // an offer has been seen; otherwise only the devices in use by the state file are known
	listing       *Listing
	taken         map[device.ID]device.PodUID   // held or assigned
	sharers       map[device.ID][]device.PodUID // other pods that have a taken device by the same claim
	quarantined   map[device.ID]bool            // taken, and set aside because the state file does not assign them
	releasing     map[holding]*device.Release   // by pods that have ended
	free          bitset                        // usable and not taken
	freeCount     int                           // members of free
	freeAt        []int                         // free devices at each place of the listing
	takenUnusable int                           // taken, listed, and not usable
	unlisted      int                           // taken, and not listed
	vanished      map[device.ID]bool            // taken, and no longer listed by the plugin that listed them
	withheld      bitset                        // listed, and possibly the same hardware as an unlisted device; nil: none
	refused       map[device.ID]refusal         // lately (refusals.go)
	granted       map[device.ID]device.PodUID   // the pod to which the plugin has granted a listed or taken device last
	releases      int64                         // so far, if the order is Oldest
	released      map[device.ID]int64           // by device, the number of its last release; not listed devices as well
	freed         []int64                       // the same by position
	UnknownUsers  int                           // containers with devices that only a lost state file named
	FailUnlisted  bool                          // devices in use that the plugin does not list have failed, also if it has never listed them
}

// A holding is a device as one of the pods has it.
type holding struct {
	id  device.ID
	pod device.PodUID
}

func NewResource() *Resource {
	return &Resource{
		listing: NewListing(nil, nil, Ordering{}, nil), taken: map[device.ID]device.PodUID{}, sharers: map[device.ID][]device.PodUID{}, quarantined: map[device.ID]bool{},
		releasing: map[holding]*device.Release{}, refused: map[device.ID]refusal{}, granted: map[device.ID]device.PodUID{}, released: map[device.ID]int64{},
	}
}

// Resources are the resources that a plan is about.
type Resources map[device.ResourceName]*Resource

// Void records that devices have been released since the plugin granted them: no earlier grant holds.
func (p *Resource) Void(ids []device.ID) {
	for _, id := range ids {
		delete(p.granted, id)
	}
}

// GrantedLast reports whether the plugin has granted each of these devices last to this pod, and none has been released since.
func (p *Resource) GrantedLast(ids []device.ID, pod device.PodUID) bool {
	return !slices.ContainsFunc(ids, func(id device.ID) bool { return p.granted[id] != pod })
}

// Offer returns the latest offer; the zero value before there is one.
func (p *Resource) Offer() device.Offer { return p.offer }

// Offered reports whether there is an offer.
func (p *Resource) Offered() bool { return p.offered }

// Listing returns the listing of the latest offer.
func (p *Resource) Listing() *Listing { return p.listing }

// Current reports whether the listing is up to date.
func (p *Resource) Current() bool {
	return p.offered && p.offer.State == device.Serving && p.offer.Reported
}

// Broken reports whether a device in use is unhealthy, or has left the list of a plugin that went on serving. A plugin that has restarted may list only
// what is free, as SR-IOV's does: a device that it has never listed is Broken only with FailUnlisted.
func (p *Resource) Broken(id device.ID) bool {
	d, listed := p.listing.Find(id)
	return listed && !d.Healthy || !listed && (p.FailUnlisted || p.vanished[id])
}

// Holder returns the pod that has a device, if one has. Of several, which have it by one claim, it is the first that is left.
func (p *Resource) Holder(id device.ID) (device.PodUID, bool) {
	uid, taken := p.taken[id]
	return uid, taken
}

// Sharers returns the other pods that have a device by the same claim as its Holder.
func (p *Resource) Sharers(id device.ID) []device.PodUID { return p.sharers[id] }

// Has reports whether a pod has a device.
func (p *Resource) Has(id device.ID, pod device.PodUID) bool {
	holder, taken := p.taken[id]
	return taken && (holder == pod || slices.Contains(p.sharers[id], pod))
}

// Taken yields the devices that pods have, with their Holders.
func (p *Resource) Taken() iter.Seq2[device.ID, device.PodUID] { return maps.All(p.taken) }

// TakenCount returns the number of devices that pods have.
func (p *Resource) TakenCount() int { return len(p.taken) }

// FreeCount returns the number of free devices: listed, usable, not taken and not withheld.
func (p *Resource) FreeCount() int { return p.freeCount }

// Unlisted returns the number of devices that pods have and the plugin does not list.
func (p *Resource) Unlisted() int { return p.unlisted }

// Accept replaces the offer. The caller has built its listing without the lock.
func (p *Resource) Accept(o device.Offer, l *Listing) {
	if p.offer.Session != o.Session {
		p.retryRefused()
	}
	same := p.offered && p.offer.Listed == o.Listed
	if !same {
		p.vanished = nil
	}
	for id := range p.taken {
		_, was := p.listing.at[id]
		_, is := l.at[id]
		switch {
		case is:
			delete(p.vanished, id)
		case was && same && o.Listed != 0:
			if p.vanished == nil {
				p.vanished = map[device.ID]bool{}
			}
			p.vanished[id] = true
		}
	}
	p.offer, p.offered = o, true
	p.SetListing(l)
}

// Retract removes the offer, as if there had never been one.
func (p *Resource) Retract() {
	p.offer, p.offered, p.refused = device.Offer{}, false, map[device.ID]refusal{}
	p.SetListing(NewListing(nil, nil, p.listing.ordering, nil))
}

// SetListing replaces the listing and recounts.
func (p *Resource) SetListing(l *Listing) {
	same := p.listing != nil && p.listing.matched == l.matched
	p.listing = l
	p.free, p.freeCount, p.takenUnusable, p.unlisted, p.withheld = slices.Clone(l.usable), l.usableCount, 0, 0, nil
	p.freeAt = slices.Clone(l.usableAt)
	if l.ordering.Order == Oldest && (!same || p.freed == nil) {
		p.recallReleases()
	}
	for id := range p.taken {
		p.countTaken(id)
	}
	maps.DeleteFunc(p.granted, func(id device.ID, _ device.PodUID) bool {
		_, listed := l.at[id]
		_, taken := p.taken[id]
		return !listed && !taken
	})
}

// Take marks devices as a pod's. Devices that are taken already stay as they are.
func (p *Resource) Take(ids []device.ID, pod device.PodUID) {
	for _, id := range ids {
		if _, taken := p.taken[id]; taken {
			continue
		}
		p.taken[id] = pod
		p.countTaken(id)
	}
}

// Share marks devices that another pod has as this pod's too.
func (p *Resource) Share(ids []device.ID, pod device.PodUID) {
	for _, id := range ids {
		if _, taken := p.taken[id]; taken && !p.Has(id, pod) {
			p.sharers[id] = append(slices.Clip(p.sharers[id]), pod)
		}
	}
}

// leave removes one of several pods that have a device, and reports whether there was another.
func (p *Resource) leave(id device.ID, pod device.PodUID) bool {
	others := p.sharers[id]
	if len(others) == 0 {
		return false
	}
	if p.taken[id] == pod {
		p.taken[id], others = others[0], others[1:]
	} else {
		others = slices.DeleteFunc(slices.Clone(others), func(other device.PodUID) bool { return other == pod })
	}
	if p.sharers[id] = others; len(others) == 0 {
		delete(p.sharers, id)
	}
	return true
}

// countTaken counts a device that has been taken.
func (p *Resource) countTaken(id device.ID) {
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
func (p *Resource) count(i, by int) {
	p.freeCount += by
	if at := p.listing.place(i); at >= 0 {
		p.freeAt[at] += by
	}
}

// maxUnlistedReleases bounds the devices whose release is remembered though they are not listed: a plugin lists nothing for a
// moment after its start.
const maxUnlistedReleases = 4096

// recallReleases finds the positions of released devices in a new listing.
func (p *Resource) recallReleases() {
	p.freed = make([]int64, len(p.listing.devices))
	for id, number := range p.released {
		if i, listed := p.listing.at[id]; listed {
			p.freed[i] = number
		} else if len(p.released) > len(p.listing.devices)+maxUnlistedReleases {
			delete(p.released, id)
		}
	}
}

// Used records that a pod has used devices, which are released. A hold that is given up is no use.
func (p *Resource) Used(ids []device.ID) {
	if p.listing.ordering.Order != Oldest {
		return
	}
	for _, id := range ids {
		p.releases++
		p.released[id] = p.releases
		if i, listed := p.listing.at[id]; listed {
			p.freed[i] = p.releases
		}
	}
}

// Release frees a pod's devices. Those that other pods have too stay theirs.
func (p *Resource) Release(ids []device.ID, pod device.PodUID) {
	for _, id := range ids {
		if !p.Has(id, pod) {
			continue
		}
		delete(p.releasing, holding{id, pod})
		if p.leave(id, pod) {
			continue
		}
		delete(p.taken, id)
		delete(p.vanished, id)
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

// Releasing records why devices of a pod that has ended are not free yet; nil: the pod is back.
func (p *Resource) Releasing(ids []device.ID, pod device.PodUID, why *device.Release) {
	for _, id := range ids {
		switch {
		case !p.Has(id, pod):
		case why == nil:
			delete(p.releasing, holding{id, pod})
		default:
			p.releasing[holding{id, pod}] = why
		}
	}
}

// release returns why a device is not free although all pods that have it have ended; nil: one has not ended.
func (p *Resource) release(id device.ID) *device.Release {
	why := p.releasing[holding{id, p.taken[id]}]
	for _, pod := range p.sharers[id] {
		one := p.releasing[holding{id, pod}]
		if why == nil || one == nil {
			return nil
		}
		if one.Busy && !why.Busy {
			why = one
		}
	}
	return why
}

// unproved yields the devices of ended pods that are not free yet, and why.
func (p *Resource) unproved() iter.Seq2[device.ID, *device.Release] {
	return func(yield func(device.ID, *device.Release) bool) {
		for of := range p.releasing {
			if p.taken[of.id] != of.pod {
				continue // its Holder is another one
			}
			if why := p.release(of.id); why != nil && !yield(of.id, why) {
				return
			}
		}
	}
}

// busy returns the number of devices that are busy, and of those not listed among them, how many are listed and usable, and what keeps
// one of them.
func (p *Resource) busy() (all, unlisted, usable int, why *device.Release) {
	for id, r := range p.unproved() {
		if !r.Busy {
			continue
		}
		all++
		if _, listed := p.listing.at[id]; !listed {
			unlisted++
		}
		if p.listing.has(id) {
			usable++
		}
		if why == nil || r.Since.Before(why.Since) {
			why = r
		}
	}
	return all, unlisted, usable, why
}

// Quarantine sets aside devices that a pod runs with, unless they are taken already.
func (p *Resource) Quarantine(ids []device.ID, pod device.PodUID) {
	for _, id := range ids {
		if _, taken := p.taken[id]; !taken {
			p.Take([]device.ID{id}, pod)
			p.quarantined[id] = true
		}
	}
}

// Quarantined reports whether a device is set aside.
func (p *Resource) Quarantined(id device.ID) bool { return p.quarantined[id] }

// EndQuarantine makes a device that is set aside one that its pod holds.
func (p *Resource) EndQuarantine(id device.ID) { delete(p.quarantined, id) }

// Counts returns the number of devices in each state of the metric devmgrd_devices. Each device is in exactly one state.
func (p *Resource) Counts() map[device.DeviceState]int {
	free, stale, busy, releasing := p.freeCount, 0, 0, 0
	for _, why := range p.unproved() {
		if why.Busy {
			busy++
		} else {
			releasing++
		}
	}
	if p.offer.State != device.Serving {
		free, stale = 0, p.freeCount
	}
	all := map[device.DeviceState]int{
		device.Available: free, device.PluginAway: stale, device.Assigned: len(p.taken) - len(p.quarantined) - busy - releasing, device.Quarantined: len(p.quarantined),
		device.Releasing: releasing, device.Occupied: busy,
		device.Unhealthy: p.unhealthy(), device.Cordoned: 0, device.Suspended: 0, device.Refused: 0, device.Withheld: p.WithheldCount(),
	}
	for c := range p.outOfService {
		all[c.State()]++
	}
	return all
}

// unhealthy returns the number of devices that would be free if they were healthy.
func (p *Resource) unhealthy() int {
	return len(p.listing.devices) - p.listing.usableCount - p.takenUnusable - p.outCount()
}

// outOfService yields the cordons of the devices that are listed and not taken.
func (p *Resource) outOfService(yield func(device.Cordon) bool) {
	for id, c := range p.listing.cordons {
		_, listed := p.listing.at[id]
		if _, taken := p.taken[id]; listed && !taken && !yield(c) {
			return
		}
	}
}

// outCount returns the number of devices that are out of service.
func (p *Resource) outCount() (n int) {
	for range p.outOfService {
		n++
	}
	return n
}

// outText returns how many devices are out of service, such as ", 2 cordoned, 1 suspended until 2026-01-02T13:02:00Z"; empty: none is.
func (p *Resource) outText() (text string) {
	n, first := map[device.DeviceState]int{}, map[device.DeviceState]time.Time{}
	for c := range p.outOfService {
		s := c.State()
		n[s]++
		if !c.Until.IsZero() && (first[s].IsZero() || c.Until.Before(first[s])) {
			first[s] = c.Until
		}
	}
	for _, s := range []device.DeviceState{device.Cordoned, device.Suspended, device.Refused} {
		if n[s] == 0 {
			continue
		}
		text += fmt.Sprintf(", %d %s", n[s], s)
		switch until := first[s].UTC().Format(time.RFC3339); {
		case first[s].IsZero(): // an operator, or health.command, ends it
		case n[s] == 1:
			text += " until " + until
		default:
			text += ", the first until " + until
		}
	}
	return text
}

// Unavailable returns why no device of the resource can be assigned, or nil.
func (p *Resource) Unavailable(r device.ResourceName) *device.Refusal {
	switch {
	case p == nil || !p.offered:
		return device.Refuse(device.PluginMissing, nil, "no device plugin has registered %s", r)
	case p.offer.State == device.Lost && p.offer.Connected, p.offer.State == device.Serving && !p.offer.Reported:
		return device.Refuse(device.PluginMissing, nil, "the device plugin of %s has not listed its devices yet", r)
	case p.offer.State == device.Lost:
		return device.Refuse(device.PluginMissing, nil, "the device plugin of %s is disconnected", r)
	case p.offer.State == device.Stale:
		return device.Refuse(device.PluginStale, nil, "the device plugin of %s has just disconnected and may return", r)
	case p.UnknownUsers > 0:
		return device.Refuse(device.DevicesUnknown, nil, "%s: %d containers run with devices that only the lost state file named; allocation resumes when these containers have ended", r, p.UnknownUsers)
	}
	return nil
}

// unclaimable returns why a pod cannot have a device that the scheduler has chosen for it; nil: it can.
func (p *Resource) unclaimable(r device.ResourceName, id device.ID, pod device.PodUID, with Sharing) *device.Refusal {
	holder, taken := p.taken[id]
	i, listed := p.listing.at[id]
	name := device.QuoteID(id)
	switch why := p.release(id); {
	case p.Has(id, pod):
		return nil
	case taken && why != nil && why.Busy:
		return device.Refuse(device.DeviceBusy, nil, "%s: device %s is busy although its pod has ended: %s", r, name, why)
	case taken && with == Later:
		return device.Refuse(device.DeviceInUse, nil, "%s: the pod with UID %s has device %s by the same claim, and has either not been served yet or ended", r, holder, name)
	case taken && with != Now:
		return device.Refuse(device.DeviceInUse, nil, "%s: the scheduler has chosen device %s, which the pod with UID %s still has", r, name, holder)
	case !listed:
		return device.Refuse(device.DeviceGone, nil, "%s: the scheduler has chosen device %s, which the device plugin does not list", r, name)
	case !p.listing.devices[i].Healthy:
		return device.Refuse(device.DeviceUnhealthy, nil, "%s: the scheduler has chosen device %s, which is unhealthy", r, name)
	case !p.listing.usable.has(i) && !p.listing.cordons[id].Refused: // a refused one is tried: the pod cannot have another
		return device.Refuse(device.DeviceCordoned, nil, "%s: the scheduler has chosen device %s, which is cordoned: %s", r, name, p.listing.cordons[id].Reason)
	case !taken && p.withheld != nil && p.withheld.has(i):
		return device.Refuse(device.DeviceInUse, nil, "%s: the scheduler has chosen device %s, which may be in use under an ID that is no longer listed", r, name)
	}
	return nil
}

// Counted reports whether a device that no pod has is part of the capacity.
func (p *Resource) Counted(id device.ID) bool {
	i, listed := p.listing.at[id]
	return listed && p.offer.State != device.Lost && p.free.has(i)
}

// Capacity returns the number that the Node shows as capacity and as allocatable: the devices that are free or in use, without
// busy ones, idle ones, which are granted in an earlier boot and not listed, and those hidden from the scheduler. Withheld devices are not free, so
// none counts under two IDs.
//
// The capacity is never less than the requests of the pods that the kubelet has admitted. A kubelet sets allocatable to
// capacity; at its restart it admits all pods again against that value and fails the youngest where the value is too low.
func (p *Resource) Capacity(idle, hidden, admitted int) int {
	busy, unlisted, _, _ := p.busy()
	n := len(p.taken) - (busy - unlisted) - max(unlisted, idle) - max(0, hidden) // an idle one may be busy, too
	if p.offer.State != device.Lost {
		n += p.freeCount
	}
	return max(n, admitted)
}
