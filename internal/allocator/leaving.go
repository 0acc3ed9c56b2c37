package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// A pod that is being deleted, or of which the kubelet starts no further container for another reason (device.PodDemand.Leaving), ends with its last
// container: its phase may stay what it is for much longer, or for ever. One that waits, and whose containers can have no device, ends at once. Until its object is gone, the scheduler and
// the kubelet count its requests.

// leaveLocked ends the pod of that demand if it has left, and reports whether it has.
func (a *Allocator) leaveLocked(d device.PodDemand) bool {
	uid := d.Pod.UID
	p := a.pods[uid]
	if !d.Leaving || a.syncedAt.IsZero() || p != nil && p.runtimeKnows {
		return false
	}
	_, left := a.left[uid]
	has := len(d.Demands) == 0 || p != nil && p.complete() || a.ledger.Quarantined[uid] != nil || len(a.kubelets.Pods[uid])+len(a.kept[uid]) > 0
	if has && (a.running[uid].MayRun() || !a.runtimeSynced && !left) {
		return false
	}
	if p != nil && p.active() {
		a.dropLocked(p)
	}
	if !left {
		a.left[uid] = d
		a.requestLocked(d, 1)
		a.changedLocked()
	}
	return true
}

// uncountLeftLocked takes back the requests of a pod that had left: its object is gone, or it may have containers after all.
func (a *Allocator) uncountLeftLocked(uid device.PodUID) {
	if d, is := a.left[uid]; is {
		delete(a.left, uid)
		a.requestLocked(d, -1)
		a.changedLocked()
	}
}

// lastEndedLocked ends a pod that is leaving with the last of its containers.
func (a *Allocator) lastEndedLocked(p *pod) {
	if p != nil && p.active() {
		a.leaveLocked(p.requested())
	}
}
