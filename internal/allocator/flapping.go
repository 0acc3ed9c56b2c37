package allocator

import (
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/flapping"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A device that becomes unhealthy again and again is suspended: like a cordon, with an end. The record is durable before the
// suspension is in force, and no restart shortens it. A refused device (refusals.go of package ledger) is suspended too, without a record: its pauses are short.

const (
	// together is how long after a device others may become unhealthy for the same reason. Some plugins report one after the other.
	together = 10 * time.Second
	// maxFalls bounds three things: the falls of one downturn, the devices that are followed, and the records of one commit. While so many records are
	// not on disk, none is made.
	maxFalls = 1024
)

// A downturn is the devices of a resource that have become unhealthy within a few seconds.
type downturn struct {
	before *ledger.Listing
	fallen bitset.Mutable // positions in before
	falls  []fall
	ends   time.Time
}

// spares reports whether one of the devices that were healthy before has not fallen, or there was one at most.
func (d *downturn) spares() bool {
	healthy := 0
	for i, one := range d.before.Devices() {
		switch {
		case !one.Healthy:
		case !d.fallen.Has(i):
			return true
		default:
			healthy++
		}
	}
	return healthy < 2
}

// A fall is a device that has become unhealthy.
type fall struct {
	id device.ID
	at time.Time
}

// fallen returns the devices, of those that have changed, that a list shows as unhealthy and the list before as healthy.
func fallen(changed []device.ID, before, now *ledger.Listing) (all []device.ID) {
	for _, id := range changed {
		was, _ := before.Find(id)
		if d, listed := now.Find(id); listed && !d.Healthy && was.Healthy {
			all = append(all, id)
		}
	}
	return all
}

// fellLocked notes that devices have become unhealthy. judgeFallsLocked decides whether it counts.
func (a *Allocator) fellLocked(r device.ResourceName, ids []device.ID, before *ledger.Listing, now time.Time) {
	if len(ids) == 0 || a.cfg.Suspends != nil && !a.cfg.Suspends(r) {
		return
	}
	d := a.downturns[r]
	if d == nil {
		d = &downturn{before: before, fallen: bitset.New(len(before.Devices())), ends: now.Add(together)}
		a.downturns[r] = d
		loops.Signal(a.kick)
	}
	for _, id := range ids {
		if i, was := d.before.At(id); was {
			d.fallen.Add(i)
		}
		if len(d.falls) < maxFalls {
			d.falls = append(d.falls, fall{id, now})
		}
	}
}

// judgeFallsLocked counts the falls of one downturn that has ended. If all healthy devices of several have fallen, it counts for none: the
// driver or the plugin has failed. It returns when the next downturn ends, which may be now; zero: there is none, or a commit comes first.
func (a *Allocator) judgeFallsLocked(now time.Time) (next time.Time) {
	if a.fallsPileUpLocked() {
		return time.Time{}
	}
	judged := false
	for r, d := range a.downturns {
		if judged || now.Before(d.ends) {
			next = loops.Earliest(next, d.ends)
			continue
		}
		judged = true
		delete(a.downturns, r)
		if !d.spares() {
			a.cfg.Log.Warn("all devices have become unhealthy together: this counts for none of them", "resource", r, "devices", d.fallen.Common(d.fallen.Set))
			continue
		}
		l := a.logLocked(r, now)
		for _, f := range d.falls {
			changed, gone := l.Fell(r, f.id, f.at)
			if changed {
				a.recordLocked(r, f.id)
			}
			if gone != "" {
				a.recordLocked(r, gone)
			}
		}
	}
	return next
}

// fallsPileUpLocked reports whether so many records are not on disk that no new ones are made.
func (a *Allocator) fallsPileUpLocked() bool { return len(a.unsavedFalls) >= maxFalls }

// logLocked returns the record of a resource's falls, which is made if there is none.
func (a *Allocator) logLocked(r device.ResourceName, now time.Time) *flapping.Log {
	if a.flapping[r] == nil {
		a.ledger.Of(r)
		a.flapping[r] = flapping.New(now, a.cfg.SuspendFor)
	}
	all := 0
	for _, l := range a.flapping {
		all += l.Len()
	}
	a.flapping[r].Leave(all)
	return a.flapping[r]
}

// Examinable returns the devices of a resource that health.command may examine: listed and healthy ones that no pod has.
func (a *Allocator) Examinable(r device.ResourceName) (ids []device.ID) {
	for d := range a.statuses(r) {
		if d.Listed && d.Healthy && d.Holder == nil {
			ids = append(ids, d.ID)
		}
	}
	return ids
}

// MayExamine reports whether a device is one of these.
func (a *Allocator) MayExamine(r device.ResourceName, id device.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.examinableLocked(r, id)
}

func (a *Allocator) examinableLocked(r device.ResourceName, id device.ID) bool {
	resource := a.ledger.Lookup(r)
	d, listed := resource.Listing().Find(id)
	return listed && d.Healthy && !resource.IsTaken(id)
}

// Examined reports what health.command has found: why a device is unhealthy, or with an empty reason that it is healthy. It counts
// for devices that no pod has: the command may have disturbed the pod's use, or the use the command.
func (a *Allocator) Examined(r device.ResourceName, id device.ID, objection string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if !a.examinableLocked(r, id) {
		return
	}
	before, known := a.fallsLocked(device.Key{Resource: r, ID: id})
	if !known && a.fallsPileUpLocked() {
		return // the next run finds the same
	}
	l := a.logLocked(r, now)
	changed, gone := l.Object(r, id, objection, now)
	if gone != "" {
		a.recordLocked(r, gone)
	}
	if !changed {
		return
	}
	if before.Objection == "" && (a.cfg.Suspends == nil || a.cfg.Suspends(r)) {
		l.Fell(r, id, now)
	}
	a.recordLocked(r, id)
}

// recordLocked has the record of a device written.
func (a *Allocator) recordLocked(r device.ResourceName, id device.ID) {
	a.falls++
	a.unsavedFalls[device.Key{Resource: r, ID: id}] = a.falls
	delete(a.suspensionsDue, r)
	a.scheduleWriteLocked(0)
}

// writeFalls makes the records of fallen devices durable, and then suspends those that have fallen too often.
func (a *Allocator) writeFalls() {
	if err := a.commitFalls(); err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !a.fallsErr {
			a.cfg.Log.Error("cannot write the records of unhealthy devices; retrying", "err", err)
		}
		a.fallsErr = true
		a.scheduleWriteLocked(writeRetry)
	}
}

