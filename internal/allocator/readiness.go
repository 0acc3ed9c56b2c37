package allocator

import (
	"context"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An occasion is why the readiness of a container is looked up.
type occasion int

const (
	creating occasion = iota // the container is being created: a plugin is asked to prepare its devices, if that is due
	existing                 // it exists, and is ready while it has its devices: they are not prepared again
	looking                  // no plugin is asked
)

// RuntimeCreating answers the runtime's question about a container that it is about to create. It is a look-up, and waits for the
// allocator's lock at most until ctx ends. A container that may be created counts as running from then on, so that its devices cannot be
// released before its start; RuntimeAborted reverts this.
func (a *Allocator) RuntimeCreating(ctx context.Context, r device.Running) device.Readiness {
	if !a.mu.lockBefore(ctx) {
		return device.Readiness{State: device.Waiting, Wait: waitLock}
	}
	defer a.mu.Unlock()
	st := a.readinessLocked(r.Container, creating)
	if st.State == device.Ready && a.catchingUp != nil {
		return device.Readiness{State: device.Pending, Done: a.catchingUp, Wait: waitComparing}
	}
	if st.State == device.NoDevices || st.State == device.Ready {
		a.reportLocked(func() { a.addRunningLocked(r, true) })
		if p := a.pods[r.Container.Pod]; p != nil {
			a.kubeletAdmittedLocked(p) // the kubelet is creating the container
		}
	}
	return st
}

// RuntimeAborted reports that the container is not created after all. The preparation of its start remains valid.
func (a *Allocator) RuntimeAborted(r device.Running) {
	a.report(func() { a.removeRunningLocked(r.Container.Pod, r.ID) })
}

// Readiness returns the readiness of a container, which may exist.
func (a *Allocator) Readiness(c device.Container) device.Readiness {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[c.Pod].Has(c.Name) {
		return a.readinessLocked(c, existing)
	}
	return a.readinessLocked(c, creating)
}

// waitComparing is RuntimeCreating's answer while the runtime's containers are being compared with the state file.
var waitComparing = device.Wait{Reason: device.Allocating, Message: "devmgrd is comparing the container runtime's containers with the state file"}

// waitLock is RuntimeCreating's answer if it was late.
var waitLock = device.Wait{Reason: device.Allocating, Message: "devmgrd is busy with other pods"}

// waitAllocating is the answer while an attempt is due or in flight.
var waitAllocating = device.Wait{Reason: device.Allocating, Message: "the allocation is in progress"}

// waitCommand is the answer for a pod that is back while the command of its release is being stopped.
var waitCommand = device.Wait{Reason: device.DeviceBusy, Message: "release.command for the pod's devices is still running, or systemd has not said yet whether one of an earlier process of devmgrd is"}

// WouldRefuse returns the first container of a served pod that would not be created now, and why; nil: there is none, or the runtime has
// not listed its containers yet. Only the kubelet knows which containers it will start again. Here an init container has ended as soon as a
// container after it runs, and all others are started again.
func (a *Allocator) WouldRefuse(pod device.PodUID) (container string, why *device.Wait) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[pod]
	if p == nil || !p.active() || !p.served() || a.syncedAt.IsZero() {
		return "", nil
	}
	demands, runs := p.requested().Demands, a.running[pod].Runs
	last := len(demands) // those before it have started
	if !slices.ContainsFunc(p.demand.Containers[p.demand.Sidecars:], runs) {
		for last = len(demands) - 1; last >= 0 && !runs(demands[last].Container.Name); last-- {
		}
	}
	for i, d := range demands {
		c := d.Container
		if runs(c.Name) || d.Kind == device.Init && i < last {
			continue // it has started, and ended if it does not run
		}
		if st := a.readinessLocked(c, looking); st.State == device.Waiting {
			return c.Name, &st.Wait
		}
	}
	return "", nil
}

func (a *Allocator) readinessLocked(c device.Container, on occasion) device.Readiness {
	p := a.pods[c.Pod]
	if p == nil || p.phase == forgetting || p.phase == returned {
		return device.Readiness{State: device.Unknown}
	}
	if no := a.lackingLocked(p, c); no != nil && on != existing {
		return device.Readiness{State: device.Waiting, Wait: no.Wait}
	}
	demand, ok := p.demand.Of(c.Name)
	if !ok {
		return device.Readiness{State: device.NoDevices}
	}
	if a.commandRunsLocked(p) {
		return device.Readiness{State: device.Waiting, Wait: waitCommand}
	}
	_, lapsed := p.lapsed[c.Name]
	switch {
	case p.complete() && !lapsed: // another container of the pod may wait for a new grant
	case p.done != nil:
		return device.Readiness{State: device.Pending, Done: p.done, Wait: waitAllocating}
	case p.phase == waiting:
		return device.Readiness{State: device.Waiting, Wait: p.wait}
	}
	as, ok := p.of(c.Name)
	if !ok || lapsed && on != existing { // it was dropped before it had its devices, or had them granted again
		return device.Readiness{State: device.Unknown}
	}
	if on != existing {
		if not := a.preparedLocked(p, as, on); not != nil {
			return *not
		}
	}
	return device.Readiness{State: device.Ready, Assignment: as, Demand: demand, Pod: p.demand.Pod, OwnUsers: p.demand.UserNamespace, Fresh: p.fresh[c.Name]}
}
