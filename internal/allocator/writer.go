package allocator

import (
	"context"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/holdings"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	// saveDelay is how long devmgrd gathers pods that need no commit of their own before it writes them together.
	// These records keep the pods known over a restart while the API server is away.
	saveDelay = time.Second
	// idleGrace is how long after a pod's end a container that has not been started keeps its devices. A kubelet
	// starts a container right after its creation, and starts none of a pod that is gone.
	idleGrace = 30 * time.Second
	// writeRetry is the pause before a failed write of the state file is retried.
	writeRetry = time.Second
	// firstProcessCheck and lastProcessCheck are the shortest and the longest pause between checks for processes of an ended pod.
	firstProcessCheck, lastProcessCheck = 100 * time.Millisecond, 5 * time.Second
)

// saveLaterLocked schedules a write of a pod's record within saveDelay.
func (a *Allocator) saveLaterLocked(p *pod) {
	a.unsaved[p.demand.Pod.UID] = p
	a.scheduleWriteLocked(saveDelay)
}

// scheduleWriteLocked schedules a write of the state file after at most that time.
func (a *Allocator) scheduleWriteLocked(in time.Duration) {
	if at := time.Now().Add(in); a.writeAt.IsZero() || at.Before(a.writeAt) {
		a.writeAt = at
		loops.Signal(a.write)
	}
}

// writeLoop writes what no attempt writes: releases at once, and new pods without an assignment in batches.
func (a *Allocator) writeLoop(ctx context.Context) {
	var released <-chan struct{}
	if a.releaser != nil {
		released = a.releaser.Changed()
	}
	for {
		a.mu.Lock()
		at := a.writeAt
		a.mu.Unlock()
		due := loops.At(at)
		select {
		case <-ctx.Done():
			a.writePending() // a clean stop leaves nothing unwritten
			a.writeFalls()
			return
		case <-a.write:
		case <-released:
			a.writePending()
			a.writeFalls()
		case <-due:
			a.writePending()
			a.writeFalls()
		}
	}
}

// writePending writes all due records in one commit. A pod's devices become free only after the commit: if they were assigned
// earlier, a crash could leave them with two pods.
func (a *Allocator) writePending() {
	shown := a.prove()
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	save, forget, records := a.due(shown)
	if len(save)+len(forget) == 0 {
		return
	}
	uids := lists.Map(forget, func(p *pod) device.PodUID { return p.demand.Pod.UID })
	a.written(save, forget, a.store.SavePods(records, uids))
}

// due returns the pods to write with their records, and the pods to forget, and removes them from the lists.
func (a *Allocator) due(shown proof) (save, forget []*pod, records []device.PodRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.releaseLeftoversLocked(shown)
	for uid, p := range a.ended {
		if len(p.assigned) > 0 {
			switch wait, vacant := a.vacantLocked(p); {
			case !vacant:
				continue
			case wait > 0:
				a.scheduleWriteLocked(wait)
				continue
			case shown.pending[uid] && p.uses == shown.uses[uid]:
				continue
			case a.releaser != nil && a.releaser.Running(uid):
				continue // its end reports a change; a pod that shares the devices waits for it
			case p.uses != shown.uses[uid] || !shown.vacant[uid] || !a.departsLocked(p, shown.able) || !a.running[uid].Bar(shown.idle):
				a.scheduleWriteLocked(0) // a container was started, listed or stopped since the host was asked, or another pod has left a device
				continue
			}
		}
		a.enterLocked(p, forgetting)
		forget = append(forget, p)
	}
	for uid, p := range a.unsaved {
		if p.phase == allocating || p.phase == abandoned {
			continue // the end of the attempt writes the record
		}
		if p.doubt != nil && !a.runtimeListed {
			continue // the record is evidence until the runtime has listed its containers; syncLocked schedules the write
		}
		delete(a.unsaved, uid)
		if p.active() || p.phase == ended && (p.releaseFailed != "" || p.failureSaved) {
			p.saved = true // a pod that ends during the write has to be forgotten again
			save = append(save, p)
			p.failureSaved = p.releaseFailed != ""
			records = append(records, p.record())
		}
	}
	return save, forget, records
}

// vacantLocked reports whether the runtime has no container of a pod, or only idle ones, and how long the release of the pod's
// devices still has to wait.
func (a *Allocator) vacantLocked(p *pod) (wait time.Duration, vacant bool) {
	containers := a.running[p.demand.Pod.UID]
	if !a.runtimeSynced || containers.MayRun() {
		return 0, false
	}
	if at := p.droppedAt.Add(idleGrace); len(containers) > 0 && at.After(p.releaseAt) {
		p.releaseAt = at
	}
	return time.Until(p.releaseAt), true
}

func (a *Allocator) written(save, forget []*pod, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range forget {
		switch {
		case err == nil:
		case p.phase == returned:
			a.resumeLocked(p)
		default:
			a.enterLocked(p, ended)
		}
	}
	if err != nil {
		if !a.storeErr {
			a.log.Error("cannot write state file; retrying", "err", err)
		}
		for _, p := range save {
			a.saveLaterLocked(p)
		}
		a.scheduleWriteLocked(writeRetry)
	} else {
		if a.storeErr {
			a.log.Info("state file writable again")
			for _, p := range a.waiting {
				if p.wait.Reason == device.StoreUnavailable {
					a.queueLocked(p)
				}
			}
		}
		for _, p := range save {
			a.decideLocked(p)
		}
		for _, p := range forget {
			a.decideLocked(p)
			a.releasedLocked(p)
		}
	}
	a.storeErr = err != nil
}

// releasedLocked frees the devices of a pod that the state file has forgotten.
func (a *Allocator) releasedLocked(p *pod) {
	uid := p.demand.Pod.UID
	held := holdings.HoldOf(p.assigned)
	a.table.Free(uid, held)
	for r := range held {
		a.wakeLocked(r, false)
	}
	if len(p.assigned) > 0 {
		a.log.Info("devices released", "pod", p.demand.Pod.String(), "devices", device.Summary(p.assigned))
		if p.release != nil && p.release.Busy {
			why := "they are proved free"
			if p.accepted {
				why = "an operator has said so"
			}
			a.journal(device.VerbFree, why, namesOf(p.assigned)...)
		}
	}
	if a.releaser != nil {
		a.releaser.Forget(uid)
	}
	p.assigned, p.preparations, p.saved = nil, nil, false
	p.release, p.proving, p.vacated, p.accepted, p.releaseFailed, p.failureSaved = nil, nil, false, false, "", false
	a.changedLocked()
	if p.phase == forgetting {
		a.enterLocked(p, absent)
		return
	}
	a.publishLocked(p)
	a.admitLocked(p) // it is back in the API, and starts again
}
