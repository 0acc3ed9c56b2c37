package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A phase is a pod's position on the way to its devices.
type phase int

const (
	settled    phase = iota // it requests nothing, or has all its devices
	queued                  // it waits for its plan
	allocating              // its plugins are being asked, and devices are held for it
	parked                  // it waits for something to change
)

// A pod is the allocator's state of one pod. Allocator.mu guards it.
type pod struct {
	demand        device.PodDemand
	newDemand     *device.PodDemand // while allocating: its current demand, if it has changed
	bound         time.Time         // when the allocator first heard of the pod
	active        bool              // in the API and not ended; or a static pod with a sandbox
	runtimeKnows  bool              // a static pod reported by the runtime: the API does not affect it
	lastSeen      time.Time         // if runtimeKnows: when it was bound, or its last container ended, whichever was later
	saved         bool              // in the state file, possibly with another demand
	releasing     bool              // its removal from the state file is in progress
	droppedAt     time.Time         // when it was last dropped
	releaseAt     time.Time         // earliest time of its removal
	processChecks int               // how often the host has shown processes of it since it was dropped
	assigned      []device.Assignment
	doubt         hold // devices of a failed commit, or of a record that contradicts another; nil: no doubt

	phase phase
	done  chan struct{} // closed when phase leaves queued or allocating; nil in the other phases
	wait  device.Wait   // if parked
	since time.Time     // start of the wait for that reason or, if settled, of the assignment; zero: before devmgrd started
	tries int           // consecutive plugin failures
	retry time.Time     // if parked: when to retry without another cause; zero: never

	lapsed           map[string]lapse // containers whose grants no longer hold
	fresh            map[string]bool  // containers whose grants are unused so far
	ran              bool             // a container may have run since the boot
	failures         int              // consecutive failures to apply its grants
	refusal          device.Wait      // why a container with devices was refused; zero: none was
	refusedContainer string           // the container of refusal

	preparations map[string]*preparation // by container name
	allocation   *device.PodAllocation   // as published in the feed
}

// complete reports whether each container has its devices.
func (p *pod) complete() bool { return len(p.assigned) == len(p.demand.Demands) }

// of returns the assignment of the container of that name.
func (p *pod) of(container string) (device.Assignment, bool) {
	for _, as := range p.assigned {
		if as.Container.Name == container {
			return as, true
		}
	}
	return device.Assignment{}, false
}

// Bind reports that a pod is bound to this node and has not ended. Repeated calls change nothing.
func (a *Allocator) Bind(d device.PodDemand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	bind := func() {
		a.bindLocked(d)
		a.auditLocked(a.pods[d.Pod.UID])
	}
	if d.Local {
		a.reportLocked(bind) // reported by the runtime
	} else {
		bind()
	}
}

// newSandbox is how long a static pod without a sandbox keeps its devices. The kubelet creates another sandbox within a
// second or so, and does not announce it.
const newSandbox = 10 * time.Second

// Drop reports that a pod has ended or left the API. The pod keeps its devices as long as the runtime has a container of it.
func (a *Allocator) Drop(uid device.PodUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := a.mirrors[uid]; a.unmirrorLocked(uid) {
		a.publishLocalLocked(d.Pod)
	}
	if p := a.pods[uid]; p != nil && !p.runtimeKnows {
		a.dropLocked(p)
	}
}

// DropLocal reports that a static pod has no sandbox.
func (a *Allocator) DropLocal(uid device.PodUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reportLocked(func() {
		if p := a.pods[uid]; p != nil && p.runtimeKnows {
			a.dropLocked(p)
		}
	})
}

// Replace reports all pods that the API server has bound to this node. It drops all others except static pods.
func (a *Allocator) Replace(all []device.PodDemand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.mirrors {
		a.unmirrorLocked(uid)
	}
	a.replaceLocked(all, false)
	for _, p := range a.locals {
		a.publishLocked(p) // its mirror pod may be gone
	}
	a.podsListed = true
	signal(a.capacityChanged)
}

