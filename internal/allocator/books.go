package allocator

import (
	"context"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	// rememberAfter is how long pods that need no commit of their own are gathered before they are written together.
	// They are remembered so that a restart while the API server is away does not make strangers of them.
	rememberAfter = time.Second
	// idleGrace is how long after a pod's end a container of it that has not been started keeps its devices. A kubelet
	// starts a container right after it has made it, and none of a pod that is gone.
	idleGrace = 30 * time.Second
	// bookPause is the pause before books that could not be written are tried again.
	bookPause = time.Second
	// firstLook and lastLook are the shortest and the longest pause between looks for the processes of a pod that has ended.
	firstLook, lastLook = 100 * time.Millisecond, 5 * time.Second
	// slowEnd is how many looks find processes before that is worth a warning: 6 s after the first one.
	slowEnd = 7
)

// rememberLocked has a pod's demand written when there is time.
func (a *Allocator) rememberLocked(p *pod) {
	a.unsaved[p.demand.Pod.UID] = p
	a.writeLocked(rememberAfter)
}

// writeLocked has the books written after that time at the latest.
func (a *Allocator) writeLocked(in time.Duration) {
	if at := time.Now().Add(in); a.writeAt.IsZero() || at.Before(a.writeAt) {
		a.writeAt = at
		signal(a.write)
	}
}

// keepBooks writes what no attempt writes: releases at once, new pods without an assignment when some have gathered.
func (a *Allocator) keepBooks(ctx context.Context) {
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
			a.writeBooks() // a clean stop leaves nothing to chance
			return
		case <-a.write:
		case <-due:
			a.writeBooks()
		}
	}
}

// writeBooks makes one commit of all that is due. A pod's devices are free only when the disk says so too: were they
// given out before, a crash could leave them in two hands.
func (a *Allocator) writeBooks() {
	shown := a.prove()
	a.pen.Lock()
	defer a.pen.Unlock()
	save, forget, records := a.due(shown)
	if len(save)+len(forget) == 0 {
		return
	}
	uids := make([]device.PodUID, len(forget))
	for i, p := range forget {
		uids[i] = p.demand.Pod.UID
	}
	a.written(save, forget, a.books.SavePods(records, uids))
}

// due gives the pods to write, with what to write, and the pods to forget, and takes them off the lists.
func (a *Allocator) due(shown proof) (save, forget []*pod, records []device.PodRecord) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeAt = time.Time{}
	a.releaseLeftoversLocked(shown)
	for uid, p := range a.unsaved {
		if p.phase == asking {
			continue // what ends the attempt writes it
		}
		if p.doubt != nil && !a.met {
			continue // the record is evidence until the runtime has told; RuntimeSynced has it written
		}
		delete(a.unsaved, uid)
		if p.wanted {
			p.saved = true // a pod that goes while we write has to be forgotten again
			save = append(save, p)
			records = append(records, device.PodRecord{Demand: p.demand, Assignments: p.assigned})
		}
	}
	for uid, p := range a.leavers {
		if len(p.assigned) > 0 {
			switch wait, ended := a.endedLocked(p); {
			case !ended:
				continue
			case wait > 0:
				a.writeLocked(wait)
				continue
			case !shown.vacant[uid] || !a.live[uid].bar(shown.idle):
				a.writeLocked(0) // a container was started, listed or stopped since the host was asked
				continue
			}
		}
		p.leaving = true
		forget = append(forget, p)
	}
	return save, forget, records
}

// endedLocked reports whether the runtime has no container of a pod, or only idle ones, and how long the release of the
// pod's devices has to wait all the same.
func (a *Allocator) endedLocked(p *pod) (wait time.Duration, ended bool) {
	containers := a.live[p.demand.Pod.UID]
	if !a.synced || containers.runs() {
		return 0, false
	}
	if at := p.left.Add(idleGrace); len(containers) > 0 && at.After(p.leaveAt) {
		p.leaveAt = at
	}
	return time.Until(p.leaveAt), true
}

func (a *Allocator) written(save, forget []*pod, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range forget {
		p.leaving = false
		switch {
		case err == nil:
		case !p.wanted:
			a.leavers[p.demand.Pod.UID] = p // it may have come and gone again meanwhile
		case !p.served():
			a.queueLocked(p) // it is back
		}
	}
	if err != nil {
		if !a.bookErr {
			a.log.Error("the books cannot be written; trying again until they can", "err", err)
		}
		for _, p := range save {
			a.rememberLocked(p)
		}
		a.writeLocked(bookPause)
	} else {
		if a.bookErr {
			a.log.Info("the books are written again")
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
			a.forgetLocked(p)
		}
	}
	a.bookErr = err != nil
}

// forgetLocked lets go of a pod that the books have let go of.
func (a *Allocator) forgetLocked(p *pod) {
	uid := p.demand.Pod.UID
	for _, as := range p.assigned {
		for _, s := range as.Shares {
			a.giveLocked(s.Resource, s.IDs, uid)
			a.wakeLocked(s.Resource, false)
		}
	}
	a.reclaimLocked()
	if len(p.assigned) > 0 {
		a.log.Info("devices released", "pod", p.demand.Pod.String(), "devices", summary(p.assigned))
	}
	p.assigned, p.starts, p.saved = nil, nil, false
	signal(a.changed)
	if !p.wanted {
		a.removeLocked(p)
		return
	}
	a.showLocked(p)
	// The API had lost sight of it and has it again: it starts anew.
	if len(p.demand.Demands) > 0 {
		a.queueLocked(p)
	} else {
		a.rememberLocked(p)
	}
}
