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

// requestLocked adds (sign 1) or subtracts (sign -1) a pod's requests. Pods may request any name: a resource that only they have named goes
// with them.
func (a *Allocator) requestLocked(d device.PodDemand, sign int) {
	a.table.Resources.Request(d, sign)
	if sign > 0 {
		return
	}
	for r := range d.Requests() {
		if p := a.table.Resources[r]; p != nil && p.Idle() && a.flapping[r] == nil && len(a.inForce[r]) == 0 {
			delete(a.table.Resources, r)
		}
	}
}

// mirrorLocked counts a mirror pod's requests.
func (a *Allocator) mirrorLocked(d device.PodDemand) {
	a.unmirrorLocked(d.Pod.UID)
	d.Admitted = true // the kubelet has created the mirror pod
	a.mirrors[d.Pod.UID] = d
	a.requestLocked(d, 1)
	a.publishLocalLocked(d.Pod)
	a.changedLocked()
}

// unmirrorLocked removes a mirror pod and reports whether it was known. The caller publishes the change, since another mirror
// pod may follow at once.
func (a *Allocator) unmirrorLocked(uid device.PodUID) bool {
	d, known := a.mirrors[uid]
	if known {
		delete(a.mirrors, uid)
		a.requestLocked(d, -1)
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
