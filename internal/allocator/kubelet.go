package allocator

import (
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// On a node that came to devmgrd without an import, and where a resource is ignored no longer (plugins.ignoredResources), pods have devices by the kubelet's
// device manager. The kubelet has each container of such a pod get them again, until the pod has left the node. So a resource has one manager at a time: while
// pods have devices of it by the kubelet, devmgrd assigns of it only what the kubelet has assigned to the same container, and all others wait. Nothing is lost
// by that, since a kubelet that has a resource fails other pods that request it.
//
// A kubelet saves what it assigns before it has a container created, and a plugin leaves it before it registers with devmgrd. So a plan that comes after a
// look at the file knows whether the kubelet has assigned anything of the resource. Which devices, the kubelet's own word decides: others can write the file.

// firstAnswer is how long a start of devmgrd waits for the kubelet's first answer before it assigns anything. The kubelet may start after devmgrd.
const firstAnswer = 5 * time.Second

// byKubelet is what pods have by the kubelet's device manager.
type byKubelet struct {
	kubelets *device.Kubelets                // its latest word
	used     map[device.ResourceName]bool    // of that: a plan looks each resource up
	kept     map[device.PodUID]device.Choice // of pods that it has forgotten and whose containers run; without what devmgrd has assigned to them
}

// KubeletChanged reports that Config.Kubelets returns another value.
func (a *Allocator) KubeletChanged() { loops.Signal(a.kick) }

// LeftToKubelet returns the resources of which devmgrd assigns only what the kubelet has assigned.
func (a *Allocator) LeftToKubelet() []device.ResourceName {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.DeleteFunc(slices.Collect(maps.Keys(a.ledger.Resources)), func(r device.ResourceName) bool { return !a.kubeletHasLocked(r) })
}

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
	a.kubelets, a.used = now, now.Used()
	for uid := range was.Pods {
		if p := a.pods[uid]; p != nil {
			a.keepLocked(p, was)
			a.stoppedUsingLocked(uid)
		}
	}
	a.wakeUnknownLocked()
	a.changedLocked()
}

// gaveBackLocked wakes others once what the checkpoint names for a pod may not count any longer.
func (a *Allocator) gaveBackLocked(uid device.PodUID) {
	if len(a.kubelets.Pods[uid]) > 0 {
		a.wakeUnknownLocked()
	}
}

// wakeUnknownLocked queues the pods that wait because others may have devices by the kubelet.
func (a *Allocator) wakeUnknownLocked() {
	for _, p := range a.waiting {
		if p.retry.IsZero() && p.wait.Reason == device.DevicesUnknown {
			a.queueLocked(p)
		}
	}
}

// keepLocked remembers what a pod has had by the kubelet alone, which has forgotten it: the pod's containers run with it.
func (a *Allocator) keepLocked(p *pod, was *device.Kubelets) {
	if !a.kubelets.Asked {
		return
	}
	pod, word := p.demand.Pod, a.kubelets.Word[p.demand.Pod.String()]
	for name, choice := range was.Pods[pod.UID] {
		for r := range choice {
			still := len(a.kubelets.Of(pod, name, p.init(name), r)) > 0 || p.active() && len(word[name][r]) > 0 // else it may be the next pod of that name
			if still || len(a.ledger.Granted(device.Container{Pod: pod.UID, Name: name}, r)) > 0 {
				continue
			}
			for _, id := range was.Of(pod, name, p.init(name), r) {
				if kept := lists.Inner(a.kept, pod.UID); !slices.Contains(kept[r], id) {
					kept[r] = append(kept[r], id)
				}
			}
		}
	}
}

// init reports whether a container of that name ends before the pod's others start.
func (p *pod) init(name string) bool {
	d, _ := p.requested().Of(name)
	return d.Kind == device.Init
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
	for r := range has {
		a.wakeLocked(r, false)
	}
}

// kubeletHasLocked reports whether pods have devices of a resource by the kubelet: by its latest answer; by an earlier one, of pods that it has forgotten
// since; or by its checkpoint, for pods of which it has not answered. A pod that is not known on the node counts until the API server has listed the pods.
func (a *Allocator) kubeletHasLocked(r device.ResourceName) bool {
	if a.used[r] {
		return true
	}
	for _, choice := range a.kept {
		if len(choice[r]) > 0 {
			return true
		}
	}
	for uid, containers := range a.kubelets.Pods {
		p := a.pods[uid]
		if p == nil && a.podsListed || p != nil && !p.active() && len(a.running[uid]) == 0 {
			continue
		}
		for name, choice := range containers {
			if ids := choice[r]; len(ids) > 0 && (p == nil || !a.kubelets.Denies(p.demand.Pod, name, p.init(name), r, ids)) {
				return true
			}
		}
	}
	return false
}

