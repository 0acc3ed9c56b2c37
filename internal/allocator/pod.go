package allocator

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A pod is the allocator's state of one pod. Allocator.mu guards it. Fields that belong together are in embedded structs.
type pod struct {
	demands
	bound time.Time // when the allocator first heard of the pod
	sighting
	saved    bool // in the state file, possibly with another demand
	recalled bool // from the state file, and not reported since: it may have ended

	phase phase
	done  chan struct{} // closed at the end of an attempt; nil: there is none
	waits
	departure departure

	assigned []device.Assignment
	doubt    ledger.Devices // devices that the state file may name in a record of the pod that is being replaced; nil: none
	grants
	preparations map[string]*preparation // by container name
	shown
}

// demands is what a pod requests.
type demands struct {
	demand    device.PodDemand  // by which it is assigned devices
	newDemand *device.PodDemand // while allocating: its current demand, if it has changed
	newest    []device.Demand   // as last reported, and counted by the scheduler; nil: those of demand
}

// shown is what readers see of a pod's devices.
type shown struct {
	allocation *device.PodAllocation         // as published in the feed
	uses       []device.ResourceName         // resources of its devices, ascending
	faults     map[device.ResourceName]fault // what is wrong with its devices (health.go)
}

// A sighting is what the runtime says of a static pod that it reports: the API does not affect the pod.
type sighting struct {
	runtimeKnows bool
	lastSeen     time.Time // when it was bound, or its last container ended, whichever was later
}

// waits is what a pod waits for, and for how long it has.
type waits struct {
	wait     device.Wait // in phase waiting
	told     device.Wait // that of the last event; none: no event has been sent
	since    time.Time   // start of the wait for sinceFor or, if that is empty, of the assignment
	sinceFor device.Reason
	tries    int          // consecutive plugin failures
	retry    time.Time    // in phase waiting: when to retry without another cause; zero: never
	stall    device.Stall // while it does not wait for other pods; kept up only if it may lead to an eviction (giveup.go)
	gaveUp   time.Time    // when its eviction was last requested
}

// over forgets what a pod has waited for.
func (w *waits) over() {
	*w = waits{since: w.since, sinceFor: w.sinceFor, stall: w.stall, gaveUp: w.gaveUp}
}

// grants is what is known of the plugins' answers for a pod (regrant.go, refused.go, kept.go).
type grants struct {
	lapsed    map[string]lapse // containers whose grants no longer hold
	fresh     map[string]bool  // containers whose grants are unused so far
	distrusts map[string]bool  // containers whose last grants could not be used: their plugins are asked even if another container has a grant
	ran       bool             // a container may have run since the boot, or one of a pod that has left the proof for its devices to this one
	failures  int              // consecutive failures to apply its grants
	refused   *refused         // the container that was refused although it has devices; nil: none was, or it has started since
	kept      []kept           // of attempts that have failed
}

// record returns the state file's record of a pod.
func (p *pod) record() device.PodRecord {
	return device.PodRecord{Demand: p.demand, Assignments: p.assigned, Since: p.since, Reason: p.sinceFor, Stall: p.stall, ReleaseFailed: p.departure.failed}
}

// requested returns what a pod requests by its newest demand.
func (d *demands) requested() device.PodDemand {
	all := d.demand
	if d.newest != nil {
		all.Demands = d.newest
	}
	return all
}

// complete reports whether each container has its devices.
func (p *pod) complete() bool { return len(p.assigned) == len(p.demand.Demands) }

// of returns the assignment of the container of that name.
func (p *pod) of(container string) (device.Assignment, bool) {
	return device.AssignmentOf(p.assigned, container)
}

// has reports whether a container of the pod has been assigned a device.
func (p *pod) has(r device.ResourceName, id device.ID) bool {
	return slices.Contains(slices.Collect(p.devices(r)), id)
}

// devices yields the pod's devices of a resource. One that several containers have comes several times.
func (p *pod) devices(r device.ResourceName) iter.Seq[device.ID] {
	return func(yield func(device.ID) bool) {
		for _, s := range device.Shares(p.assigned) {
			if s.Resource != r {
				continue
			}
			for _, id := range s.IDs {
				if !yield(id) {
					return
				}
			}
		}
	}
}

