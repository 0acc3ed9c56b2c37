package flapping

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	// tooMany falls within the window suspend a device.
	tooMany = 3
	window  = time.Hour
	// longest is how long a suspension lasts at most.
	longest = 24 * time.Hour
	// maxDevices bounds the devices of one resource that are followed.
	maxDevices = 1024
)

// A Log is the falls of one resource's devices.
type Log struct {
	first   time.Duration // how long a device's first suspension lasts
	records map[device.ID]*device.Falls
}

// New returns a Log with the records of an earlier one, in which first suspensions last for the given time. No suspension ends later than one that begins now would: the clock may have
// been set back.
func New(now time.Time, first time.Duration, known ...device.Falls) *Log {
	l := &Log{first, map[device.ID]*device.Falls{}}
	for _, rec := range known {
		if latest := now.Add(rec.Spell); rec.Until.After(latest) {
			rec.Until = latest
		}
		l.records[rec.ID] = &rec
	}
	return l
}

// Records returns all records.
func (l *Log) Records() (all []device.Falls) {
	for _, rec := range l.records {
		all = append(all, *rec)
	}
	return all
}

// Fell records that a device has become unhealthy. It returns whether the record has changed: falls during a suspension do not count. If
// there are too many records, gone is the device whose record has made room; else it is empty.
func (l *Log) Fell(r device.ResourceName, id device.ID, now time.Time) (changed bool, gone device.ID) {
	if rec := l.records[id]; rec != nil && now.Before(rec.Until) {
		return false, ""
	}
	rec, gone := l.of(r, id)
	if rec == nil {
		return false, ""
	}
	rec.Falls = append(recent(rec.Falls, now), now)
	switch {
	case now.Before(probationEnds(rec)):
		rec.Spell = min(2*rec.Spell, longest)
		rec.Until = now.Add(rec.Spell)
	case len(rec.Falls) >= tooMany:
		rec.Spell = l.first
		rec.Until = now.Add(rec.Spell)
	}
	return true, gone
}

// Object records why health.command finds a device unhealthy; empty: it finds the device healthy. It returns the same as Fell.
func (l *Log) Object(r device.ResourceName, id device.ID, why string, now time.Time) (changed bool, gone device.ID) {
	if known, _ := l.Record(id); known.Objection == why {
		return false, ""
	}
	rec, gone := l.of(r, id)
	if rec == nil {
		return false, ""
	}
	if rec.Objection == "" {
		rec.Objected = now
	}
	rec.Objection = why
	if why == "" {
		rec.Objected = time.Time{}
	}
	if why == "" && len(rec.Falls) == 0 && rec.Spell == 0 {
		delete(l.records, id) // falls do not count for this resource: nothing is left
	}
	return true, gone
}

// of returns the record of a device, which is made if there is none; nil: there is no room. gone is the device whose record has made room.
func (l *Log) of(r device.ResourceName, id device.ID) (rec *device.Falls, gone device.ID) {
	if l.records[id] == nil {
		if len(l.records) >= maxDevices {
			if gone = l.makeRoom(); gone == "" {
				return nil, ""
			}
		}
		l.records[id] = &device.Falls{Resource: r, ID: id}
	}
	return l.records[id], gone
}

// makeRoom forgets the device that fell first, of those that have never been suspended, and returns it; empty: there is none. A device
// without a fall comes before all others.
func (l *Log) makeRoom() device.ID {
	var oldest *device.Falls
	for _, rec := range l.records {
		if rec.Spell == 0 && rec.Objection == "" && (oldest == nil || lastFall(rec).Before(lastFall(oldest))) {
			oldest = rec
		}
	}
	if oldest == nil {
		return ""
	}
	delete(l.records, oldest.ID)
	return oldest.ID
}

// lastFall returns when a device fell last; zero: it has not.
func lastFall(rec *device.Falls) time.Time {
	if len(rec.Falls) == 0 {
		return time.Time{}
	}
	return rec.Falls[len(rec.Falls)-1]
}

// recent returns the falls within the window.
func recent(falls []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(falls), func(at time.Time) bool { return now.Sub(at) > window })
}

// probationEnds returns when the probation after a suspension ends; zero: there was no suspension.
func probationEnds(rec *device.Falls) time.Time {
	if rec.Spell == 0 {
		return time.Time{}
	}
	return rec.Until.Add(max(rec.Spell, window))
}

// Record returns the record of a device.
func (l *Log) Record(id device.ID) (device.Falls, bool) {
	rec := l.records[id]
	if rec == nil {
		return device.Falls{}, false
	}
	return *rec, true
}

// Forget forgets a device, as an operator wants it.
func (l *Log) Forget(id device.ID) { delete(l.records, id) }

// Expire forgets the devices that have been good for long enough, and returns them. next is when a suspension ends or a record
// expires; zero: there is none.
func (l *Log) Expire(now time.Time) (gone []device.Falls, next time.Time) {
	for id, rec := range l.records {
		if rec.Objection != "" && !now.Before(rec.Until) {
			continue // for as long as the command objects
		}
		var ends time.Time // zero: at once
		if last := lastFall(rec); !last.IsZero() {
			ends = last.Add(window)
		}
		if probation := probationEnds(rec); probation.After(ends) {
			ends = probation
		}
		if !now.Before(ends) {
			gone = append(gone, *rec)
			delete(l.records, id)
			continue
		}
		if now.Before(rec.Until) && rec.Until.Before(ends) {
			ends = rec.Until
		}
		next = loops.Earliest(next, ends)
	}
	slices.SortFunc(gone, func(a, b device.Falls) int { return device.CompareIDs(a.ID, b.ID) })
	return gone, next
}

// Suspensions returns the suspended devices as cordons, ascending.
func (l *Log) Suspensions(now time.Time) (all []device.Cordon) {
	for _, rec := range slices.SortedFunc(maps.Values(l.records), func(a, b *device.Falls) int { return device.CompareIDs(a.ID, b.ID) }) {
		c := device.Cordon{Resource: rec.Resource, ID: rec.ID, Suspended: true}
		switch {
		case now.Before(rec.Until):
			c.Since, c.Until = rec.Until.Add(-rec.Spell), rec.Until
			c.Reason = fmt.Sprintf("suspended by devmgrd until %s: it became unhealthy %s", rec.Until.UTC().Format(time.RFC3339), times(rec.Falls))
		case rec.Objection != "":
			c.Since, c.Reason = rec.Objected, "suspended by devmgrd: "+rec.Objection
		default:
			continue
		}
		all = append(all, c)
	}
	return all
}

// times says how often and when a device fell.
func times(falls []time.Time) string {
	last := falls[len(falls)-1].UTC().Format(time.RFC3339)
	return cmp.Or(map[int]string{1: "again, at " + last}[len(falls)], fmt.Sprintf("%d times within an hour, the last time at %s", len(falls), last))
}
