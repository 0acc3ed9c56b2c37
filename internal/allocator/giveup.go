package allocator

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A pod that waits never moves: the scheduler has bound it. If this node will not serve it, because a plugin has been removed or a
// GPU has been partitioned differently, the pod's controller can create another pod elsewhere once this one is evicted.

const (
	// settling is for how long after its start devmgrd evicts no pod: plugins are dialled and list their devices.
	settling = 30 * time.Second
	// giveUpAgain is the time between two requests for one eviction. The first may have been dropped.
	giveUpAgain = 10 * time.Minute
)

// passing are the reasons whose time does not count: they soon end or become others, or end with containers of other pods (DevicesUnknown).
var passing = map[device.Reason]bool{
	device.Allocating: true, device.Preparing: true, device.PluginStale: true, device.AssignmentConflict: true, device.DevicesUnknown: true, device.ClaimUnknown: true,
}

// stallLocked counts how long a pod has waited. While other pods have the devices the time stands still; another reason starts it
// afresh.
func (a *Allocator) stallLocked(p *pod, why device.Wait) {
	limit := a.patienceLocked(p, why.Reason)
	if limit == 0 && p.stall == (device.Stall{}) {
		return
	}
	before, now := p.stall, time.Now()
	switch {
	case why.InUse || passing[why.Reason]:
		p.stall.Before, p.stall.Since = p.stall.Lasted(now), time.Time{}
	case limit == 0:
		p.stall = device.Stall{}
	case p.stall.Reason != why.Reason:
		p.stall, p.gaveUp = device.Stall{Reason: why.Reason, Since: now, Boot: a.cfg.Boot}, time.Time{}
	case p.stall.Since.IsZero():
		p.stall.Since = now
	}
	if p.stall != before {
		a.saveLaterLocked(p)
		loops.Signal(a.kick)
	}
}

// patienceLocked returns for how long a pod may wait for a reason; zero: without end.
func (a *Allocator) patienceLocked(p *pod, why device.Reason) time.Duration {
	if a.cfg.GiveUpAfter == nil || !p.demand.Movable {
		return 0
	}
	least := a.cfg.GiveUpAfter(why, "")
	for r := range p.demand.Requests() {
		if limit := a.cfg.GiveUpAfter(why, r); limit > 0 && (least == 0 || limit < least) {
			least = limit
		}
	}
	return least
}

// recallStallLocked continues a stall that the state file has. The time while the machine was off does not count.
func (a *Allocator) recallStallLocked(p *pod, s device.Stall) {
	if s.Boot != a.cfg.Boot {
		return
	}
	p.stall = s
	if s.Since.After(p.bound) { // the clock has been set back
		p.stall.Since = p.bound
	}
}

// givesUpLocked returns when a pod will be evicted if it still waits then; zero: never.
func (a *Allocator) givesUpLocked(p *pod) time.Time {
	limit := a.patienceLocked(p, p.stall.Reason)
	if limit == 0 || p.phase != waiting || p.stall.Since.IsZero() || a.running[p.demand.Pod.UID].MayRun() {
		return time.Time{}
	}
	at := p.stall.Since.Add(limit - p.stall.Before)
	if earliest := a.began.Add(settling); at.Before(earliest) {
		return earliest
	}
	return at
}

// giveUpLocked has the pods evicted that have waited for too long. It returns when to ask again; zero: after the next change.
func (a *Allocator) giveUpLocked(now time.Time) (next time.Time) {
	if a.cfg.GiveUpAfter == nil {
		return time.Time{}
	}
	for uid, p := range a.waiting {
		at := a.givesUpLocked(p)
		if at.IsZero() {
			continue
		}
		if !at.After(now) {
			if at = p.gaveUp.Add(giveUpAgain); !at.After(now) {
				lasted := p.stall.Lasted(now)
				if p.gaveUp.IsZero() {
					a.cfg.Log.Warn("giving up a pod that has waited for too long", "pod", p.demand.Pod.String(), "reason", p.wait.Reason, "waited", lasted)
					a.metrics.givenUp.WithLabelValues(string(p.wait.Reason)).Inc()
				}
				p.gaveUp, at = now, now.Add(giveUpAgain)
				a.cfg.Notifier.GivenUp(p.demand.Pod, p.wait, lasted, func() bool { return a.stillStalled(uid) })
			}
		}
		next = loops.Earliest(next, at)
	}
	return next
}

// stillStalled reports whether a pod is still due for an eviction.
func (a *Allocator) stillStalled(uid device.PodUID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[uid]
	if p == nil {
		return false
	}
	at := a.givesUpLocked(p)
	return !at.IsZero() && !time.Now().Before(at)
}
