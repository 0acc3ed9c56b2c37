package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/failures"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// examineLocked checks which devices in use have failed, after the offer or its list has changed. While the plugin is
// disconnected the devices' health is unknown and nothing changes.
func (a *Allocator) examineLocked(r device.ResourceName) {
	resource := a.ledger.Resources[r]
	if resource.TakenCount() > 0 {
		defer a.healthChangedLocked()
	}
	if !resource.Current() {
		a.ledger.Failures(r).Away()
		return
	}
	now := time.Now()
	sick := map[device.PodUID]map[device.ID]bool{} // by holder
	for id := range resource.Taken() {
		if resource.Broken(id) {
			uid := a.failureHolderLocked(r, id)
			if sick[uid] == nil {
				sick[uid] = map[device.ID]bool{}
			}
			sick[uid][id] = true
		}
	}
	for uid, ids := range sick {
		if holder := a.pods[uid]; holder != nil {
			a.failedLocked(holder, r, ids, now)
		}
	}
	if a.ledger.Failures(r).Settle(now, resource.HasBroken) {
		loops.Signal(a.kick)
	}
}

// failedLocked records which of these failed devices a pod has been assigned, and reports those that the plugin lists.
// Devices that are only held for the pod are examined when they are assigned.
func (a *Allocator) failedLocked(holder *pod, r device.ResourceName, broken map[device.ID]bool, now time.Time) {
	uid := holder.demand.Pod.UID
	var failed, joined []device.ID
	for _, id := range ledger.DevicesOf(holder.assigned)[r] {
		if !broken[id] {
			continue
		}
		if a.failureHolderLocked(r, id) != uid {
			joined = append(joined, id) // its failure is recorded with a pod that has had it for longer
			continue
		}
		begins, counts := a.ledger.Failures(r).Fail(id, uid, a.ledger.Resources[r].Listing().Lists(id), now)
		if begins {
			loops.Signal(a.kick) // watchFailuresLocked checks whether the failure lasts
		}
		if counts {
			failed = append(failed, id)
		}
	}
	a.healthChangedLocked()
	a.reportFailures(holder, r, failed, true)
	a.tellFailed(holder, r, joined, true)
}

// failureHolderLocked returns the pod with which the failures of a device are recorded: of those that have been assigned it the first that is
// active, or the first.
func (a *Allocator) failureHolderLocked(r device.ResourceName, id device.ID) (uid device.PodUID) {
	uid, _ = a.ledger.Resources[r].Holder(id)
	if len(a.ledger.Resources[r].Sharers(id)) == 0 {
		return uid
	}
	found := false
	for other := range a.holdersLocked(r, id) {
		q := a.pods[other]
		switch {
		case q == nil || !q.has(r, id):
		case q.active():
			return other
		case !found:
			uid, found = other, true
		}
	}
	return uid
}

// passFailuresLocked has the failures of a pod's devices recorded with the pods that share them, when it ends.
func (a *Allocator) passFailuresLocked(p *pod) {
	if !p.demand.Shares() {
		return
	}
	for r, ids := range ledger.DevicesOf(p.assigned) {
		for _, id := range ids {
			if to := a.failureHolderLocked(r, id); to != p.demand.Pod.UID {
				a.ledger.Failures(r).Pass(id, p.demand.Pod.UID, to)
			}
		}
	}
}

// reportFailures counts and reports devices that failed together, to the pod that has their record and to those that share them.
func (a *Allocator) reportFailures(holder *pod, r device.ResourceName, ids []device.ID, listed bool) {
	if len(ids) == 0 {
		return
	}
	a.metrics.failures.WithLabelValues(string(r)).Add(float64(len(ids)))
	a.tellFailed(holder, r, ids, listed)
	others := map[*pod][]device.ID{}
	for _, id := range ids {
		if len(a.ledger.Resources[r].Sharers(id)) == 0 {
			continue
		}
		for uid := range a.holdersLocked(r, id) {
			if q := a.pods[uid]; q != nil && q != holder && q.has(r, id) {
				others[q] = append(others[q], id)
			}
		}
	}
	for q, shared := range others {
		a.tellFailed(q, r, shared, listed)
	}
}

// tellFailed reports a pod's devices that failed together, in one log line and one event: a plugin may withdraw thousands of
// devices at once.
func (a *Allocator) tellFailed(holder *pod, r device.ResourceName, ids []device.ID, listed bool) {
	if len(ids) == 0 {
		return
	}
	slices.SortFunc(ids, device.CompareIDs)
	ids = slices.Compact(ids)
	a.cfg.Log.Warn("devices in use have failed", "resource", r, "devices", device.Abridge(ids), "count", len(ids),
		"pod", holder.demand.Pod.String(), "listed", listed)
	a.cfg.Notifier.Failed(holder.demand.Pod, r, ids)
}

// examinePodLocked checks a pod's new assignment: a device may have failed during the plugin's Allocate call.
func (a *Allocator) examinePodLocked(holder *pod) {
	for _, s := range device.Shares(holder.assigned) {
		resource, broken := a.ledger.Resources[s.Resource], map[device.ID]bool{}
		for _, id := range s.IDs {
			if resource.Current() && resource.Broken(id) {
				broken[id] = true
			}
		}
		if len(broken) > 0 {
			a.failedLocked(holder, s.Resource, broken, time.Now())
		}
	}
}

// watchFailuresLocked counts devices that have stayed unlisted as failed, reports lasting failures and forgets old ones. It
// returns when to check again; zero: after the next change of an offer.
func (a *Allocator) watchFailuresLocked(now time.Time) (next time.Time) {
	for r, resource := range a.ledger.Resources {
		due, at := a.ledger.Failures(r).Watch(now, failures.State{Current: resource.Current(), Has: resource.Has, Pod: func(uid device.PodUID) (known, active bool) {
			holder := a.pods[uid]
			return holder != nil, holder != nil && holder.active()
		}})
		next = loops.Earliest(next, at)
		if len(due) > 0 {
			a.healthChangedLocked()
			a.changedLocked()
		}
		unlisted := map[*pod][]device.ID{}
		for _, d := range due {
			switch holder := a.pods[d.Holder]; d.Kind {
			case failures.Unlisted:
				unlisted[holder] = append(unlisted[holder], d.ID)
			case failures.Repeated:
				a.cfg.Log.Warn("device failing repeatedly; not evicting again", "resource", r, "device", d.ID,
					"pod", holder.demand.Pod.String(), "failures", d.Count)
			case failures.Lasted:
				for uid := range a.holdersLocked(r, d.ID) {
					if q := a.pods[uid]; q != nil && q.active() {
						a.cfg.Notifier.FailedForLong(q.demand.Pod, r, d.ID, func() bool { return a.stillBroken(uid, r, d.ID) })
					}
				}
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
	resource := a.ledger.Resources[r]
	return resource != nil && resource.HasBroken(id, uid)
}
