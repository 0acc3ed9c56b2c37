package failures

import (
	"iter"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
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
	// maxFailures is the number of failures remembered for one device.
	maxFailures = 100
)

// A Log is the failures of one resource's devices while pods had them.
type Log struct {
	records map[device.ID]*record
	away    bool // the plugin has been disconnected since the last Settle
}

// New returns an empty Log.
func New() *Log { return &Log{records: map[device.ID]*record{}} }

// A record is the failures of a device while pods had it.
type record struct {
	broken     time.Time // start of the current failure; zero: none, or no pod has the device
	pending    bool      // the failure does not count yet: the device has been unlisted for less than unlistedGrace
	listed     bool      // the plugin listed the device when it last failed
	ended      time.Time // end of the last failure that counted; zero: none has ended
	holder     device.PodUID
	lasting    bool        // the failure has been reported as lasting
	failures   []time.Time // the newest last
	reportedAt time.Time   // when a failure was last reported as lasting
}

// count records a failure.
func (rec *record) count(now time.Time) {
	rec.pending = false
	rec.failures = append(rec.failures, now)
	if len(rec.failures) > maxFailures {
		rec.failures = rec.failures[1:]
	}
}

// end ends the current failure, if there is one.
func (rec *record) end(now time.Time) {
	if !rec.broken.IsZero() && !rec.pending {
		rec.ended = now
	}
	rec.broken, rec.pending = time.Time{}, false
}

// Away records that the plugin is disconnected, so that the health of its devices is unknown.
func (l *Log) Away() { l.away = true }

// Fail records that a device that a pod has been assigned is unhealthy or, if it is not listed, unlisted. It returns whether a
// failure begins, and whether the failure counts from now on.
func (l *Log) Fail(id device.ID, holder device.PodUID, listed bool, now time.Time) (begins, counts bool) {
	rec := l.records[id]
	if rec == nil {
		rec = &record{}
		l.records[id] = rec
	}
	if rec.broken.IsZero() || rec.holder != holder {
		rec.broken, rec.pending, rec.holder, rec.lasting = now, true, holder, false
		begins = true
	}
	if rec.pending && listed {
		rec.count(now)
		counts = true
	}
	if !rec.pending {
		rec.listed = listed
	}
	return begins, counts
}

// Pass makes another pod the holder of a device that has failed, if this one is: both have the device.
func (l *Log) Pass(id device.ID, from, to device.PodUID) {
	if rec := l.records[id]; rec != nil && rec.holder == from {
		rec.holder = to
	}
}

// Settle ends the failures that no longer last, after a list of a connected plugin. lasts reports whether a pod still has a
// device and the device is still failed. After an absence of the plugin the failures that are left begin again, unless they
// are lasting. Settle reports whether one does.
func (l *Log) Settle(now time.Time, lasts func(device.ID, device.PodUID) bool) (again bool) {
	for id, rec := range l.records {
		switch {
		case rec.broken.IsZero():
		case !lasts(id, rec.holder):
			rec.end(now)
		case l.away && !rec.lasting:
			rec.broken = now // its health meanwhile is unknown
			again = true
		}
	}
	l.away = false
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

// A State is what Watch has to know of the devices and pods.
type State struct {
	Current bool                                     // the plugin is connected, and has listed its devices
	Has     func(device.ID, device.PodUID) bool      // whether the pod has the device
	Pod     func(device.PodUID) (known, active bool) // what the allocator knows of the pod
}

// Watch returns the devices that are due, and when the next may be; zero: not before a change. It forgets old failures.
func (l *Log) Watch(now time.Time, s State) (due []Due, next time.Time) {
	wait := func(until time.Time) {
		next = loops.Earliest(next, until)
	}
	for id, rec := range l.records {
		for len(rec.failures) > 0 && now.Sub(rec.failures[0]) > memory {
			rec.failures = rec.failures[1:]
		}
		if !s.Has(id, rec.holder) {
			rec.end(now)
		}
		known, active := s.Pod(rec.holder)
		if rec.pending && s.Current {
			counts := rec.broken.Add(unlistedGrace)
			if now.Before(counts) {
				wait(counts)
				continue
			}
			if known {
				rec.listed = false
				rec.count(now)
				due = append(due, Due{Unlisted, id, rec.holder, len(rec.failures)})
			}
		}
		switch lasting := rec.broken.Add(Lasting); {
		case rec.broken.IsZero():
			if len(rec.failures) == 0 && now.Sub(rec.reportedAt) > memory {
				delete(l.records, id)
			}
		case rec.lasting, !s.Current: // Settle begins it again when the plugin is back
		case now.Before(lasting):
			wait(lasting)
		default:
			rec.lasting = true
			if !active {
				continue
			}
			if !rec.reportedAt.IsZero() && now.Sub(rec.reportedAt) < memory {
				due = append(due, Due{Repeated, id, rec.holder, len(rec.failures)})
				continue
			}
			rec.reportedAt = now
			due = append(due, Due{Lasted, id, rec.holder, len(rec.failures)})
		}
	}
	return due, next
}

// A Failure is a failure that counts, or has counted.
type Failure struct {
	Listed bool      // the plugin lists the device, as unhealthy
	Ended  time.Time // zero: it lasts
}

// Failed yields the devices with the failure that lasts or, if there is none, the last one.
func (l *Log) Failed() iter.Seq2[device.ID, Failure] {
	return func(yield func(device.ID, Failure) bool) {
		for id, rec := range l.records {
			f := Failure{Listed: rec.listed}
			if rec.broken.IsZero() || rec.pending {
				f.Ended = rec.ended
			}
			if (!f.Ended.IsZero() || !rec.broken.IsZero() && !rec.pending) && !yield(id, f) {
				return
			}
		}
	}
}

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
