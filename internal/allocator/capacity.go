package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// CapacityChanged has a value after the published numbers may have changed.
func (a *Allocator) CapacityChanged() <-chan struct{} { return a.capacityChanged }

// Capacity returns the number of devices that the Node shows for each resource that a plugin has ever listed.
func (a *Allocator) Capacity() map[device.ResourceName]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	hidden := a.hiddenFromSchedulerLocked()
	numbers := make(map[device.ResourceName]int, len(a.pools))
	for r, p := range a.pools {
		if p.offered && p.offer.Reported {
			numbers[r] = p.capacity(hidden[r], a.podsListed)
		}
	}
	return numbers
}

// Requested returns the number of devices that the pods bound to the node ask for, of each resource that is in Published.
func (a *Allocator) Requested() map[device.ResourceName]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	bound := make(map[device.ResourceName]int, len(a.pools))
	for r, p := range a.pools {
		if p.offered && p.offer.Reported {
			bound[r] = p.requests
		}
	}
	return bound
}

// PodsListed reports whether Published and Bound count every pod bound to the node: after the first full list of them.
func (a *Allocator) PodsListed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.podsListed
}

// hiddenFromSchedulerLocked returns the number of devices that local pods have and that the scheduler does not know to be in use: it knows
// what their mirrors ask for.
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
// without those that are hidden from the scheduler. Where devices are withheld, one may be counted under two IDs: then it is
// not more than the plugin lists.
//
// It is never less than what the pods that the kubelet has admitted ask for: a kubelet sets allocatable to capacity, and at
// its restart admits all pods again against that number and fails the youngest where it is too low.
//
// Devices that no plugin lists and that a pod was granted in an earlier boot are not in use, and not counted: the pod is
// granted listed ones.
//
// What admitted pods ask for counts when the API server has listed the node's pods. Before that some of them are known from the
// state file alone and may be gone, and the publisher lowers no number.
func (p *pool) capacity(hidden int, listed bool) int {
	n := len(p.taken) - p.unlistedLapsed
	if p.offer.State != device.Lost {
		n += p.freeCount
	}
	n -= max(0, hidden)
	if p.withheld != nil {
		n = min(n, len(p.listing.devices))
	}
	if !listed {
		return n
	}
	return max(n, p.admitted)
}

// mirrorLocked counts what a mirror asks for.
func (a *Allocator) mirrorLocked(d device.PodDemand) {
	a.unmirrorLocked(d.Pod.UID)
	d.Admitted = true // the kubelet has made it
	a.mirrors[d.Pod.UID] = d
	a.pools.request(d, 1)
	a.publishLocalLocked(d.Pod)
	signal(a.capacityChanged)
}

// unmirrorLocked reports whether there was such a mirror. The board is the caller's: another one may come at once.
func (a *Allocator) unmirrorLocked(uid device.PodUID) bool {
	d, known := a.mirrors[uid]
	if known {
		delete(a.mirrors, uid)
		a.pools.request(d, -1)
		signal(a.capacityChanged)
	}
	return known
}

// publishLocalLocked has the board show what a mirror tells of its local pod.
func (a *Allocator) publishLocalLocked(mirror device.Pod) {
	for _, p := range a.locals {
		if p.demand.Pod.Namespace == mirror.Namespace && p.demand.Pod.Name == mirror.Name {
			a.publishLocked(p)
		}
	}
}