// Bind reports that a pod is bound to this node and has not ended. Repeated calls with the same demand change nothing.
func (a *Allocator) Bind(d device.PodDemand) {
	if d.Local {
		a.report(func() { a.boundLocked(d) }) // reported by the runtime
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.boundLocked(d)
}

// newSandbox is how long a static pod without a sandbox keeps its devices. The kubelet creates another sandbox within a
// second or so, and does not announce it.
const newSandbox = 10 * time.Second

// Drop reports that a pod has ended or left the API. The pod keeps its devices until they are proved free (departure.go).
func (a *Allocator) Drop(uid device.PodUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if d := a.mirrors[uid]; a.unmirrorLocked(uid) {
		a.publishLocalLocked(d.Pod)
	}
	a.uncountLeftLocked(uid)
	if p := a.pods[uid]; p != nil && !p.runtimeKnows {
		a.dropLocked(p)
	}
}

// DropLocal reports that a static pod has no sandbox.
func (a *Allocator) DropLocal(uid device.PodUID) {
	a.report(func() {
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
	if !a.podsListed {
		a.podsListed = true
		a.wakeUnknownLocked() // what the checkpoint names for other pods counts no longer
	}
	a.changedLocked()
}

// replaceLocked binds these pods and drops all others with the same Local.
func (a *Allocator) replaceLocked(all []device.PodDemand, local bool) {
	named := make(map[device.PodUID]bool, len(all))
	for _, d := range all {
		named[d.Pod.UID] = true
		a.boundLocked(d)
	}
	for uid, p := range a.pods {
		if !named[uid] && p.demand.Local == local {
			a.dropLocked(p)
		}
	}
	for uid := range a.left {
		if !named[uid] && !local {
			a.uncountLeftLocked(uid)
		}
	}
}

// boundLocked binds a pod, and compares its containers with its demand.
func (a *Allocator) boundLocked(d device.PodDemand) {
	a.bindLocked(d)
	a.reviewSaidLocked(a.pods[d.Pod.UID])
	a.auditLocked(a.pods[d.Pod.UID])
}

func (a *Allocator) bindLocked(d device.PodDemand) {
	if d.Mirror {
		a.mirrorLocked(d)
		return
	}
	p := a.pods[d.Pod.UID]
	if p != nil {
		d.Demands = withClaims(d.Demands, p.demand.Demands)
		if d.Admitted {
			a.kubeletAdmittedLocked(p)
		}
	}
	d.Admitted = d.Admitted || p != nil && p.demand.Admitted
	if a.leaveLocked(d) {
		return
	}
	a.uncountLeftLocked(d.Pod.UID)
	if d.Created.IsZero() { // unknown: as old as the allocator's record of the pod
		d.Created = time.Now()
		if p != nil {
			d.Created = p.demand.Created
		}
	}
	if p == nil {
		now := time.Now()
		p = &pod{demands: demands{demand: d}, bound: now, sighting: sighting{d.Local, now}}
		a.addLocked(p)
		a.beginLocked(p)
		return
	}
	if p.departure.failed != "" && !d.Leaving {
		a.usedLocked(p) // it was only away
	}
	if p.recalled {
		p.recalled = false
		a.wakeSharersLocked(p)
	}
	switch {
	case p.runtimeKnows && !d.Local:
		return // a pod in the API pretends to be this pod's mirror
	case p.demand.Local != d.Local: // kubernetes.mode has changed since the last start
		a.localLocked(p, d.Local)
	}
	p.runtimeKnows, p.lastSeen = d.Local, time.Now()
	a.completeLocked(p, d)
	switch p.phase { // it is back
	case abandoned:
		a.enterLocked(p, allocating)
	case forgetting:
		a.enterLocked(p, returned)
	case ended:
		a.resumeLocked(p)
	}
	a.demandLocked(p, d)
}

// completeLocked takes over what the state file's writer may not have known of a pod.
func (a *Allocator) completeLocked(p *pod, d device.PodDemand) {
	p.demand.Leaving = d.Leaving
	if p.demand.Movable != d.Movable {
		p.demand.Movable, a.snapshot = d.Movable, nil
		a.saveLaterLocked(p)
		if p.phase == waiting {
			a.stallLocked(p, p.wait)
		}
	}
	if !slices.Equal(p.demand.Containers, d.Containers) {
		p.demand.Containers, p.demand.Sidecars = d.Containers, d.Sidecars
		a.saveLaterLocked(p)
		a.publishLocked(p)
	}
}

// demandLocked takes over a pod's newest demand. A pod's requests never change, but the part that devmgrd serves may, until it has been served: the scheduler
// may give a resource to a DRA driver, and after a restart other resources may be ignored.
func (a *Allocator) demandLocked(p *pod, d device.PodDemand) {
	same, newest := p.demand.Equal(d), d.Demands
	if same {
		newest = nil
	}
	if !same || p.newest != nil {
		a.editLocked(p, func(*device.PodDemand) { p.newest = newest })
	}
	switch {
	case same:
		p.newDemand = nil
	case len(p.assigned) > 0 || p.phase == returned:
	case p.phase == allocating:
		p.newDemand = &d
	default:
		a.changeLocked(p, d)
	}
}

// withClaims returns the newest demands of a pod's containers. Where their claims have not all been read, or name devices that are not listed, it adds the
// devices of claims that the former demands have. Claims of a bound pod do not change, and the scheduler does not count them as requests: without
// their devices, the Node's number would promise these twice while a devmgrd that has just started reads the claims again.
func withClaims(newest, former []device.Demand) []device.Demand {
	newest = slices.Clone(newest)
	for i, d := range newest {
		if !placement.Unread(d) {
			continue
		}
		was, _ := device.PodDemand{Demands: former}.Of(d.Container.Name)
		if len(was.Claimed) == 0 {
			continue
		}
		d.Wants, d.Fixed, d.Claimed = maps.Clone(d.Wants), maps.Clone(d.Fixed), maps.Clone(d.Claimed)
		for r, claimed := range was.Claimed {
			ids := slices.Concat(d.Fixed[r], was.Fixed[r])
			slices.SortFunc(ids, device.CompareIDs)
			ids = slices.Compact(ids)
			by := maps.Clone(claimed)
			maps.Copy(by, d.Claimed[r])
			lists.Put(&d.Wants, r, len(ids))
			lists.Put(&d.Fixed, r, ids)
			lists.Put(&d.Claimed, r, by)
		}
		newest[i] = d
	}
	return newest
}

// kubeletAdmittedLocked records that the kubelet has admitted a pod.
func (a *Allocator) kubeletAdmittedLocked(p *pod) {
	if !p.demand.Admitted {
		a.editLocked(p, func(d *device.PodDemand) { d.Admitted = true })
	}
}

// editLocked changes a pod's demand, and the sums of the requests with it.
func (a *Allocator) editLocked(p *pod, edit func(*device.PodDemand)) {
	if p.active() {
		a.requestLocked(p.requested(), -1)
		defer func() { a.requestLocked(p.requested(), 1) }()
		a.changedLocked()
	}
	edit(&p.demand)
	a.snapshot = nil
}

// addLocked adds a pod to memory.
func (a *Allocator) addLocked(p *pod) {
	uid := p.demand.Pod.UID
	a.pods[uid] = p
	if p.demand.Local {
		a.locals[uid] = p
	}
}

// localLocked marks a pod as known from the runtime, or from the API.
func (a *Allocator) localLocked(p *pod, local bool) {
	delete(a.locals, p.demand.Pod.UID)
	a.editLocked(p, func(d *device.PodDemand) { d.Local = local })
	a.addLocked(p)
	a.publishLocked(p)
	a.saveLaterLocked(p)
}

// changeLocked changes the demand of a pod that holds nothing.
func (a *Allocator) changeLocked(p *pod, d device.PodDemand) {
	a.editLocked(p, func(to *device.PodDemand) { *to, p.newest = d, nil })
	a.reviewSaidLocked(p)
	a.publishLocked(p)
	a.saveLaterLocked(p)
	a.beginLocked(p)
}

// beginLocked begins with a pod that is new or has a new demand.
func (a *Allocator) beginLocked(p *pod) {
	if len(p.demand.Demands) > 0 {
		a.queueLocked(p)
		return
	}
	a.settleLocked(p)
	a.saveLaterLocked(p)
}

// waitDoubt is why a pod waits that is back in the API while its record is in doubt.
var waitDoubt = device.Wait{Reason: device.StoreUnavailable, Message: "the state file may name devices of the pod that it does not have; devmgrd is replacing the record"}

// resumeLocked continues with a pod that is back in the API, with the devices that it has.
func (a *Allocator) resumeLocked(p *pod) {
	a.saveLaterLocked(p) // a commit that forgets the pod may have failed, and be in the state file all the same
	switch {
	case p.doubt != nil:
		a.parkLocked(p, waitDoubt, 0)
	case p.served():
		a.settleLocked(p)
	default:
		a.queueLocked(p)
	}
}

// dropLocked takes a pod off the API. An attempt or a commit that is in progress ends first.
func (a *Allocator) dropLocked(p *pod) {
	switch p.phase {
	case allocating:
		a.enterLocked(p, abandoned)
	case returned:
		a.enterLocked(p, forgetting)
	case abandoned, forgetting:
	default:
		a.endLocked(p)
	}
}

// endLocked ends a pod that is not in the API. It keeps its devices until they are free (departure.go).
func (a *Allocator) endLocked(p *pod) {
	if len(p.assigned) == 0 && !p.saved {
		a.enterLocked(p, absent)
		return
	}
	if p.phase != ended {
		a.enterLocked(p, ended)
	}
	p.over()
	p.kept = nil
	p.departure.due, p.departure.alive = time.Time{}, 0
	if p.demand.Local && a.runtimeSynced {
		p.departure.due = time.Now().Add(newSandbox)
	}
	a.scheduleWriteLocked(0)
}

// queueLocked queues a pod for the next plan, unless its record is in doubt: then decideLocked queues it.
func (a *Allocator) queueLocked(p *pod) {
	if p.phase != queued && p.doubt == nil {
		a.enterLocked(p, queued)
	}
}

// parkLocked makes a pod wait for a change, and no longer than pause if pause is not zero.
func (a *Allocator) parkLocked(p *pod, why device.Wait, pause time.Duration) {
	news := !p.wait.Same(why) && (p.refused == nil || !p.refused.why.Same(why))
	changed := p.waitsForLocked(why.Reason)
	if why.Reason != device.Allocating && (news || p.told == device.Wait{}) {
		p.told = why
	}
	p.wait, p.retry = why, time.Time{}
	if pause > 0 {
		p.retry = time.Now().Add(pause)
		loops.Signal(a.kick)
	}
	a.enterLocked(p, waiting)
	a.changedLocked()
	a.stallLocked(p, why)
	if changed || !p.saved || a.unsaved[p.demand.Pod.UID] != nil {
		a.saveLaterLocked(p)
	}
	if news && why.Reason != device.Allocating { // its claims are being read
		a.cfg.Log.Info("pod waits for its devices", "pod", p.demand.Pod.String(), "reason", why.Reason, "why", why.Message)
		a.cfg.Notifier.Waiting(p.demand.Pod, why)
	}
}

// waitsForLocked dates the wait for a reason, and reports whether that is a new one. A passing reason does not interrupt the wait for another
// one: after a restart of devmgrd each pod has such reasons at first.
func (p *pod) waitsForLocked(why device.Reason) (changed bool) {
	if p.sinceFor == why || p.sinceFor != "" && passing[why] {
		return false
	}
	p.since, p.sinceFor = time.Now(), why
	return true
}

// settleLocked ends a pod's attempts: it has its devices, or needs none.
func (a *Allocator) settleLocked(p *pod) {
	if p.phase != settled {
		a.enterLocked(p, settled)
	}
	if p.sinceFor != "" {
		p.since, p.sinceFor = time.Now(), ""
	}
	p.over()
	p.stall = device.Stall{}
}

// wakeLocked queues the pods that wait for the resource. Pods in the pause after a plugin failure go on waiting, unless the
// plugin is back, or as many devices are free that it has not refused.
func (a *Allocator) wakeLocked(r device.ResourceName, back bool) {
	others := -1 // not counted
	for _, p := range a.waiting {
		most := 0
		for _, d := range p.demand.Demands {
			most = max(most, d.Wants[r])
		}
		if most == 0 {
			continue
		}
		if !p.retry.IsZero() && !back {
			if others < 0 {
				others = a.ledger.Of(r).UnrefusedCount(time.Now())
			}
			if p.wait.Reason != device.PluginError && p.wait.Reason != device.PluginSlow || p.complete() || others < most {
				continue
			}
		}
		a.queueLocked(p)
	}
}

// wakeUnpausedLocked queues the pods that wait for the resource, except those in a pause.
func (a *Allocator) wakeUnpausedLocked(r device.ResourceName) {
	for _, p := range a.waiting {
		if p.retry.IsZero() && slices.ContainsFunc(p.demand.Demands, func(d device.Demand) bool { return d.Wants[r] > 0 }) {
			a.queueLocked(p)
		}
	}
}