// commitFalls writes all records that have changed, in parts, between which pods are written. They are durable when it returns nil.
func (a *Allocator) commitFalls() error {
	a.mu.Lock()
	due := slices.Collect(maps.Keys(a.unsavedFalls))
	a.mu.Unlock()
	for part := range slices.Chunk(due, maxFalls) {
		if err := a.commitFallsOf(part); err != nil {
			return err
		}
	}
	return nil
}

// commitFallsOf writes the records of these devices in one commit.
func (a *Allocator) commitFallsOf(due []device.Key) error {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	a.mu.Lock()
	var save, forget []device.Falls
	saving := map[device.Key]uint64{}
	for _, d := range due {
		number, unsaved := a.unsavedFalls[d]
		if !unsaved {
			continue // it has been written meanwhile
		}
		saving[d] = number
		if rec, known := a.fallsLocked(d); known {
			save = append(save, rec)
		} else {
			forget = append(forget, device.Falls{Resource: d.Resource, ID: d.ID})
		}
	}
	a.mu.Unlock()
	if err := a.cfg.Store.SaveFalls(save, forget); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fallsErr = false
	for d, number := range saving {
		if a.unsavedFalls[d] == number { // it has not changed meanwhile
			delete(a.unsavedFalls, d)
		}
		delete(a.suspensionsDue, d.Resource)
	}
	loops.Signal(a.kick) // the planning loop suspends, and counts further falls
	return nil
}

