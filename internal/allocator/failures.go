package allocator

import (
	"iter"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/failures"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// examineLocked checks which devices in use have failed or recovered, of those with which that may have happened by a change of the offer. While the
// plugin is disconnected the devices' health is unknown and nothing changes.
func (a *Allocator) examineLocked(r device.ResourceName, changed iter.Seq[device.ID]) {
	resource := a.ledger.Resources[r]
	if resource.TakenCount() > 0 {
		a.snapshot = nil
	}
	log := a.ledger.Failures(r)
	if !resource.Current() {
		log.Away()
		return
	}
	now := time.Now()
	failed := map[device.PodUID]map[device.ID]bool{} // by holder
	for id := range changed {
		if !resource.Broken(id) {
			log.Recover(id, now)
			continue
		}
		uid := a.failureHolderLocked(r, id)
		if log.Knows(id, uid, resource.Listing().Lists(id)) {
			continue
		}
		lists.Inner(failed, uid)[id] = true
	}
	for uid, ids := range failed {
		if holder := a.pods[uid]; holder != nil {
			a.failedLocked(holder, r, ids, now)
		}
	}
	if log.Back(now) {
		loops.Signal(a.kick)
	}
}

// failedLocked records which of these failed devices a pod has been assigned, and reports those that the plugin lists.
// Devices that are only held for the pod are examined when they are assigned.
func (a *Allocator) failedLocked(holder *pod, r device.ResourceName, broken map[device.ID]bool, now time.Time) {
	uid := holder.demand.Pod.UID
	var failed, joined []device.ID
	for id := range holder.devices(r) {
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
	a.snapshot = nil
	a.reportFailuresLocked(holder, r, failed, true)
	a.tellFailedLocked(holder, r, joined, true)
}

// failureHolderLocked returns the pod with which the failures of a device are recorded: that of userLocked, or the only one that has it.
func (a *Allocator) failureHolderLocked(r device.ResourceName, id device.ID) device.PodUID {
	uid, _ := a.ledger.Resources[r].Holder(id)
	if len(a.ledger.Resources[r].Sharers(id)) == 0 {
		return uid
	}
	if user, found := a.userLocked(r, id, ""); found {
		return user
	}
	return uid
}

// userLocked returns, of the pods that have been assigned a device, except one, the first that is active, or the first.
func (a *Allocator) userLocked(r device.ResourceName, id device.ID, except device.PodUID) (uid device.PodUID, found bool) {
	for other := range a.ledger.Lookup(r).Holders(id) {
		q := a.pods[other]
		switch {
		case other == except || q == nil || !q.has(r, id):
		case q.active():
			return other, true
		case !found:
			uid, found = other, true
		}
	}
	return uid, found
}

// passFailuresLocked has the failures of devices of a pod that ends recorded with the pods that share them. leaves: the pod is about to lose the devices.
func (a *Allocator) passFailuresLocked(p *pod, devices ledger.Devices, leaves bool) {
	if !p.demand.Shares() {
		return
	}
	own, except := p.demand.Pod.UID, device.PodUID("")
	if leaves {
		except = own
	}
	for r, ids := range devices {
		for _, id := range ids {
			if to, found := a.userLocked(r, id, except); found && to != own {
				a.ledger.Failures(r).Pass(id, own, to)
			}
		}
	}
}

// reportFailuresLocked counts and reports devices that failed together, to the pod that has their record and to those that share them.
func (a *Allocator) reportFailuresLocked(holder *pod, r device.ResourceName, ids []device.ID, listed bool) {
	if len(ids) == 0 {
		return
	}
	a.metrics.failures.WithLabelValues(string(r)).Add(float64(len(ids)))
	a.tellFailedLocked(holder, r, ids, listed)
	others := map[*pod][]device.ID{}
	for _, id := range ids {
		if len(a.ledger.Resources[r].Sharers(id)) == 0 {
			continue
		}
		for uid := range a.ledger.Lookup(r).Holders(id) {
			if q := a.pods[uid]; q != nil && q != holder && q.has(r, id) {
				others[q] = append(others[q], id)
			}
		}
	}
	for q, shared := range others {
		a.tellFailedLocked(q, r, shared, listed)
	}
}

// tellFailedLocked reports a pod's devices that failed together, in one log line and one event: a plugin may withdraw thousands of
// devices at once.
func (a *Allocator) tellFailedLocked(holder *pod, r device.ResourceName, ids []device.ID, listed bool) {
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
// returns when to check again; zero: after the next change of an offer. Its time grows with the number of devices that are due, and not with that of those
// that have failed.
func (a *Allocator) watchFailuresLocked(now time.Time) (next time.Time) {
	active := func(uid device.PodUID) bool { return a.pods[uid] != nil && a.pods[uid].active() }
	left := failures.MaxWatched
	for r := range a.ledger.Resources {
		log := a.ledger.Failures(r)
		before := log.Revision()
		due, looked, at := log.Watch(now, active, left)
		left -= looked
		next = loops.Earliest(next, at)
		if log.Revision() != before {
			a.snapshot = nil
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
				for uid := range a.ledger.Lookup(r).Holders(d.ID) {
					if q := a.pods[uid]; q != nil && q.active() {
						a.cfg.Notifier.FailedForLong(q.demand.Pod, r, d.ID, func() bool { return a.stillBroken(uid, r, d.ID) })
					}
				}
			}
		}
		for holder, ids := range unlisted {
			a.reportFailuresLocked(holder, r, ids, false)
		}
	}
	return next
}

// stillBroken reports whether a pod still has a failed device, by the plugin's latest list.
func (a *Allocator) stillBroken(uid device.PodUID, r device.ResourceName, id device.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := a.ledger.Lookup(r)
	return resource.Has(id, uid) && resource.Broken(id)
}
