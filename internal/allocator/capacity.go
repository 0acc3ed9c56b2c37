package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// hiddenFromSchedulerLocked returns the number of devices of static pods that the scheduler does not count: the scheduler
// counts only the requests of their mirror pods.
func (a *Allocator) hiddenFromSchedulerLocked() map[device.ResourceName]int {
	hidden := map[device.ResourceName]int{}
	for _, p := range a.locals {
		if p.release != nil && p.release.Busy {
			continue // they do not count at all
		}
		for _, s := range device.Shares(p.assigned) {
			hidden[s.Resource] += len(s.IDs)
		}
	}
	for _, d := range a.mirrors {
		for r, n := range d.Requests() {
			hidden[r] -= n
		}
	}
	return hidden
}

// mirrorLocked counts a mirror pod's requests.
func (a *Allocator) mirrorLocked(d device.PodDemand) {
	a.unmirrorLocked(d.Pod.UID)
	d.Admitted = true // the kubelet has created the mirror pod
	a.mirrors[d.Pod.UID] = d
	a.table.Resources.Request(d, 1)
	a.publishLocalLocked(d.Pod)
	a.changedLocked()
}

// unmirrorLocked removes a mirror pod and reports whether it was known. The caller publishes the change, since another mirror
// pod may follow at once.
func (a *Allocator) unmirrorLocked(uid device.PodUID) bool {
	d, known := a.mirrors[uid]
	if known {
		delete(a.mirrors, uid)
		a.table.Resources.Request(d, -1)
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