// fallsLocked returns the record of a device.
func (a *Allocator) fallsLocked(d device.Key) (device.Falls, bool) {
	if l := a.flapping[d.Resource]; l != nil {
		return l.Record(d.ID)
	}
	return device.Falls{}, false
}

// suspendLocked brings the suspensions in force up to date with the records on disk. It returns when one ends or a record expires;
// zero: there is none. recalled: the suspensions are those of the state file, and not new. It looks only at resources for which
// something has changed or is due, until it has changed the suspensions of one: the next are due at once.
func (a *Allocator) suspendLocked(now time.Time, recalled bool) (next time.Time) {
	changed := false
	for r, resource := range a.ledger.Resources {
		switch due, known := a.suspensionsDue[r]; {
		case known && (due.IsZero() || now.Before(due)):
			next = loops.Earliest(next, due)
			continue
		case changed && !recalled:
			next = now
			continue
		}
		all, before := device.Cordons{}, a.suspended.Of(r)
		refused, due := resource.Paused(r, now)
		all.Add(refused...)
		if l := a.flapping[r]; l != nil {
			gone, expires := l.Expire(now)
			due = loops.Earliest(due, expires)
			for _, rec := range gone {
				a.recordLocked(r, rec.ID)
			}
			all.Add(slices.DeleteFunc(l.Suspensions(now), func(c device.Cordon) bool {
				_, inForce := before[r][c.ID]
				return !inForce && a.unsavedFalls[device.Key{Resource: r, ID: c.ID}] != 0
			})...)
		}
		a.suspensionsDue[r] = due // a record that has expired is written, and then it is looked at again
		next = loops.Earliest(next, due)
		ended, begun := before.Without(all), all.Without(before)
		if len(ended)+len(begun) == 0 {
			continue
		}
		changed = true
		for _, c := range begun {
			a.cfg.Log.Warn("device is suspended", "resource", r, "device", c.ID, "why", c.Reason)
			if _, already := before[r][c.ID]; !recalled && !already {
				a.metrics.suspensions.WithLabelValues(string(r)).Inc()
			}
			if !recalled {
				a.journal(device.VerbSuspend, c.Reason, c.Name())
			}
		}
		for _, c := range ended {
			if _, again := all[r][c.ID]; !again {
				a.cfg.Log.Info("suspension of device has ended", "resource", r, "device", c.ID)
				a.journal(device.VerbResume, "the suspension has ended", c.Name())
			}
		}
		a.suspended[r] = all[r]
		if len(all[r]) == 0 {
			delete(a.suspended, r)
		}
		a.cordonsChangedLocked([]device.Cordon{{Resource: r}})
	}
	return next
}

// recallFallsLocked continues the records of the state file, except what has been switched off: suspensions of a resource, or its
// health.command.
func (a *Allocator) recallFallsLocked(known []device.Falls) {
	byResource := map[device.ResourceName][]device.Falls{}
	for _, rec := range known {
		was := rec
		if a.cfg.Suspends != nil && !a.cfg.Suspends(rec.Resource) {
			rec.Falls, rec.Until, rec.Spell = nil, time.Time{}, 0
		}
		if a.cfg.Examines == nil || !a.cfg.Examines(rec.Resource) {
			rec.Objection, rec.Objected = "", time.Time{}
		}
		if len(rec.Falls) == 0 && rec.Objection == "" {
			a.recordLocked(rec.Resource, rec.ID) // there is no record: it is removed
			continue
		}
		if !reflect.DeepEqual(rec, was) {
			a.recordLocked(rec.Resource, rec.ID)
		}
		byResource[rec.Resource] = append(byResource[rec.Resource], rec)
	}
	now := time.Now()
	for r, all := range byResource {
		a.ledger.Of(r)
		a.flapping[r] = flapping.New(now, a.cfg.SuspendFor, all...)
	}
	a.suspendLocked(now, true)
}
