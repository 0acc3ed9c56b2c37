package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/flapping"
	"github.com/devmgrd/devmgrd/internal/placement"
)

// A device that becomes unhealthy again and again is suspended: like a cordon, with an end. The record is durable before the
// suspension is in force, and no restart shortens it.

// fallen returns the devices that a list shows as unhealthy and the list before as healthy. If all healthy devices of several fall
// together, it is none: the driver or the plugin has failed, and no device.
func fallen(before *placement.Listing, now []device.Device) (all []device.ID) {
	for _, d := range now {
		if d.Healthy {
			continue
		}
		if was, listed := before.Find(d.ID); listed && was.Healthy {
			all = append(all, d.ID)
		}
	}
	if len(all) < 2 {
		return all
	}
	healthy := 0
	for _, d := range before.Devices() {
		if d.Healthy {
			healthy++
		}
	}
	if len(all) == healthy {
		return nil
	}
	return all
}

// fellLocked records that devices have become unhealthy. What follows waits for the commit.
func (a *Allocator) fellLocked(r device.ResourceName, ids []device.ID, now time.Time) {
	if len(ids) == 0 || a.suspends != nil && !a.suspends(r) {
		return
	}
	l := a.flapping[r]
	if l == nil {
		l = flapping.New()
		a.flapping[r] = l
	}
	for _, id := range ids {
		if l.Fell(r, id, now) {
			a.unsavedFalls[fall{r, id}] = true
			a.scheduleWriteLocked(0)
		}
	}
}

// A fall names a device.
type fall struct {
	resource device.ResourceName
	id       device.ID
}

// writeFalls makes the records of fallen devices durable, and then suspends those that have fallen too often.
func (a *Allocator) writeFalls() {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	a.mu.Lock()
	var save, forget []device.Falls
	for f := range a.unsavedFalls {
		if rec, known := a.fallsLocked(f); known {
			save = append(save, rec)
		} else {
			forget = append(forget, device.Falls{Resource: f.resource, ID: f.id})
		}
	}
	clear(a.unsavedFalls)
	a.mu.Unlock()
	if len(save)+len(forget) == 0 {
		return
	}
	err := a.store.SaveFalls(save, forget)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.log.Error("cannot write state file; retrying", "err", err)
		for _, rec := range slices.Concat(save, forget) {
			a.unsavedFalls[fall{rec.Resource, rec.ID}] = true
		}
		a.scheduleWriteLocked(writeRetry)
		return
	}
	a.suspendLocked(time.Now())
	signal(a.kick) // the planning loop watches the ends
}

// fallsLocked returns the record of a device.
func (a *Allocator) fallsLocked(f fall) (device.Falls, bool) {
	if l := a.flapping[f.resource]; l != nil {
		return l.Record(f.id)
	}
	return device.Falls{}, false
}

// suspendLocked brings the suspensions in force up to date with the records on disk. It returns when one ends or a record expires;
// zero: there is none.
func (a *Allocator) suspendLocked(now time.Time) (next time.Time) {
	for r, l := range a.flapping {
		gone, due := l.Expire(now)
		for _, rec := range gone {
			a.unsavedFalls[fall{r, rec.ID}] = true
			a.scheduleWriteLocked(0)
		}
		if !due.IsZero() && (next.IsZero() || due.Before(next)) {
			next = due
		}
		all := device.Cordons{}
		all.Add(slices.DeleteFunc(l.Suspensions(now), func(c device.Cordon) bool { return a.unsavedFalls[fall{r, c.ID}] })...)
		ended, begun := a.suspended.Of(r).Without(all), all.Without(a.suspended.Of(r))
		if len(ended)+len(begun) == 0 {
			continue
		}
		for _, c := range begun {
			a.log.Warn("suspending device", "resource", r, "device", c.ID, "why", c.Reason)
			a.metrics.suspensions.WithLabelValues(string(r)).Inc()
		}
		for _, c := range ended {
			if _, again := all[r][c.ID]; !again {
				a.log.Info("suspension of device has ended", "resource", r, "device", c.ID)
			}
		}
		if a.suspended[r] = all[r]; len(all[r]) == 0 {
			delete(a.suspended, r)
		}
		a.cordonsChangedLocked([]device.Cordon{{Resource: r}})
	}
	return next
}

// recallFallsLocked continues the records of the state file.
func (a *Allocator) recallFallsLocked(known []device.Falls) {
	byResource := map[device.ResourceName][]device.Falls{}
	for _, rec := range known {
		byResource[rec.Resource] = append(byResource[rec.Resource], rec)
	}
	for r, all := range byResource {
		a.flapping[r] = flapping.New(all...)
	}
	a.suspendLocked(time.Now())
}
