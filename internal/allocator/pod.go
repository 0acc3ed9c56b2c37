package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A phase is where a pod stands on its way to its devices.
type phase int

const (
	settled    phase = iota // it asks for nothing, or has all that it asks for
	queued                  // it has to be planned
	allocating              // its plugins are being asked, and it holds devices
	parked                  // it waits for something to change
)

// A pod is all that is known of one pod. Allocator.mu guards it.
type pod struct {
	demand        device.PodDemand
	newDemand     *device.PodDemand // of asking: what it asks for by now, if that is something else
	bound         time.Time         // when we heard of it
	active        bool              // the API has it, and it has not ended; or it is local, and has a sandbox
	runtimeKnows  bool              // the runtime has told of it: it is local, and nothing from the API concerns it
	lastSeen      time.Time         // of told: when it was bound, or its last container ended, whatever was last
	saved         bool              // the state file knows it, if perhaps with another demand
	releasing     bool              // its removal from the state file is under way
	droppedAt     time.Time         // when it was last dropped
	releaseAt     time.Time         // its removal is not to begin before then
	processChecks int               // needMode often the host has shown processes of it since it was dropped
	assigned      []device.Assignment
	doubt         hold // what a commit that has failed, or a record that contradicts another one, names; nil: there is no doubt

	phase phase
	done  chan struct{} // unavailable when phase leaves queuing or asking; nil in the other phases
	wait  device.Wait   // of parked
	since time.Time     // when it began to wait for that reason or, if settled, when it had its devices; zero: before we were there
	tries int           // failures of plugins in a row
	retry time.Time     // of parked: when to try again without any other cause; zero: never

	lapsed           map[string]lapse // containers whose grants do not hold
	fresh            map[string]bool  // containers whose grants have not been used yet
	ran              bool             // a container of it may have run since the boot
	failures         int              // to apply its grants, in a row
	refusal          device.Wait      // why a container of it was refused, although it has its devices; zero: it was not
	refusedContainer string           // that container

	preparations map[string]*preparation // by container name
	allocation   *device.PodAllocation   // what the board has of it
}

// complete reports whether each container has what it asks for.
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

// Bind tells that a pod is bound to this node and has not ended. Telling it again changes nothing.
func (a *Allocator) Bind(d device.PodDemand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	bind := func() {
		a.bindLocked(d)
		a.auditLocked(a.pods[d.Pod.UID])
	}
	if d.Local {
		a.reportLocked(bind) // the runtime's word
	} else {
		bind()
	}
}

// newSandbox is how long a local pod whose sandbox has ended may take to get another one and keep its devices. The kubelet
// makes one within a second or so; nobody tells beforehand whether it will.
const newSandbox = 10 * time.Second

// Drop tells that a pod has ended or is gone in the API. Its devices stay its own for as long as the runtime has a
// container of it.
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

// DropLocal tells that a local pod has no sandbox any longer.
func (a *Allocator) DropLocal(uid device.PodUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reportLocked(func() {
		if p := a.pods[uid]; p != nil && p.runtimeKnows {
			a.dropLocked(p)
		}
	})
}

// Replace tells of all pods that the API server has bound to this node: others are dropped, but for local ones.
func (a *Allocator) Replace(all []device.PodDemand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.mirrors {
		a.unmirrorLocked(uid)
	}
	a.replaceLocked(all, false)
	for _, p := range a.locals {
		a.publishLocked(p) // its mirror may be gone
	}
	a.podsListed = true
	signal(a.capacityChanged)
}

// replaceLocked binds these pods and drops all others of their sort.
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
	if d.Created.IsZero() { // nobody knows: as old as what we know of it
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
		return // somebody has made a pod in the API that pretends to be this one's mirror
	case p.demand.Local != d.Local: // kubernetes.mode is another one than before the last restart
		a.localLocked(p, d.Local)
	}
	p.runtimeKnows, p.lastSeen = d.Local, time.Now()
	if !slices.Equal(p.demand.Containers, d.Containers) { // the state file was written by somebody who did not know them
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
	// What a pod asks for never changes while it lives, but what we have to serve of it may, until it has been served: the
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

// admittedLocked notes that the kubelet has admitted a pod.
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

// addLocked takes a pod into memory.
func (a *Allocator) addLocked(p *pod) {
	uid := p.demand.Pod.UID
	if a.pods[uid] = p; p.demand.Local {
		a.locals[uid] = p
	}
	a.publishLocked(p)
}

// localLocked has a pod be one of those of which the runtime tells, or of the others.
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

// changeLocked has a pod that holds nothing ask for something else.
func (a *Allocator) changeLocked(p *pod, d device.PodDemand) {
	a.pools.request(p.demand, -1)
	p.demand = d
	a.publishLocked(p)
	a.saveLaterLocked(p)
	a.admitLocked(p)
}

// admitLocked takes up a pod that is new or asks for something else.
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
		return // who settles it, or writes the state file, sees that it is not wanted
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

// removeLocked lets a pod out of memory, where alone it was.
func (a *Allocator) removeLocked(p *pod) {
	uid := p.demand.Pod.UID
	delete(a.pods, uid)
	delete(a.locals, uid)
	delete(a.unsaved, uid)
	delete(a.releasing, uid)
	a.publishLocked(p)
}

// queueLocked has a pod planned at the next occasion, or when the doubt about its record has ended.
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

// parkLocked has a pod wait: until something it waits for changes and, if pause is not zero, no longer than that.
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
	a.feed.notify()
	if !p.saved || a.unsaved[p.demand.Pod.UID] != nil {
		a.saveLaterLocked(p)
	}
	if news {
		a.log.Info("pod waits for its devices", "pod", p.demand.Pod.String(), "reason", why.Reason, "why", why.Message)
		a.notifier.Waiting(p.demand.Pod, why)
	}
}

// settleLocked ends a pod's way: it has its devices, needs none, or is on its way out.
func (a *Allocator) settleLocked(p *pod) {
	delete(a.waiting, p.demand.Pod.UID)
	p.phase, p.wait, p.tries, p.retry = settled, device.Wait{}, 0, time.Time{}
	a.endWaitLocked(p)
}

// endWaitLocked tells those who wait for the end of an attempt.
func (a *Allocator) endWaitLocked(p *pod) {
	if p.done != nil {
		close(p.done)
		p.done = nil
	}
}

// wakeLocked has the pods that wait for something about the resource planned again. Those that wait because a plugin
// failed them take their time, unless it is back from having been away.
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
