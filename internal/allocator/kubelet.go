package allocator

import (
	"maps"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// On a node that came to devmgrd without an import, and where a resource is ignored no longer (plugins.ignoredResources), pods have devices by the kubelet's
// device manager. The kubelet has each container of such a pod get them again, until the pod has left the node. So a resource has one manager at a time: while
// pods have devices of it by the kubelet, devmgrd assigns of it only what the kubelet has assigned to the same container, and all others wait. Nothing is lost
// by that, since a kubelet that has a resource fails other pods that request it.
//
// A kubelet saves what it assigns before it has a container created, and a plugin leaves it before it registers with devmgrd. So a plan that comes after a
// look at the file knows whether the kubelet has assigned anything of the resource. Which devices, the kubelet's own word decides: others can write the file.

// byKubelet is what pods have by the kubelet's device manager.
type byKubelet struct {
	kubelets *device.Kubelets                           // its latest word
	kept     map[device.PodUID]map[string]device.Choice // of pods that it has forgotten and whose containers run
}

// KubeletChanged reports that Config.Kubelets returns another value.
func (a *Allocator) KubeletChanged() { loops.Signal(a.kick) }

// refreshKubelets takes over the kubelet's latest word.
func (a *Allocator) refreshKubelets() {
	if a.cfg.Kubelets == nil {
		return
	}
	now := a.cfg.Kubelets()
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.kubelets
	if now == was {
		return
	}
	a.kubelets = now
	for uid := range was.Pods {
		if p := a.pods[uid]; p != nil && len(now.Of(p.demand.Pod)) == 0 {
			a.keepLocked(p, was.Of(p.demand.Pod))
			a.stoppedUsingLocked(uid)
		}
	}
	for r := range was.Resources {
		a.wakeLocked(r, false)
	}
	a.changedLocked()
}

// keepLocked remembers what a pod has by the kubelet alone, which has forgotten it: the pod's containers run with it.
func (a *Allocator) keepLocked(p *pod, has map[string]device.Choice) {
	for name, choice := range has {
		for r := range choice {
			if len(a.ledger.Granted(device.Container{Pod: p.demand.Pod.UID, Name: name}, r)) == 0 {
				a.kept[p.demand.Pod.UID] = has
			}
		}
	}
}

// stoppedUsingLocked forgets what a pod has by the kubelet if the runtime has no container of it. If it has ended, it departs first.
func (a *Allocator) stoppedUsingLocked(uid device.PodUID) {
	if p := a.pods[uid]; a.runtimeSynced && len(a.running[uid]) == 0 && (p == nil || p.active()) {
		a.leftLocked(uid)
	}
}

// leftLocked forgets what a pod has by the kubelet.
func (a *Allocator) leftLocked(uid device.PodUID) {
	has := a.kept[uid]
	delete(a.kept, uid)
	for _, choice := range has {
		for r := range choice {
			a.wakeLocked(r, false)
		}
	}
}

// kubeletHasLocked reports whether pods have devices of a resource by the kubelet.
func (a *Allocator) kubeletHasLocked(r device.ResourceName) bool {
	if a.kubelets.Resources[r] {
		return true
	}
	for _, all := range a.kept {
		for _, choice := range all {
			if len(choice[r]) > 0 {
				return true
			}
		}
	}
	return false
}

// fromKubeletLocked returns what a pod has by the kubelet, by container name.
func (a *Allocator) fromKubeletLocked(p *pod) map[string]device.Choice {
	if has := a.kubelets.Of(p.demand.Pod); len(has) > 0 {
		return has
	}
	return a.kept[p.demand.Pod.UID]
}

// runsWithLocked returns the devices that a pod's containers have already, for its plan: by their stamps and by the kubelet. It returns a refusal if
// the kubelet has the resource and has not assigned to the pod what it requests.
func (a *Allocator) runsWithLocked(p *pod) (map[string]device.Choice, *device.Refusal) {
	uid := p.demand.Pod.UID
	all, own := a.ledger.Quarantined[uid], false
	has := a.fromKubeletLocked(p)
	for _, d := range p.demand.Demands {
		name := d.Container.Name
		if _, assigned := p.of(name); assigned {
			continue
		}
		for r, n := range d.Wants {
			if !a.kubeletHasLocked(r) || len(all[name][r]) == n {
				continue
			}
			ids := has[name][r]
			if len(ids) != n {
				return nil, device.Refuse(device.DevicesUnknown, nil, "pods have devices of %s by the kubelet's device manager; devmgrd assigns others once these pods have ended", r)
			}
			if no := a.disputedLocked(p, r, ids); no != nil {
				return nil, no
			}
			if !own {
				all, own = maps.Clone(all), true
				if all == nil {
					all = map[string]device.Choice{}
				}
			}
			choice := maps.Clone(all[name])
			if choice == nil {
				choice = device.Choice{}
			}
			choice[r], all[name] = ids, choice
		}
	}
	return all, nil
}

// disputedLocked returns a refusal if another pod has one of the devices that a pod has by the kubelet.
func (a *Allocator) disputedLocked(p *pod, r device.ResourceName, ids []device.ID) *device.Refusal {
	resource := a.ledger.Resources[r]
	if resource == nil {
		return nil
	}
	for _, id := range ids {
		if resource.IsTaken(id) && !resource.Has(id, p.demand.Pod.UID) {
			return device.Refuse(device.DeviceInUse, nil, "the kubelet's device manager has assigned device %s of %s to the pod, and another pod has it", id, r)
		}
	}
	return nil
}

// lackingLocked returns why a container must not be created although its pod has been assigned devices; nil: it may be. The kubelet would give it a device of another
// pod, or it requests a resource that was ignored when its pod was assigned devices, and neither the kubelet nor devmgrd has assigned any.
func (a *Allocator) lackingLocked(p *pod, c device.Container) *device.Refusal {
	has := a.kubelets.Of(p.demand.Pod)[c.Name]
	for r, ids := range has {
		if no := a.disputedLocked(p, r, ids); no != nil {
			return no
		}
	}
	if p.newest == nil {
		return nil
	}
	as, _ := p.of(c.Name)
	want, _ := p.requested().Of(c.Name)
	for r := range want.Wants {
		assigned := len(has[r]) > 0 || len(a.ledger.Quarantined[c.Pod][c.Name][r]) > 0
		for _, s := range as.Shares {
			assigned = assigned || s.Resource == r
		}
		if !assigned {
			return device.Refuse(device.DevicesUnknown, nil, "the pod was assigned devices while plugins.ignoredResources named %s: delete it, so that another one gets all", r)
		}
	}
	return nil
}
