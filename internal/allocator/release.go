package allocator

import (
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/holdings"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// The devices of an ended pod stay the pod's, on disk too, until all that is required has been proved: the runtime has no container
// of it, its cgroup has no process and, where release.check and release.command say so, no other process uses the devices and the
// vendor's command has succeeded. So a restart at any moment only repeats what had not been proved.

// releaseGrace is for how long devices that are being released count in the Node's capacity. A proof takes less, as a rule.
const releaseGrace = 2 * time.Second

// A Releaser proves that the devices of ended pods are free beyond what the runtime and the pods' cgroups show.
type Releaser interface {
	// Release begins or continues the proof for an ended pod. It returns nil once the devices are proved free, and until then
	// what is known. It returns at once.
	Release(device.Departure) *device.Release
	// Forget ends a proof: the devices have been released, or the pod may use them again.
	Forget(device.PodUID)
	// Running reports whether a command for the pod's devices runs, also after Forget, which stops it.
	Running(device.PodUID) bool
	// Changed has a value when Release may return something else.
	Changed() <-chan struct{}
}

// reviewReleases asks the Releaser about pods without a process. Those whose devices are not proved free are removed from the proof.
func (a *Allocator) reviewReleases(shown proof) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(shown.vacant, func(uid device.PodUID, _ bool) bool {
		p := a.ended[uid]
		return p != nil && p.uses != shown.uses[uid] // it has had a container meanwhile
	})
	maps.Copy(shown.able, shown.vacant)
	for uid := range shown.able {
		p := a.ended[uid]
		if p == nil {
			continue // known by its containers' annotations only
		}
		departs, joined := a.departureLocked(p, shown.able)
		if !p.proves(departs) && a.releaser != nil {
			a.releaser.Forget(uid)
		}
		p.proving = departs.Assignments
		if joined {
			delete(shown.vacant, uid)
			shown.pending[uid] = true
			continue
		}
		if p.vacated = true; p.accepted || a.releaser == nil || len(departs.Assignments) == 0 {
			continue
		}
		if why := a.releaser.Release(departs); why != nil {
			delete(shown.vacant, uid)
			shown.pending[uid] = true
			a.releasingLocked(p, *why)
		}
	}
}

// releasingLocked records why a pod's devices are not free yet.
func (a *Allocator) releasingLocked(p *pod, why device.Release) {
	now, was := time.Now(), p.release
	if why.Since = now; was != nil {
		why.Since = was.Since
	}
	switch why.Busy = why.Failed != "" || !why.Underway && now.Sub(why.Since) >= releaseGrace; {
	case !why.Busy && !why.Underway:
		a.scheduleWriteLocked(why.Since.Add(releaseGrace).Sub(now))
	case was != nil && was.Busy:
		why.Busy = true // until it is free
	}
	if why.Failed != p.releaseFailed {
		p.releaseFailed = why.Failed
		a.unsaved[p.demand.Pod.UID] = p
		a.scheduleWriteLocked(0)
	}
	if was != nil && was.Busy == why.Busy && was.Why == why.Why && was.Failed == why.Failed && slices.Equal(was.Holders, why.Holders) {
		return
	}
	if why.Busy && (was == nil || !was.Busy) {
		a.log.Warn("devices of an ended pod are still in use", "pod", p.demand.Pod.String(), "uid", p.demand.Pod.UID,
			"devices", device.Summary(p.assigned), "why", why.String())
		a.journal(device.VerbBusy, "pod "+p.demand.Pod.String()+" has ended; "+why.String(), namesOf(p.assigned)...)
	}
	a.setReleaseLocked(p, &why)
}

// addRunningLocked records a container that exists, or is about to.
func (a *Allocator) addRunningLocked(r device.Running, stamped bool) *containers.Container {
	a.usedLocked(a.pods[r.Container.Pod])
	return a.running.Add(r, stamped)
}

// usedLocked records that a pod, if it is known, may use its devices: a later release is proved afresh.
func (a *Allocator) usedLocked(p *pod) {
	if p == nil {
		return
	}
	p.vacated, p.accepted = false, false
	if p.releaseFailed != "" {
		p.releaseFailed = ""
		a.saveLaterLocked(p)
	}
	a.unprovenLocked(p)
	a.disturbLocked(p)
}

// unprovenLocked has the proof about a pod's devices begun afresh.
func (a *Allocator) unprovenLocked(p *pod) {
	p.uses++
	p.proving = nil
	if a.releaser != nil {
		a.releaser.Forget(p.demand.Pod.UID)
	}
	if p.release != nil {
		a.setReleaseLocked(p, nil)
	}
}

// namesOf returns the devices of a pod as RESOURCE/ID, ascending.
func namesOf(all []device.Assignment) (names []string) {
	for r, ids := range holdings.HoldOf(all) {
		for _, id := range ids {
			names = append(names, device.Cordon{Resource: r, ID: id}.Name())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *Allocator) setReleaseLocked(p *pod, why *device.Release) {
	busy := why != nil && why.Busy || p.release != nil && p.release.Busy
	p.release, a.snapshot = why, nil
	for r, ids := range holdings.HoldOf(p.assigned) {
		a.table.Resources.Of(r).Releasing(ids, p.demand.Pod.UID, why)
		if busy {
			a.wakeLocked(r, false) // a pod that waits says what keeps the devices
		}
	}
	a.changedLocked()
	loops.Signal(a.kick)
}

// acceptLocked has the devices of an ended pod released without further proof, if one of these is busy. It returns that one.
func (a *Allocator) acceptLocked(d device.Cordon) (released device.Cordon, was bool) {
	for uid := range a.holdersLocked(d.Resource, d.ID) {
		p := a.ended[uid]
		if p == nil || p.release == nil || !p.release.Busy || a.releaser != nil && a.releaser.Running(uid) {
			continue
		}
		if !p.accepted {
			a.log.Warn("devices are released although they may be in use: an operator said so", "pod", p.demand.Pod.String(), "devices", device.Summary(p.assigned),
				"why", p.release.String())
		}
		p.accepted, p.releaseAt = true, time.Time{}
		a.scheduleWriteLocked(0)
		released, was = device.Cordon{Resource: d.Resource, ID: d.ID, Reason: "busy: " + p.release.String(), Since: p.release.Since}, true
	}
	return released, was
}
