package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// Changed has a value after the published numbers may have changed.
func (a *Allocator) Changed() <-chan struct{} { return a.changed }

// Published gives the number of devices that the Node shows for each resource that a plugin has ever listed.
func (a *Allocator) Published() map[device.ResourceName]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	hidden := a.hiddenLocked()
	numbers := make(map[device.ResourceName]int, len(a.pools))
	for r, p := range a.pools {
		if p.offered && p.offer.Reported {
			numbers[r] = p.published(hidden[r])
		}
	}
	return numbers
}

// Complete tells whether Published counts what every pod bound to the node asks for: after the first full list of them.
func (a *Allocator) Complete() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.listed
}

// hiddenLocked gives the number of devices that local pods have and that the scheduler does not know to be in use: it knows
// what their mirrors ask for.
func (a *Allocator) hiddenLocked() map[device.ResourceName]int {
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

// published is the number that the Node shows as capacity and as allocatable: what is usable or in use, without what is
// hidden from the scheduler, and never less than the pods on the node ask for. A kubelet sets allocatable to capacity
// whatever it was, and at its restart admits all pods anew against that number, failing the youngest where it falls short;
// so it must not fall short.
func (p *pool) published(hidden int) int {
	n := len(p.taken)
	if p.offer.State != device.Lost {
		n = p.frees + len(p.taken) // every usable device is free or taken
	}
	return max(n-max(0, hidden), p.requests)
}

// mirrorLocked counts what a mirror asks for.
func (a *Allocator) mirrorLocked(d device.PodDemand) {
	a.unmirrorLocked(d.Pod.UID)
	a.mirrors[d.Pod.UID] = d
	a.pools.request(d, 1)
	a.showLocalLocked(d.Pod)
	signal(a.changed)
}

// unmirrorLocked tells whether there was such a mirror. The board is the caller's: another one may come at once.
func (a *Allocator) unmirrorLocked(uid device.PodUID) bool {
	d, known := a.mirrors[uid]
	if known {
		delete(a.mirrors, uid)
		a.pools.request(d, -1)
		signal(a.changed)
	}
	return known
}

// showLocalLocked has the board show what a mirror tells of its local pod.
func (a *Allocator) showLocalLocked(mirror device.Pod) {
	for _, p := range a.locals {
		if p.demand.Pod.Namespace == mirror.Namespace && p.demand.Pod.Name == mirror.Name {
			a.showLocked(p)
		}
	}
}
