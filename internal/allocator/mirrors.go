package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// hiddenFromSchedulerLocked returns the number of devices of static pods that the scheduler does not count: it counts only the requests of their
// mirror pods.
func (a *Allocator) hiddenFromSchedulerLocked(mirrored map[device.ResourceName]int) map[device.ResourceName]int {
	hidden := map[device.ResourceName]int{}
	for _, p := range a.locals {
		if p.departure.why != nil && p.departure.why.Busy {
			continue // they do not count at all
		}
		for _, s := range device.Shares(p.assigned) {
			hidden[s.Resource] += len(s.IDs)
		}
	}
	for r, n := range mirrored {
		hidden[r] -= n
	}
	return hidden
}

// mirroredLocked returns the requests of static pods that the scheduler counts by their mirror pods. Any user may write a pod that looks like one: it
// counts for a static pod that the runtime has, and up to what that one requests.
func (a *Allocator) mirroredLocked() map[device.ResourceName]int {
	sums := map[device.ResourceName]int{}
	for _, p := range a.locals {
		m, is := a.mirrorOfLocked(p)
		if !is || !p.active() {
			continue
		}
		own := p.requested().Requests()
		for r, n := range m.Requests() {
			if n = min(n, own[r]); n > 0 {
				sums[r] += n
			}
		}
	}
	return sums
}

// mirrorOfLocked returns the mirror pod of a static pod.
func (a *Allocator) mirrorOfLocked(p *pod) (device.PodDemand, bool) {
	for _, m := range a.mirrors {
		if m.Pod.Namespace == p.demand.Pod.Namespace && m.Pod.Name == p.demand.Pod.Name {
			return m, true
		}
	}
	return device.PodDemand{}, false
}

// requestLocked adds (sign 1) or subtracts (sign -1) a pod's requests. Pods may request any name: a resource that only they have named goes
// with them.
func (a *Allocator) requestLocked(d device.PodDemand, sign int) {
	a.ledger.Request(d, sign)
	if sign < 0 {
		for r := range d.Requests() {
			a.pruneLocked(r)
		}
	}
}

// pruneLocked drops a resource that nothing needs.
func (a *Allocator) pruneLocked(r device.ResourceName) {
	if resource := a.ledger.Resources[r]; resource != nil && resource.Idle() && a.flapping[r] == nil && len(a.inForce[r]) == 0 {
		delete(a.ledger.Resources, r)
		delete(a.suspensionsDue, r)
	}
}

// mirrorLocked counts a mirror pod's requests.
func (a *Allocator) mirrorLocked(d device.PodDemand) {
	a.unmirrorLocked(d.Pod.UID)
	a.mirrors[d.Pod.UID] = d
	a.publishLocalLocked(d.Pod)
	a.changedLocked()
}

// unmirrorLocked removes a mirror pod and reports whether it was known. The caller publishes the change, since another mirror
// pod may follow at once.
func (a *Allocator) unmirrorLocked(uid device.PodUID) bool {
	_, known := a.mirrors[uid]
	if known {
		delete(a.mirrors, uid)
		a.changedLocked()
	}
	return known
}

// publishLocalLocked publishes the static pod of a mirror pod.
func (a *Allocator) publishLocalLocked(mirror device.Pod) {
	for _, p := range a.locals {
		if p.demand.Pod.Namespace == mirror.Namespace && p.demand.Pod.Name == mirror.Name {
			a.publishLocked(p)
		}
	}
}