// unansweredLocked returns for how long the kubelet's first answer is still awaited: its checkpoint may have been removed.
func (a *Allocator) unansweredLocked() time.Duration {
	if !a.kubelets.Asked || a.kubelets.Word != nil {
		return 0
	}
	return time.Until(a.began.Add(firstAnswer))
}

// runsWithLocked returns the devices that a pod's containers have already, for its plan: by their stamps and by the kubelet. It returns a refusal if
// the kubelet has the resource and has not assigned to the pod what it requests.
func (a *Allocator) runsWithLocked(p *pod) (map[string]device.Choice, *device.Refusal) {
	runs := map[string]device.Choice{}
	maps.Copy(runs, a.ledger.Quarantined[p.demand.Pod.UID])
	for _, d := range p.demand.Demands {
		name := d.Container.Name
		if _, assigned := p.of(name); assigned || placement.Unread(d) { // the plan says why an unread one waits
			continue
		}
		for r, n := range d.Wants {
			if len(runs[name][r]) == n || !a.kubeletHasLocked(r) {
				continue
			}
			ids := a.kubelets.Of(p.demand.Pod, name, d.Kind == device.Init, r)
			if len(ids) != n {
				return nil, device.Refuse(device.DevicesUnknown, nil, "pods have devices of %s by the kubelet's device manager; devmgrd assigns others once these pods have ended", r)
			}
			if no := a.disputedLocked(p, r, ids); no != nil {
				return nil, no
			}
			choice := device.Choice{}
			maps.Copy(choice, runs[name])
			choice[r], runs[name] = ids, choice
		}
	}
	return runs, nil
}

// disputedLocked returns a refusal if another pod has one of the devices that a pod has by the kubelet.
func (a *Allocator) disputedLocked(p *pod, r device.ResourceName, ids []device.ID) *device.Refusal {
	resource, uid := a.ledger.Lookup(r), p.demand.Pod.UID
	for _, id := range ids {
		anothers := resource.IsTaken(id) && !resource.Has(id, uid)
		for other, choice := range a.kept {
			anothers = anothers || other != uid && slices.Contains(choice[r], id)
		}
		if anothers {
			return device.Refuse(device.DeviceInUse, nil, "the kubelet's device manager has assigned device %s of %s to the pod, and another pod has it", id, r)
		}
	}
	return nil
}

// lackingLocked returns why a container must not be created although its pod has been assigned devices; nil: it may be. The kubelet would give it a device of another
// pod, or it requests what its pod had not requested when it was assigned devices: a resource was ignored then, and the kubelet has not assigned it either; or
// the manifest of a static pod that names the UID itself has been changed.
func (a *Allocator) lackingLocked(p *pod, c device.Container) *device.Refusal {
	word := a.kubelets.Pods[c.Pod][c.Name]
	if a.kubelets.Asked && a.kubelets.Word != nil && !p.init(c.Name) {
		word = a.kubelets.Word[p.demand.Pod.String()][c.Name]
	}
	for r, ids := range word {
		if no := a.disputedLocked(p, r, ids); no != nil {
			return no
		}
	}
	if p.newest == nil || len(p.assigned) == 0 {
		return nil
	}
	want, _ := p.requested().Of(c.Name)
	for r, n := range want.Wants {
		switch has := len(a.ledger.Granted(c, r)) + len(word[r]) + len(a.ledger.Quarantined[c.Pod][c.Name][r]); {
		case has < n && p.demand.Local:
			return device.Refuse(device.DevicesUnknown, nil, "the static pod's annotation has changed since it was assigned devices: the container requests %d of %s and has %d; "+
				"remove the manifest until devmgrd assignments does not show the pod any longer, and put it back", n, r, has)
		case has == 0 && n > 0:
			return device.Refuse(device.DevicesUnknown, nil, "the pod was assigned devices while plugins.ignoredResources named %s: delete it, so that another one gets all", r)
		}
	}
	return nil
}
