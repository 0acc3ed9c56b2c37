package allocator

import (
	"context"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	// saveDelay is how long devmgrd gathers pods that need no commit of their own before it writes them together.
	// These records keep the pods known over a restart while the API server is away.
	saveDelay = time.Second
	// writeRetry is the pause before a failed write of the state file is retried.
	writeRetry = time.Second
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

// writeLoop writes what no attempt writes: releases and falls at once, and new pods without an assignment in batches.
func (a *Allocator) writeLoop(ctx context.Context) {
	var released <-chan struct{}
	if a.cfg.Releaser != nil {
		released = a.cfg.Releaser.Changed()
	}
	for ended := false; !ended; {
		a.mu.Lock()
		at := a.writeAt
		a.mu.Unlock()
		select {
		case <-a.write:
			continue
		case <-released:
		case <-loops.At(at):
		case <-ctx.Done():
			ended = true // a clean stop leaves nothing unwritten
		}
		a.writePending()
		a.writeFalls()
	}
}

// writePending writes all due records in one commit. A pod's devices become free only after the commit: if they were assigned
// earlier, a crash could leave them with two pods.
func (a *Allocator) writePending() {
	found := a.depart()
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	save, forget, records := a.due(found)
	if len(save)+len(forget) == 0 {
		return
	}
	uids := lists.Map(forget, func(p *pod) device.PodUID { return p.demand.Pod.UID })
	a.written(save, forget, a.cfg.Store.SavePods(records, uids))
}

// due returns the pods to write with their records, and the pods to forget, and removes them from the lists.
func (a *Allocator) due(found evidence) (save, forget []*pod, records []device.PodRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.releaseLeftoversLocked(found)
	for _, p := range a.ended {
		if a.departedLocked(p, found) {
			a.leaveProofLocked(p)
			a.enterLocked(p, forgetting)
			forget = append(forget, p)
		}
	}
	for uid, p := range a.unsaved {
		if p.phase == allocating || p.phase == abandoned {
			continue // the end of the attempt writes the record
		}
		if p.doubt != nil && a.syncedAt.IsZero() {
			continue // the record is evidence until the runtime has listed its containers; syncLocked schedules the write
		}
		delete(a.unsaved, uid)
		if p.active() || p.phase == ended && (p.departure.failed != "" || p.departure.recorded) {
			p.saved = true // a pod that ends during the write has to be forgotten again
			save = append(save, p)
			p.departure.recorded = p.departure.failed != ""
			records = append(records, p.record())
		}
	}
	return save, forget, records
}

// written carries on with pods whose records have been written or not.
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
			a.cfg.Log.Error("cannot write state file; retrying", "err", err)
		}
		for _, p := range save {
			a.saveLaterLocked(p)
		}
		a.scheduleWriteLocked(writeRetry)
	} else {
		if a.storeErr {
			a.cfg.Log.Info("state file writable again")
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
