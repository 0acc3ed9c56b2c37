package allocator

import (
	"slices"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
)

// On a node that came to devmgrd without an import, and where a resource is ignored no longer (plugins.ignoredResources), pods have devices by the kubelet's
// device manager. The kubelet has each container of such a pod get them, also one that starts later. So they are quarantined for the pod as long as it is
// on the node: if devmgrd assigns it that resource, it assigns these devices.
//
// A kubelet saves what it assigns before it has a container created, and a plugin leaves it before it registers with devmgrd. So a plan that comes after a
// look at the file knows of all that the kubelet has assigned of the resource.

// refreshKubelets takes over what the kubelet's device manager has assigned.
func (a *Allocator) refreshKubelets() {
	if a.cfg.Kubelets == nil {
		return
	}
	now := a.cfg.Kubelets()
	a.mu.Lock()
	defer a.mu.Unlock()
	if now == a.kubelets {
		return
	}
	if a.kubelets.Unread {
		a.endAuditPausesLocked()
	}
	a.kubelets = now
	for _, p := range a.pods {
		a.keepKubeletsLocked(p)
		a.auditLocked(p)
	}
	a.changedLocked()
}

// endAuditPausesLocked takes back the pauses of auditLocked: of containers that say nothing.
func (a *Allocator) endAuditPausesLocked() {
	for _, all := range a.running {
		for _, l := range all {
			for _, r := range slices.Clone(l.UnknownDevices) {
				if !l.Stamped {
					a.unpauseLocked(l, r)
				}
			}
		}
	}
}

// keepKubeletsLocked quarantines for a pod what the kubelet has assigned to it, as far as it requests that. Until the API server has reported the pod, all
// counts.
func (a *Allocator) keepKubeletsLocked(p *pod) {
	if p == nil || !p.active() {
		return
	}
	uid, own := p.demand.Pod.UID, ledger.Index{}
	for name, choice := range a.kubelets.Pods[uid] {
		c := device.Container{Pod: uid, Name: name}
		requested, known := a.requestedLocked(c)
		for r, ids := range choice {
			ids = short(ids)
			if known && requested.misfit(r, ids) != "" {
				a.ledger.Disown(c, r, ids)
				a.pruneLocked(r)
				continue
			}
			a.ledger.Quarantine(c, r, ids, own)
			for _, l := range a.running[uid] {
				l.Stamped = l.Stamped || l.Name == name
			}
		}
	}
}

// fromKubeletLocked reports whether the kubelet has assigned devices to a pod that is on the node.
func (a *Allocator) fromKubeletLocked(p *pod) bool {
	return p != nil && p.active() && len(a.kubelets.Pods[p.demand.Pod.UID]) > 0
}
