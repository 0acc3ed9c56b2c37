package allocator

import (
	"context"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	// saveDelay is how long pods that need no commit of their own are gathered before they are written together.
	// They are remembered so that a restart while the API server is away does not make strangers of them.
	saveDelay = time.Second
	// idleGrace is how long after a pod's end a container of it that has not been started keeps its devices. A kubelet
	// preparations a container right after it has made it, and none of a pod that is gone.
	idleGrace = 30 * time.Second
	// writeRetry is the pause before books that could not be written are tried again.
	writeRetry = time.Second
	// firstProcessCheck and lastProcessCheck are the shortest and the longest pause between looks for the processes of a pod that has ended.
	firstProcessCheck, lastProcessCheck = 100 * time.Millisecond, 5 * time.Second
	// slowEndChecks is how many looks find processes before that is worth a warning: 6 s after the first one.
	slowEndChecks = 7
)

// saveLaterLocked has a pod's demand written when there is time.
func (a *Allocator) saveLaterLocked(p *pod) {
	a.unsaved[p.demand.Pod.UID] = p
	a.scheduleWriteLocked(saveDelay)
}

// scheduleWriteLocked has the state file written after that time at the latest.
func (a *Allocator) scheduleWriteLocked(in time.Duration) {
	if at := time.Now().Add(in); a.writeAt.IsZero() || at.Before(a.writeAt) {
		a.writeAt = at
		signal(a.write)
	}
}

// writeLoop writes what no attempt writes: releases at once, new pods without an assignment when some have gathered.
func (a *Allocator) writeLoop(ctx context.Context) {
	for {
		a.mu.Lock()
		at := a.writeAt
		a.mu.Unlock()
		var due <-chan time.Time
		if !at.IsZero() {
			due = time.After(time.Until(at))
		}
		select {
		case <-ctx.Done():
			a.writePending() // a clean stop leaves nothing to chance
			return
		case <-a.write:
		case <-due:
			a.writePending()
		}
	}
}

// writePending makes one commit of all that is due. A pod's devices are free only when the disk says so too: were they
// given out before, a crash could leave them in two hands.
func (a *Allocator) writePending() {
	shown := a.prove()
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	save, forget, records := a.due(shown)
	if len(save)+len(forget) == 0 {
		return
	}
	uids := make([]device.PodUID, len(forget))
	for i, p := range forget {
		uids[i] = p.demand.Pod.UID
	}
	a.written(save, forget, a.store.SavePods(records, uids))
}

// due returns the pods to write, with what to write, and the pods to forget, and takes them off the lists.
func (a *Allocator) due(shown proof) (save, forget []*pod, records []device.PodRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeAt = time.Time{}
	a.releaseLeftoversLocked(shown)
	for uid, p := range a.unsaved {
		if p.phase == allocating {
			continue // what ends the attempt writes it
		}
		if p.doubt != nil && !a.runtimeListed {
			continue // the record is evidence until the runtime has told; RuntimeSynced has it written
		}
		delete(a.unsaved, uid)
		if p.active {
			p.saved = true // a pod that goes while we write has to be forgotten again
			save = append(save, p)
			records = append(records, device.PodRecord{Demand: p.demand, Assignments: p.assigned})
		}
	}
	for uid, p := range a.releasing {
		if len(p.assigned) > 0 {
			switch wait, ended := a.endedLocked(p); {
			case !ended:
				continue
			case wait > 0:
				a.scheduleWriteLocked(wait)
				continue
			case !shown.vacant[uid] || !a.running[uid].bar(shown.idle):
				a.scheduleWriteLocked(0) // a container was started, listed or stopped since the host was asked
				continue
			}
		}
		p.releasing = true
		forget = append(forget, p)
	}
	return save, forget, records
}

// endedLocked reports whether the runtime has no container of a pod, or only idle ones, and how long the release of the
// pod's devices has to wait all the same.
func (a *Allocator) endedLocked(p *pod) (wait time.Duration, ended bool) {
	containers := a.running[p.demand.Pod.UID]
	if !a.runtimeSynced || containers.mayRun() {
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
		p.releasing = false
		switch {
		case err == nil:
		case !p.active:
			a.releasing[p.demand.Pod.UID] = p // it may have come and gone again meanwhile
		case !p.served():
			a.queueLocked(p) // it is back
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

// releasedLocked lets go of a pod that the state file has let go of.
func (a *Allocator) releasedLocked(p *pod) {
	uid := p.demand.Pod.UID
	for _, as := range p.assigned {
		for _, s := range as.Shares {
			a.freeLocked(s.Resource, s.IDs, uid)
			a.wakeLocked(s.Resource, false)
		}
	}
	a.reclaimLocked()
	if len(p.assigned) > 0 {
		a.log.Info("devices released", "pod", p.demand.Pod.String(), "devices", summary(p.assigned))
	}
	p.assigned, p.preparations, p.saved = nil, nil, false
	signal(a.capacityChanged)
	if !p.active {
		a.removeLocked(p)
		return
	}
	a.publishLocked(p)
	// The API had lost sight of it and has it again: it starts again.
	if len(p.demand.Demands) > 0 {
		a.queueLocked(p)
	} else {
		a.saveLaterLocked(p)
	}
}