// replaceLocked binds these pods and drops all others with the same Local.
func (a *Allocator) replaceLocked(all []device.PodDemand, local bool) {
	named := make(map[device.PodUID]bool, len(all))
	for _, d := range all {
		named[d.Pod.UID] = true
		a.bindLocked(d)
		a.auditLocked(a.pods[d.Pod.UID])
	}
	for uid, p := range a.pods {
		if !named[uid] && p.demand.Local == local {
			a.dropLocked(p)
		}
	}
}

func (a *Allocator) bindLocked(d device.PodDemand) {
	if d.Mirror {
		a.mirrorLocked(d)
		return
	}
	p := a.pods[d.Pod.UID]
	if p != nil && d.Admitted {
		a.admittedLocked(p)
	}
	d.Admitted = d.Admitted || p != nil && p.demand.Admitted
	if d.Created.IsZero() { // unknown: as old as the allocator's record of the pod
		d.Created = time.Now()
		if p != nil {
			d.Created = p.demand.Created
		}
	}
	if p == nil {
		now := time.Now()
		p = &pod{demand: d, bound: now, active: true, runtimeKnows: d.Local, lastSeen: now}
		a.addLocked(p)
		a.admitLocked(p)
		return
	}
	switch {
	case p.runtimeKnows && !d.Local:
		return // a pod in the API pretends to be this pod's mirror
	case p.demand.Local != d.Local: // kubernetes.mode has changed since the last start
		a.localLocked(p, d.Local)
	}
	p.runtimeKnows, p.lastSeen = d.Local, time.Now()
	if !slices.Equal(p.demand.Containers, d.Containers) { // the state file's writer did not know them
		p.demand.Containers, p.demand.Sidecars = d.Containers, d.Sidecars
		a.saveLaterLocked(p)
		a.publishLocked(p)
	}
	if !p.active {
		p.active = true
		a.publishLocked(p)
		delete(a.releasing, d.Pod.UID)
		a.pools.request(p.demand, 1)
		signal(a.capacityChanged)
		if p.phase == settled && !p.releasing && !p.served() {
			a.queueLocked(p)
		}
	}
	// A pod's requests never change, but the part that devmgrd serves may, until it has been served: the
	// scheduler may give a resource to a DRA driver, and after a restart other resources may be ignored.
	switch {
	case p.demand.Equal(d):
		p.newDemand = nil
	case len(p.assigned) > 0 || p.releasing:
	case p.phase == allocating:
		p.newDemand = &d
	default:
		a.changeLocked(p, d)
	}
}

// admittedLocked records that the kubelet has admitted a pod.
func (a *Allocator) admittedLocked(p *pod) {
	if p.demand.Admitted {
		return
	}
	if p.active {
		a.pools.request(p.demand, -1)
	}
	p.demand.Admitted = true
	if p.active {
		a.pools.request(p.demand, 1)
		signal(a.capacityChanged)
	}
}

// addLocked adds a pod to memory.
func (a *Allocator) addLocked(p *pod) {
	uid := p.demand.Pod.UID
	if a.pods[uid] = p; p.demand.Local {
		a.locals[uid] = p
	}
	a.publishLocked(p)
}

// localLocked marks a pod as known from the runtime, or from the API.
func (a *Allocator) localLocked(p *pod, local bool) {
	if p.active {
		a.pools.request(p.demand, -1)
	}
	delete(a.locals, p.demand.Pod.UID)
	p.demand.Local = local
	a.addLocked(p)
	if p.active {
		a.pools.request(p.demand, 1)
	}
	a.saveLaterLocked(p)
}

// changeLocked changes the demand of a pod that holds nothing.
func (a *Allocator) changeLocked(p *pod, d device.PodDemand) {
	a.pools.request(p.demand, -1)
	p.demand = d
	a.publishLocked(p)
	a.saveLaterLocked(p)
	a.admitLocked(p)
}

