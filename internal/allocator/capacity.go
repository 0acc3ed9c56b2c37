package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// hiddenFromSchedulerLocked returns the number of devices of static pods that the scheduler does not count: the scheduler
// counts only the requests of their mirror pods.
func (a *Allocator) hiddenFromSchedulerLocked() map[device.ResourceName]int {
	hidden := map[device.ResourceName]int{}
	for _, p := range a.locals {
		for _, as := range p.assigned {
			for _, s := range as.Shares {
				hidden[s.Resource] += len(s.IDs)
			}
		}
	}
	for _, d := range a.mirrors {
		for r, n := range d.Requests() {
			hidden[r] -= n
		}
	}
	return hidden
}

// capacity returns the number that the Node shows as capacity and as allocatable: the devices that are free or in use,
// without those hidden from the scheduler. Where devices are withheld, one device may count under two IDs, so the capacity is
// at most the number of listed devices.
//
// The capacity is never less than the requests of the pods that the kubelet has admitted. A kubelet sets allocatable to
// capacity; at its restart it admits all pods again against that value and fails the youngest where the value is too low.
//
// Unlisted devices that a pod was granted in an earlier boot are not in use, and do not count: the pod is granted listed
// ones.
//
// The requests of admitted pods count once the API server has listed the node's pods. Until then some pods are known only
// from the state file and may be gone, and the publisher lowers no capacity.
func (p *pool) capacity(hidden int, listed bool) int {
	n := p.TakenCount() - p.unlistedLapsed
	if p.Offer().State != device.Lost {
		n += p.FreeCount()
	}
	n -= max(0, hidden)
	if p.Withholds() {
		n = min(n, len(p.Listing().Devices()))
	}
	if !listed {
		return n
	}
	return max(n, p.admitted)
}

// mirrorLocked counts a mirror pod's requests.
func (a *Allocator) mirrorLocked(d device.PodDemand) {
	a.unmirrorLocked(d.Pod.UID)
	d.Admitted = true // the kubelet has created the mirror pod
	a.mirrors[d.Pod.UID] = d
	a.pools.request(d, 1)
	a.publishLocalLocked(d.Pod)
	a.changedLocked()
}

// unmirrorLocked removes a mirror pod and reports whether it was known. The caller publishes the change, since another mirror
// pod may follow at once.
func (a *Allocator) unmirrorLocked(uid device.PodUID) bool {
	d, known := a.mirrors[uid]
	if known {
		delete(a.mirrors, uid)
		a.pools.request(d, -1)
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
