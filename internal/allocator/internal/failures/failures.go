package failures

import (
	"container/heap"
	"fmt"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	// unlistedGrace is how long a device in use must stay unlisted before it counts as failed: many plugins list
	// nothing, or only some devices, for a moment after their start.
	unlistedGrace = 5 * time.Second
	// Lasting is how long a device in use must stay failed before the failure counts as lasting: a plugin that
	// restarts, or a link that recovers, is no reason to end a pod.
	Lasting = 10 * time.Second
	// memory is how long a failure is remembered. A device that has caused one eviction causes no other within
	// this time, so that an intermittent failure does not evict pod after pod.
	memory = time.Hour
	// maxFailures and maxTimes are the number of failures remembered for one device, and for all devices of the resource. The last one of each device is
	// remembered in any case.
	maxFailures, maxTimes = 100, 4096
	// maxDevices is the number of a resource's devices that are remembered after they have recovered.
	maxDevices = 1024
	// MaxWatched is the number of devices of all resources to look at before others may have the lock.
	MaxWatched = 4096
)

// A Log is the failures of one resource's devices while pods had them.
type Log struct {
	records  map[device.ID]*record
	queue    queue  // the records that time changes
	times    int    // in all records
	away     bool   // the plugin has been disconnected since the last Back
	revision uint64 // the number of changes of what Last returns
}

// New returns an empty Log.
func New() *Log { return &Log{records: map[device.ID]*record{}} }

// A record is the failures of a device while pods had it.
type record struct {
	id         device.ID
	broken     time.Time // start of the current failure; zero: none, or no pod has the device
	pending    bool      // the failure does not count yet: the device has been unlisted for less than unlistedGrace
	listed     bool      // the plugin listed the device when it last failed
	lasting    bool      // the failure has been reported as lasting
	ended      time.Time // end of the last failure that counted; zero: none has ended
	holder     device.PodUID
	failures   []time.Time // the newest last
	reportedAt time.Time   // when a failure was last reported as lasting
	at         int         // its place in the queue, from 1; 0: it is not in the queue
}

// next returns when time changes a record of a connected plugin's device; zero: never.
func (rec *record) next() time.Time {
	switch {
	case rec.broken.IsZero():
		last := rec.reportedAt
		if n := len(rec.failures); n > 0 && rec.failures[n-1].After(last) {
			last = rec.failures[n-1]
		}
		return last.Add(memory)
	case rec.pending:
		return rec.broken.Add(unlistedGrace)
	case rec.lasting:
		return time.Time{}
	}
	return rec.broken.Add(Lasting)
}

// A queue is records in the order in which they are due, as a heap.
type queue []*record

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].next().Before(q[j].next()) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].at, q[j].at = i+1, j+1
}

// Push is part of heap.Interface.
func (q *queue) Push(x any) {
	rec := x.(*record)
	*q = append(*q, rec)
	rec.at = len(*q)
}

// Pop is part of heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	rec := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	rec.at = 0
	return rec
}

// schedule has Watch look at a record that has changed when time changes it.
func (l *Log) schedule(rec *record) {
	l.unschedule(rec)
	if !rec.next().IsZero() {
		heap.Push(&l.queue, rec)
	}
}

// unschedule removes a record from the queue, if it is there.
func (l *Log) unschedule(rec *record) {
	if rec.at > 0 {
		heap.Remove(&l.queue, rec.at-1)
	}
}

// count records a failure.
func (l *Log) count(rec *record, now time.Time) {
	l.expire(rec, now)
	rec.pending = false
	rec.failures = append(rec.failures, now)
	l.times++
	l.revision++
	if n := len(rec.failures); n > maxFailures || n > 1 && l.times > maxTimes {
		l.cut(rec, 1)
	}
}

// expire forgets old failures of a device.
func (l *Log) expire(rec *record, now time.Time) {
	old := 0
	for old < len(rec.failures) && now.Sub(rec.failures[old]) > memory {
		old++
	}
	l.cut(rec, old)
}

// cut forgets the oldest n failures of a device.
func (l *Log) cut(rec *record, n int) {
	rec.failures = rec.failures[n:]
	l.times -= n
}

// end ends the current failure of a device, if there is one. Of a resource with more devices than are remembered the device is forgotten.
func (l *Log) end(rec *record, now time.Time) {
	if rec.broken.IsZero() {
		return
	}
	if !rec.pending {
		rec.ended = now
	}
	rec.broken, rec.pending = time.Time{}, false
	l.revision++
	if len(l.records) > maxDevices {
		l.forget(rec)
		return
	}
	l.schedule(rec)
}

// forget removes a record.
func (l *Log) forget(rec *record) {
	l.unschedule(rec)
	l.cut(rec, len(rec.failures))
	l.revision++
	delete(l.records, rec.id)
}

// Clear forgets all devices.
func (l *Log) Clear() { *l = Log{records: map[device.ID]*record{}, revision: l.revision + 1} }

// Away records that the plugin is disconnected, so that the health of its devices is unknown.
func (l *Log) Away() { l.away = true }

// Fail records that a device that a pod has been assigned is unhealthy or, if it is not listed, unlisted. It returns whether a
// failure begins, and whether the failure counts from now on.
func (l *Log) Fail(id device.ID, holder device.PodUID, listed bool, now time.Time) (begins, counts bool) {
	rec := l.records[id]
	if rec == nil {
		rec = &record{id: id}
		l.records[id] = rec
	}
	if rec.broken.IsZero() || rec.holder != holder {
		rec.broken, rec.pending, rec.holder, rec.lasting = now, true, holder, false
		begins = true
	}
	if rec.pending && listed {
		l.count(rec, now)
		counts = true
	}
	if !rec.pending {
		rec.listed = listed
	}
	l.revision++
	l.schedule(rec)
	return begins, counts
}