// admitLocked starts a pod that is new or has a new demand.
func (a *Allocator) admitLocked(p *pod) {
	a.pools.request(p.demand, 1)
	if len(p.demand.Demands) > 0 {
		signal(a.capacityChanged)
		a.queueLocked(p)
		return
	}
	a.settleLocked(p)
	a.saveLaterLocked(p)
}

func (a *Allocator) dropLocked(p *pod) {
	if p.active {
		p.active, p.droppedAt = false, time.Now()
		a.publishLocked(p)
		a.pools.request(p.demand, -1)
		signal(a.capacityChanged)
	}
	if p.phase == allocating || p.releasing {
		return // the end of the attempt, or of the commit, drops the pod
	}
	a.settleLocked(p)
	if len(p.assigned) == 0 && !p.saved {
		a.removeLocked(p)
		return
	}
	a.releasing[p.demand.Pod.UID] = p
	p.releaseAt, p.processChecks = time.Time{}, 0
	if p.demand.Local && a.runtimeSynced {
		p.releaseAt = time.Now().Add(newSandbox)
	}
	a.scheduleWriteLocked(0)
}

// removeLocked removes a pod from memory, its only record.
func (a *Allocator) removeLocked(p *pod) {
	uid := p.demand.Pod.UID
	delete(a.pods, uid)
	delete(a.locals, uid)
	delete(a.unsaved, uid)
	delete(a.releasing, uid)
	a.publishLocked(p)
}

// queueLocked queues a pod for the next plan, unless its record is in doubt: then decideLocked queues it.
func (a *Allocator) queueLocked(p *pod) {
	if p.phase == queued || p.doubt != nil {
		return
	}
	delete(a.waiting, p.demand.Pod.UID)
	p.phase = queued
	if p.done == nil {
		p.done = make(chan struct{})
	}
	a.queued = append(a.queued, p)
	signal(a.kick)
}

// parkLocked makes a pod wait for a change, and no longer than pause if pause is not zero.
func (a *Allocator) parkLocked(p *pod, why device.Wait, pause time.Duration) {
	news := p.wait != why
	if p.wait.Reason != why.Reason {
		p.since = time.Now()
	}
	p.phase, p.wait, p.retry = parked, why, time.Time{}
	if pause > 0 {
		p.retry = time.Now().Add(pause)
		signal(a.kick)
	}
	a.waiting[p.demand.Pod.UID] = p
	a.endWaitLocked(p)
	a.feed.Notify()
	if !p.saved || a.unsaved[p.demand.Pod.UID] != nil {
		a.saveLaterLocked(p)
	}
	if news {
		a.log.Info("pod waits for its devices", "pod", p.demand.Pod.String(), "reason", why.Reason, "why", why.Message)
		a.notifier.Waiting(p.demand.Pod, why)
	}
}

// settleLocked ends a pod's attempts: it has its devices, needs none, or has ended.
func (a *Allocator) settleLocked(p *pod) {
	delete(a.waiting, p.demand.Pod.UID)
	p.phase, p.wait, p.tries, p.retry = settled, device.Wait{}, 0, time.Time{}
	a.endWaitLocked(p)
}

// endWaitLocked wakes the callers that wait for the end of an attempt.
func (a *Allocator) endWaitLocked(p *pod) {
	if p.done != nil {
		close(p.done)
		p.done = nil
	}
}

// wakeLocked queues the pods that wait for the resource. Pods in the pause after a plugin failure stay parked, unless the
// plugin is back.
func (a *Allocator) wakeLocked(r device.ResourceName, back bool) {
	for _, p := range a.waiting {
		if !p.retry.IsZero() && !back {
			continue
		}
		if slices.ContainsFunc(p.demand.Demands, func(d device.Demand) bool { return d.Wants[r] > 0 }) {
			a.queueLocked(p)
		}
	}
}
