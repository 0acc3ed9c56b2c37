package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	// unlistedGrace is how long a device in use must stay unlisted before it counts as failed: many plugins list
	// nothing, or only some devices, for a moment after their start.
	unlistedGrace = 5 * time.Second
	// lastingFailure is how long a device in use must stay failed before the failure counts as lasting: a plugin that
	// restarts, or a link that recovers, is no reason to end a pod.
	lastingFailure = 10 * time.Second
	// failureMemory is how long a failure is remembered. A device that has caused one eviction causes no other within
	// this time, so that an intermittent failure does not evict pod after pod.
	failureMemory = time.Hour
	// maxFailures is the number of failures remembered for one device.
	maxFailures = 100
)

// A failureRecord is the failures of a device while pods had it.
type failureRecord struct {
	broken     time.Time // start of the current failure; zero: none, or no pod has the device
	pending    bool      // the failure does not count yet: the device has been unlisted for less than unlistedGrace
	holder     device.PodUID
	lasting    bool        // the failure has been reported as lasting
	failures   []time.Time // the newest last
	reportedAt time.Time   // when a failure was last reported as lasting
}

// examineLocked checks which devices in use have failed, after the offer or its list has changed. While the plugin is
// disconnected the devices' health is unknown and nothing changes.
func (a *Allocator) examineLocked(r device.ResourceName, p *pool) {
	if !p.Current() {
		p.away = true
		return
	}
	now := time.Now()
	sick := map[device.PodUID]map[device.ID]bool{} // by holder
	for id, uid := range p.Taken() {
		if p.Broken(id) {
			if sick[uid] == nil {
				sick[uid] = map[device.ID]bool{}
			}
			sick[uid][id] = true
		}
	}
	for uid, ids := range sick {
		if holder := a.pods[uid]; holder != nil {
			a.failedLocked(holder, r, p, ids, now)
		}
	}
	for id, rec := range p.failures {
		switch uid, taken := p.Holder(id); {
		case rec.broken.IsZero():
		case !taken || uid != rec.holder || !p.Broken(id):
			rec.broken, rec.pending = time.Time{}, false
		case p.away && !rec.lasting:
			rec.broken = now // its health meanwhile is unknown
			signal(a.kick)
		}
	}
	p.away = false
}

// failedLocked records which of these failed devices a pod has been assigned, and reports those that the plugin lists.
// Devices that are only held for the pod are examined when they are assigned.
func (a *Allocator) failedLocked(holder *pod, r device.ResourceName, p *pool, broken map[device.ID]bool, now time.Time) {
	uid := holder.demand.Pod.UID
	var failed []device.ID
	for _, as := range holder.assigned {
		for _, s := range as.Shares {
			for _, id := range s.IDs {
				if s.Resource != r || !broken[id] {
					continue
				}
				rec := p.failures[id]
				if rec == nil {
					rec = &failureRecord{}
					p.failures[id] = rec
				}
				_, listed := p.Listing().Find(id)
				if rec.broken.IsZero() || rec.holder != uid {
					rec.broken, rec.pending, rec.holder, rec.lasting = now, true, uid, false
					signal(a.kick) // watchFailuresLocked checks whether the failure lasts
				}
				if rec.pending && listed {
					rec.count(now)
					failed = append(failed, id)
				}
			}
		}
	}
	a.reportFailures(holder, r, failed, true)
}

// count records a failure.
func (rec *failureRecord) count(now time.Time) {
	rec.pending = false
	rec.failures = append(rec.failures, now)
	if len(rec.failures) > maxFailures {
		rec.failures = rec.failures[1:]
	}
}

// reportFailures counts and reports a pod's devices that failed together, in one log line and one event: a plugin may
// withdraw thousands of devices at once.
func (a *Allocator) reportFailures(holder *pod, r device.ResourceName, ids []device.ID, listed bool) {
	if len(ids) == 0 {
		return
	}
	slices.SortFunc(ids, device.CompareIDs)
	a.metrics.failures.WithLabelValues(string(r)).Add(float64(len(ids)))
	a.log.Warn("devices in use have failed", "resource", r, "devices", device.Abridge(ids), "count", len(ids),
		"pod", holder.demand.Pod.String(), "listed", listed)
	a.notifier.Failed(holder.demand.Pod, r, ids)
}

// examinePodLocked checks a pod's new assignment: a device may have failed during the plugin's Allocate call.
func (a *Allocator) examinePodLocked(holder *pod) {
	for _, as := range holder.assigned {
		for _, s := range as.Shares {
			p, broken := a.pools[s.Resource], map[device.ID]bool{}
			for _, id := range s.IDs {
				if p.Current() && p.Broken(id) {
					broken[id] = true
				}
			}
			if len(broken) > 0 {
				a.failedLocked(holder, s.Resource, p, broken, time.Now())
			}
		}
	}
}

// watchFailuresLocked counts devices that have stayed unlisted as failed, reports lasting failures and forgets old ones. It
// returns when to check again; zero: after the next change of an offer.
func (a *Allocator) watchFailuresLocked(now time.Time) (next time.Time) {
	for r, p := range a.pools {
		unlisted := map[*pod][]device.ID{}
		for id, rec := range p.failures {
			for len(rec.failures) > 0 && now.Sub(rec.failures[0]) > failureMemory {
				rec.failures = rec.failures[1:]
			}
			if uid, taken := p.Holder(id); !taken || uid != rec.holder {
				rec.broken, rec.pending = time.Time{}, false
			}
			if holder := a.pods[rec.holder]; rec.pending && p.Current() {
				due := rec.broken.Add(unlistedGrace)
				switch {
				case now.Before(due):
					if next.IsZero() || due.Before(next) {
						next = due
					}
					continue
				case holder != nil:
					rec.count(now)
					unlisted[holder] = append(unlisted[holder], id)
				}
			}
			switch due := rec.broken.Add(lastingFailure); {
			case rec.broken.IsZero():
				if len(rec.failures) == 0 && now.Sub(rec.reportedAt) > failureMemory {
					delete(p.failures, id)
				}
			case rec.lasting, !p.Current(): // examineLocked starts again when the plugin is back
			case now.Before(due):
				if next.IsZero() || due.Before(next) {
					next = due
				}
			default:
				rec.lasting = true
				holder := a.pods[rec.holder]
				if holder == nil || !holder.active {
					continue
				}
				again := !rec.reportedAt.IsZero() && now.Sub(rec.reportedAt) < failureMemory
				if again {
					a.log.Warn("device failing repeatedly; not evicting again", "resource", r, "device", id,
						"pod", holder.demand.Pod.String(), "failures", len(rec.failures))
					continue
				}
				rec.reportedAt = now
				uid := rec.holder
				a.notifier.FailedForLong(holder.demand.Pod, r, id, func() bool { return a.stillBroken(uid, r, id) })
			}
		}
		for holder, ids := range unlisted {
			a.reportFailures(holder, r, ids, false)
		}
	}
	return next
}

// stillBroken reports whether a pod still has a failed device, by the plugin's latest list.
func (a *Allocator) stillBroken(uid device.PodUID, r device.ResourceName, id device.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[r]
	holder, _ := p.Holder(id)
	return holder == uid && p.Broken(id)
}

// failuresOf returns how often a device has failed within failureMemory while in use, and when it last failed.
func (p *pool) failuresOf(id device.ID, now time.Time) (n int, last time.Time) {
	rec := p.failures[id]
	if rec == nil {
		return 0, time.Time{}
	}
	for _, at := range rec.failures {
		if now.Sub(at) <= failureMemory {
			n++
			last = at
		}
	}
	return n, last
}
