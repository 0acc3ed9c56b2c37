package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A phase is a pod's place in its life cycle. The table of phases is in doc.go.
type phase int

const (
	absent     phase = iota // not in memory
	queued                  // to be planned
	allocating              // its plugins are asked, with devices held for it, or its idle containers are examined
	waiting                 // it cannot have its devices; it has a reason
	settled                 // it has all its devices, or requests none
	abandoned               // it has ended during the attempt
	ended                   // it has ended, and keeps its record and its devices
	forgetting              // a commit that removes its record is in progress
	returned                // it is back in the API, and the commit is still in progress
)

// phases is the pod's life cycle.
var phases = [...]struct {
	name   string
	active bool    // in the API and not ended; or a static pod with a sandbox
	trying bool    // an attempt is due or in progress
	next   []phase // the phases that may follow
}{
	absent:     {"absent", false, false, []phase{queued, waiting, settled}},
	queued:     {"queued", true, true, []phase{allocating, waiting, settled, ended, absent}},
	allocating: {"allocating", true, true, []phase{queued, waiting, settled, abandoned}},
	waiting:    {"waiting", true, false, []phase{queued, settled, ended, absent}},
	settled:    {"settled", true, false, []phase{queued, waiting, ended, absent}},
	abandoned:  {"abandoned", false, true, []phase{allocating, ended, absent}},
	ended:      {"ended", false, false, []phase{queued, waiting, settled, forgetting}},
	forgetting: {"forgetting", false, false, []phase{returned, ended, absent}},
	returned:   {"returned", true, false, []phase{queued, waiting, settled, forgetting}},
}

// String returns the name of a phase.
func (p phase) String() string { return phases[p].name }

// active reports whether a pod is in the API and has not ended, or is a static pod with a sandbox.
func (p *pod) active() bool { return phases[p.phase].active }

// enterLocked moves a pod to its next phase, and what follows from the phase with it: the lists by phase, the sums of the
// requests, the callers that wait for the end of an attempt, and what readers see.
func (a *Allocator) enterLocked(p *pod, next phase) {
	before, now, uid := phases[p.phase], phases[next], p.demand.Pod.UID
	if !slices.Contains(before.next, next) {
		a.cfg.Log.Error("bug: unexpected change of a pod's phase", "pod", p.demand.Pod.String(), "from", p.phase, "to", next)
	}
	if p.phase == allocating || p.phase == abandoned || next == settled {
		defer a.wakeSharersLocked(p)
	}
	switch p.phase {
	case waiting:
		delete(a.waiting, uid)
	case ended:
		delete(a.ended, uid)
	}
	p.phase = next
	a.snapshot = nil
	switch next {
	case absent:
		delete(a.pods, uid)
		delete(a.locals, uid)
		delete(a.unsaved, uid)
		a.leftLocked(uid)
		for r := range p.demand.Requests() { // its devices were the last of a resource that is forgotten
			a.pruneLocked(r)
		}
	case queued:
		a.queued = append(a.queued, p)
		loops.Signal(a.kick)
	case waiting:
		a.waiting[uid] = p
	case ended:
		a.ended[uid] = p
	}
	switch {
	case now.trying && p.done == nil:
		p.done = make(chan struct{})
	case !now.trying && p.done != nil:
		close(p.done)
		p.done = nil
	}
	switch {
	case now.active && !before.active:
		a.usedLocked(p)
		a.requestLocked(p.requested(), 1)
	case before.active && !now.active:
		p.departure.ended = time.Now()
		if p.demand.Shares() {
			a.passFailuresLocked(p, ledger.DevicesOf(p.assigned), false)
		}
		a.requestLocked(p.requested(), -1)
		a.gaveBackLocked(uid)
	case next != absent:
		return
	}
	a.publishLocked(p)
	a.changedLocked()
}
