package allocator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// RuntimeSynced takes over the runtime's containers and all static pods. Devices that a container's stamp names and the state
// file does not are set aside, as far as the pod requests them (stamps.go): the container's pod is assigned the same devices again, and no other pod gets them while the
// runtime has a container of that pod.
//
// It returns at once. The planning loop compares the lists with the state file before it plans, and later reports of the
// runtime wait until then. Meanwhile nothing is released, and RuntimeCreating answers Pending.
func (a *Allocator) RuntimeSynced(all []device.Running, local []device.PodDemand) {
	a.starts.listed(all)
	a.mu.do(func() {
		a.runtimeSynced = false
		if a.catchingUp == nil {
			a.catchingUp = make(chan struct{})
		}
		a.reports = append(a.reports, func() { a.syncLocked(all, local) })
		loops.Signal(a.kick)
	})
}

// report has a report of the runtime applied, in the order of the reports. It does not wait.
func (a *Allocator) report(f func()) { a.mu.do(func() { a.reportLocked(f) }) }

// reportLocked applies a report of the runtime: at once, or after the lists that the planning loop has not compared yet.
func (a *Allocator) reportLocked(f func()) {
	if a.catchingUp == nil {
		f()
		return
	}
	a.reports = append(a.reports, f)
}

// catchUpLocked applies the runtime's reports, in their order.
func (a *Allocator) catchUpLocked() {
	if a.catchingUp == nil {
		return
	}
	for len(a.reports) > 0 {
		f := a.reports[0]
		a.reports = a.reports[1:]
		f()
	}
	a.reports = nil
	close(a.catchingUp)
	a.catchingUp = nil
}

func (a *Allocator) syncLocked(all []device.Running, local []device.PodDemand) {
	before := a.running
	a.running = containers.Containers{}
	clear(a.ledger.Conflicting)
	for uid := range a.ledger.Quarantined {
		a.endQuarantineLocked(uid)
	}
	for r, resource := range a.ledger.Resources {
		if n := resource.UnknownUsers(); n > 0 {
			a.ledger.AddUnknownUsers(r, -n)
			a.wakeLocked(r, false)
		}
	}
	own := ledger.Index{}
	a.room = maxSaid
	for _, r := range all {
		l, p := a.addRunningLocked(r, len(r.Stamp)+len(r.Digests) > 0), a.pods[r.Container.Pod]
		l.Started = !r.Idle
		if p != nil && l.Started {
			a.acceptedLocked(p, l.Name)
		}
		if was := before[r.Container.Pod][r.ID]; was != nil {
			l.Reported, l.Barred, l.Disbelieved = was.Reported, was.Barred && r.Idle, was.Disbelieved
			if was.Barred && !r.Idle { // while devmgrd was not connected
				a.cfg.Log.Error("container has started after the release of its devices", "uid", r.Container.Pod, "container", l.Name, "id", r.ID)
			}
		}
		if l.Barred {
			continue // the container's devices have been released
		}
		l.Stamped = a.believeLocked(r, l, own)
		if p != nil && l.Started && l.Granted {
			p.ran = true
		}
	}
	for uid, all := range before {
		for id, c := range all {
			if p := a.pods[uid]; p != nil && a.running[uid][id] == nil && !c.Barred {
				if _, has := p.of(c.Name); has {
					p.ran = true // the container may have run while devmgrd was not connected
				}
			}
		}
	}
	a.runtimeSynced, a.syncedAt = true, time.Now()
	a.replaceLocked(local, true)
	for uid := range a.kept {
		a.stoppedUsingLocked(uid)
	}
	for _, p := range a.pods {
		a.auditLocked(p)
		a.reviveLocked(p)
		a.lastEndedLocked(p)
	}
	a.scheduleWriteLocked(0)
	a.changedLocked()
}

// endQuarantineLocked frees the devices quarantined for a pod that are neither held nor assigned.
func (a *Allocator) endQuarantineLocked(uid device.PodUID) {
	a.ledger.EndQuarantine(uid)
	a.changedLocked()
}

// disownLocked takes back what a pod's containers are said to have. Devices that an attempt holds stay held.
func (a *Allocator) disownLocked(uid device.PodUID) {
	delete(a.ledger.Conflicting, uid)
	if a.ledger.Quarantined[uid] != nil {
		a.endQuarantineLocked(uid)
	}
}

// RuntimeLost reports that the runtime is away. Its containers may still run, so nothing is released until it is back.
func (a *Allocator) RuntimeLost() {
	a.report(func() { a.runtimeSynced = false })
}

// RuntimeInjected reports that the hook has answered the creation of a container: the runtime has all that the container needs. It is idle until
// RuntimeStarting, unless it is restored.
func (a *Allocator) RuntimeInjected(r device.Running) {
	a.report(func() {
		l := a.addRunningLocked(r, true)
		l.Idle, l.Injected = true, time.Now()
		a.snapshot = nil
		if p := a.pods[r.Container.Pod]; p != nil {
			name := r.Container.Name
			l.Fresh = p.fresh[name]
			delete(p.fresh, name)
			delete(p.preparations, name) // this start consumes the preparation
			a.consumeLocked(p, name)
		}
		if r.Restored {
			a.startedLocked(r)
		}
		a.lastEndedLocked(a.pods[r.Container.Pod]) // its deletion may have begun before the answer
	})
}

var (
	errBarred      = errors.New("the container's devices have been released since its creation")
	errConflicting = errors.New("the container's devices are another pod's")
)