// Knows reports whether Fail would change nothing.
func (l *Log) Knows(id device.ID, holder device.PodUID, listed bool) bool {
	rec := l.records[id]
	return rec != nil && !rec.broken.IsZero() && rec.holder == holder && listed == (rec.listed && !rec.pending)
}

// Pass makes another pod the holder of a device that has failed, if this one is: both have the device.
func (l *Log) Pass(id device.ID, from, to device.PodUID) {
	if rec := l.records[id]; rec != nil && rec.holder == from {
		rec.holder = to
	}
}

// Leave ends the failure of a device that a pod no longer has.
func (l *Log) Leave(id device.ID, pod device.PodUID, now time.Time) {
	if rec := l.records[id]; rec != nil && rec.holder == pod {
		l.end(rec, now)
	}
}

// Recover ends the failure of a device, if there is one.
func (l *Log) Recover(id device.ID, now time.Time) {
	if rec := l.records[id]; rec != nil {
		l.end(rec, now)
	}
}

// Back records that the plugin is connected and has listed its devices. After its absence the failures that are left begin again, unless they are
// lasting. Back reports whether one does.
func (l *Log) Back(now time.Time) (again bool) {
	if !l.away {
		return false
	}
	l.away = false
	for _, rec := range l.records {
		if !rec.broken.IsZero() && !rec.lasting {
			rec.broken, again = now, true // its health meanwhile is unknown
			l.schedule(rec)
		}
	}
	return again
}

// A Kind is why a device is due.
type Kind int

const (
	Unlisted Kind = iota // it has stayed unlisted, and counts as failed from now on
	Lasted               // its failure is lasting
	Repeated             // its failure is lasting, and an earlier one has been reported within the hour
)

// A Due is a device whose failure calls for a report.
type Due struct {
	Kind   Kind
	ID     device.ID
	Holder device.PodUID
	Count  int // failures within the hour
}

// Watch returns the devices that are due, and when the next are; zero: not before a change. active reports whether a pod has not ended. Watch forgets
// old failures. It looks only at devices that time has changed, and at most of them: with more, next has passed.
func (l *Log) Watch(now time.Time, active func(device.PodUID) bool, most int) (due []Due, looked int, next time.Time) {
	for ; looked < most; looked++ {
		if len(l.queue) == 0 || now.Before(l.queue[0].next()) {
			break
		}
		rec := l.queue[0]
		l.expire(rec, now)
		switch {
		case rec.broken.IsZero():
			l.forget(rec)
			continue
		case l.away: // Back begins it again
			l.unschedule(rec)
			continue
		case rec.pending:
			rec.listed = false
			l.count(rec, now)
			due = append(due, Due{Unlisted, rec.id, rec.holder, len(rec.failures)})
		default:
			rec.lasting = true
			if !active(rec.holder) {
				break
			}
			kind := Repeated
			if rec.reportedAt.IsZero() || now.Sub(rec.reportedAt) >= memory {
				kind, rec.reportedAt = Lasted, now
			}
			due = append(due, Due{kind, rec.id, rec.holder, len(rec.failures)})
		}
		l.schedule(rec)
	}
	if len(l.queue) > 0 {
		next = l.queue[0].next()
	}
	return due, looked, next
}

// A Failure is a failure that counts, or has counted.
type Failure struct {
	Listed bool      // the plugin lists the device, as unhealthy
	Ended  time.Time // zero: it lasts
}

// Last returns the failure of a device that lasts or, if there is none, the last one; false: there is none either.
func (l *Log) Last(id device.ID) (f Failure, failed bool) {
	rec := l.records[id]
	if rec == nil {
		return Failure{}, false
	}
	lasts := !rec.broken.IsZero() && !rec.pending
	f.Listed = rec.listed
	if !lasts {
		f.Ended = rec.ended
	}
	return f, lasts || !f.Ended.IsZero()
}

// Revision changes whenever Last may return something else.
func (l *Log) Revision() uint64 { return l.revision }

// Recent returns how often each device has failed within the hour while in use, and when it last failed.
func (l *Log) Recent(now time.Time) map[device.ID]device.Failures {
	recent := make(map[device.ID]device.Failures, len(l.records))
	for id, rec := range l.records {
		var f device.Failures
		for _, at := range rec.failures {
			if now.Sub(at) <= memory {
				f.Count++
				f.Last = at
			}
		}
		recent[id] = f
	}
	return recent
}

// Check returns an error if a count or the queue is wrong, or a pod does not have a device that fails. It is for tests.
func (l *Log) Check(has func(device.ID, device.PodUID) bool) error {
	times := 0
	for id, rec := range l.records {
		times += len(rec.failures)
		switch {
		case !rec.broken.IsZero() && !has(id, rec.holder):
			return fmt.Errorf("device %s fails with pod %s, which does not have it", id, rec.holder)
		case rec.at == 0 && !rec.next().IsZero() && !l.away:
			return fmt.Errorf("device %s is due at %v, and not in the queue", id, rec.next())
		}
	}
	for i, rec := range l.queue {
		if l.records[rec.id] != rec || rec.at != i+1 || rec.next().IsZero() || i > 0 && l.queue.Less(i, (i-1)/2) {
			return fmt.Errorf("device %s is at place %d of the queue, and due at %v", rec.id, i+1, rec.next())
		}
	}
	if times != l.times {
		return fmt.Errorf("%d failures, counted %d", times, l.times)
	}
	return nil
}
