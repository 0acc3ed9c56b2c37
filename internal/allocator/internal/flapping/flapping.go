package flapping

import (
	"cmp"
	"container/list"
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
	// maxDevices bounds the devices of one resource that are followed, and maxAll those of all resources but for fewDevices of each.
	maxDevices = 1024
	fewDevices = 32
	maxAll     = 4096
)

// A Log is the falls of one resource's devices.
type Log struct {
	first   time.Duration // how long a device's first suspension lasts
	room    int           // for further records; fewDevices may be there without
	records map[device.ID]*record
	queue   *list.List // of *record: those that may be forgotten for others, the one that changed first at the front
}

// A record is what is known of one device.
type record struct {
	device.Falls
	place *list.Element // in the queue; nil: it was suspended, or health.command objects
}

// New returns a Log with the records of an earlier one, in which first suspensions last for the given time. No suspension ends later than one that begins now would: the clock may have
// been set back.
func New(now time.Time, first time.Duration, known ...device.Falls) *Log {
	l := &Log{first: first, room: maxAll, records: map[device.ID]*record{}, queue: list.New()}
	slices.SortFunc(known, func(a, b device.Falls) int { return lastFall(&a).Compare(lastFall(&b)) })
	for _, falls := range known {
		if latest := now.Add(falls.Spell); falls.Until.After(latest) {
			falls.Until = latest
		}
		falls.Falls = slices.Clone(falls.Falls)
		for i, at := range falls.Falls {
			falls.Falls[i] = loops.Earliest(at, now)
		}
		rec := &record{Falls: falls}
		l.records[rec.ID] = rec
		l.enqueue(rec)
	}
	return l
}

// Leave has a Log make room for further devices beyond a few only as far as those of all resources leave it.
func (l *Log) Leave(all int) { l.room = maxAll - all }

// Len returns how many devices are followed.
func (l *Log) Len() int { return len(l.records) }

// Records returns all records.
func (l *Log) Records() (all []device.Falls) {
	for _, rec := range l.records {
		all = append(all, rec.Falls)
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
	rec.Falls.Falls = append(recent(rec.Falls.Falls, now), now)
	switch {
	case now.Before(probationEnds(&rec.Falls)):
		rec.Spell = min(2*rec.Spell, longest)
		rec.Until = now.Add(rec.Spell)
	case len(rec.Falls.Falls) >= tooMany:
		rec.Spell = l.first
		rec.Until = now.Add(rec.Spell)
	}
	l.enqueue(rec)
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
	l.enqueue(rec)
	if why == "" && len(rec.Falls.Falls) == 0 && rec.Spell == 0 {
		l.Forget(id) // falls do not count for this resource: nothing is left
	}
	return true, gone
}

// of returns the record of a device, which is made if there is none; nil: there is no room. gone is the device whose record has made room.
func (l *Log) of(r device.ResourceName, id device.ID) (rec *record, gone device.ID) {
	if rec := l.records[id]; rec != nil {
		return rec, ""
	}
	if n := len(l.records); n >= maxDevices || n >= fewDevices && l.room <= 0 {
		first := l.queue.Front()
		if first == nil {
			return nil, ""
		}
		gone = first.Value.(*record).ID
		l.Forget(gone)
	}
	l.room--
	l.records[id] = &record{Falls: device.Falls{Resource: r, ID: id}}
	return l.records[id], gone
}

// enqueue puts a record that has changed where it belongs in the queue.
func (l *Log) enqueue(rec *record) {
	l.dequeue(rec)
	if rec.Spell == 0 && rec.Objection == "" {
		rec.place = l.queue.PushBack(rec)
	}
}

func (l *Log) dequeue(rec *record) {
	if rec.place != nil {
		l.queue.Remove(rec.place)
		rec.place = nil
	}
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
	return rec.Falls, true
}

// Forget forgets a device, as an operator wants it.
func (l *Log) Forget(id device.ID) {
	if rec := l.records[id]; rec != nil {
		l.dequeue(rec)
		delete(l.records, id)
		l.room++
	}
}

// Expire forgets the devices that have been good for long enough, and returns them. next is when a suspension ends or a record
// expires; zero: there is none.
func (l *Log) Expire(now time.Time) (gone []device.Falls, next time.Time) {
	for id, rec := range l.records {
		if rec.Objection != "" && !now.Before(rec.Until) {
			continue // for as long as the command objects
		}
		var ends time.Time // zero: at once
		if last := lastFall(&rec.Falls); !last.IsZero() {
			ends = last.Add(window)
		}
		if probation := probationEnds(&rec.Falls); probation.After(ends) {
			ends = probation
		}
		if !now.Before(ends) {
			gone = append(gone, rec.Falls)
			l.Forget(id)
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
	for _, rec := range slices.SortedFunc(maps.Values(l.records), func(a, b *record) int { return device.CompareIDs(a.ID, b.ID) }) {
		c := device.Cordon{Resource: rec.Resource, ID: rec.ID, Suspended: true}
		switch {
		case now.Before(rec.Until):
			c.Since, c.Until = rec.Until.Add(-rec.Spell), rec.Until
			c.Reason = fmt.Sprintf("suspended by devmgrd until %s: it became unhealthy %s", rec.Until.UTC().Format(time.RFC3339), times(rec.Falls.Falls))
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