// RuntimeStarting reports that a container's processes are about to run. It fails if they must not: the container's devices
// have been released since its creation, or are another pod's. Only if that is in question, it waits for the lock and for a pending comparison of the runtime's
// lists, no longer than ctx.
func (a *Allocator) RuntimeStarting(ctx context.Context, r device.Running) error {
	if a.starts.pass(r.ID) {
		a.report(func() {
			defer a.starts.recorded()
			a.startedLocked(r)
		})
		return nil
	}
	for {
		if !a.mu.lockBefore(ctx) {
			return fmt.Errorf("waiting for the allocator: %w", ctx.Err())
		}
		behind := a.catchingUp
		if behind == nil {
			break
		}
		a.mu.Unlock()
		select {
		case <-behind:
		case <-ctx.Done():
			return fmt.Errorf("waiting for the comparison of the runtime's containers with the state file: %w", ctx.Err())
		}
	}
	defer a.mu.Unlock()
	if l := a.running[r.Container.Pod][r.ID]; l != nil && l.Idle {
		switch {
		case l.Barred:
			return errBarred
		case l.Injected.IsZero() && a.ledger.Conflicting[r.Container.Pod][l.Name] != nil:
			return errConflicting
		}
	}
	a.startedLocked(r)
	return nil
}

// noneStartsLocked reports whether no start of a container is on its way to the allocator. From then on these wait for its lock.
func (a *Allocator) noneStartsLocked(all containers.Pod) bool {
	if a.starts.bar(all) {
		return true
	}
	a.scheduleWriteLocked(0) // another look, when it has arrived
	return false
}

// startedLocked records that a container starts. CRI-O may have created it while it listed its containers: then the list lacks it.
func (a *Allocator) startedLocked(r device.Running) {
	l, p := a.running[r.Container.Pod][r.ID], a.pods[r.Container.Pod]
	unlisted := l == nil
	switch {
	case unlisted:
		l = a.addRunningLocked(r, false)
		l.Stamped = a.believeLocked(r, l, ledger.Index{})
		a.changedLocked()
	case l.Idle:
		a.usedLocked(p)
	}
	l.Idle, l.Started = false, true
	if p != nil {
		if _, has := p.of(l.Name); has {
			p.ran = true
		}
		a.acceptedLocked(p, l.Name)
	}
	if unlisted {
		a.auditLocked(p)
	}
}

// removeRunningLocked forgets a container and returns it; nil: it is not known.
func (a *Allocator) removeRunningLocked(uid device.PodUID, id string) *containers.Container {
	c, last := a.running.Remove(uid, id)
	if c == nil {
		return nil
	}
	a.starts.forget(id)
	a.unsaidLocked(c)
	for _, r := range c.UnknownDevices {
		a.ledger.AddUnknownUsers(r, -1)
		a.wakeLocked(r, false)
	}
	if p := a.pods[uid]; p != nil && p.phase == waiting {
		a.snapshot = nil
		loops.Signal(a.kick) // a pod without containers may be given up
	}
	if !last {
		if !a.running[uid].MayRun() { // those that are left have not been started
			if p := a.pods[uid]; p == nil || !p.active() {
				a.scheduleWriteLocked(0)
			}
			a.reviveLocked(a.pods[uid])
			a.lastEndedLocked(a.pods[uid])
		}
		return c
	}
	a.disownLocked(uid)
	a.stoppedUsingLocked(uid)
	a.gaveBackLocked(uid)
	switch p := a.pods[uid]; {
	case p == nil:
	case !p.active():
		a.scheduleWriteLocked(0) // the pod can be released now
	case p.runtimeKnows:
		p.lastSeen = time.Now()
		loops.Signal(a.kick)
	}
	a.reviveLocked(a.pods[uid])
	a.lastEndedLocked(a.pods[uid])
	return c
}

// idleLimit is how long a static pod without containers keeps its devices. A restarted runtime does not report the end of
// sandboxes from before its restart. The kubelet's back-off between starts of a failing container is at most five minutes.
const idleLimit = 10 * time.Minute

// dropIdleLocked drops static pods that have had no container for idleLimit, and returns when the next one is due. If a
// dropped pod still exists, its next container binds it again.
func (a *Allocator) dropIdleLocked(now time.Time) (next time.Time) {
	for uid, p := range a.locals {
		if !p.active() || !p.runtimeKnows || !a.runtimeSynced || len(a.running[uid]) > 0 {
			continue
		}
		due := p.lastSeen.Add(idleLimit)
		switch {
		case !now.Before(due):
			a.cfg.Log.Info("releasing devices of idle static pod", "pod", p.demand.Pod.String())
			a.dropLocked(p)
		default:
			next = loops.Earliest(next, due)
		}
	}
	return next
}

// RuntimeStopped reports that a container's processes have ended, or that it was never started.
func (a *Allocator) RuntimeStopped(r device.Running) {
	a.report(func() { a.stoppedLocked(r.Container.Pod, r.ID, r.Lacks) })
}

// RuntimeRemoved reports that a sandbox is gone with all of its containers. The containers' ends may be unreported: an NRI
// plugin that fails hides events from later plugins.
func (a *Allocator) RuntimeRemoved(uid device.PodUID, sandbox string) {
	a.report(func() {
		for id, l := range a.running[uid] {
			if l.Sandbox == sandbox {
				a.cfg.Log.Warn("end of a container was not reported", "uid", uid, "container", l.Name, "id", id)
				a.stoppedLocked(uid, id, "")
			}
		}
	})
}

func (a *Allocator) stoppedLocked(uid device.PodUID, id, lacks string) {
	c, p := a.removeRunningLocked(uid, id), a.pods[uid]
	if c == nil || p == nil || !p.active() || p.demand.Leaving {
		return
	}
	if a.running[uid].Has(c.Name) {
		return // the next instance already runs and has the devices
	}
	a.uncreatedLocked(p, c, lacks)
	if as, ok := p.of(c.Name); ok {
		a.prepareNextLocked(p, as)
	}
}
