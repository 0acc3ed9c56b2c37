package allocator

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	// lastingFailure is how long a device in use has to be broken without a break before that counts as lasting: plugins that
	// restart, or a link that comes back, are no reason to end a pod.
	lastingFailure = 10 * time.Second
	// failureMemory is how long a failure is remembered. A device that has cost one pod its life costs no other one that within
	// this time, so that one which comes and goes does not evict in circles.
	failureMemory = time.Hour
	// maxFailures is how many failures of one device are remembered.
	maxFailures = 100
)

// A record is what a device has done while somebody had it.
type record struct {
	broken   time.Time // since when it is; zero: it is not, or nobody has it
	holder   device.PodUID
	lasting  bool        // that it lasts has been told
	failures []time.Time // the newest last
	told     time.Time   // when one of them was last told to be lasting
}

// examineLocked looks which devices that somebody has are broken, after the offer or its list has changed. What a plugin that
// is away would say is not known, so nothing changes then.
func (a *Allocator) examineLocked(r device.ResourceName, p *pool) {
	if !p.offered || p.offer.State != device.Serving || !p.offer.Reported {
		return
	}
	now := time.Now()
	for id, uid := range p.taken {
		i, listed := p.listing.at[id]
		holder := a.pods[uid]
		if holder == nil || listed && p.listing.devices[i].Healthy || !holder.has(r, id) {
			continue
		}
		rec := p.records[id]
		if rec == nil {
			rec = &record{}
			p.records[id] = rec
		}
		if !rec.broken.IsZero() && rec.holder == uid {
			continue
		}
		rec.broken, rec.holder, rec.lasting = now, uid, false
		rec.failures = append(rec.failures, now)
		if len(rec.failures) > maxFailures {
			rec.failures = rec.failures[1:]
		}
		a.metrics.failures.WithLabelValues(string(r)).Inc()
		a.log.Warn("a device in use has failed", "resource", r, "device", id, "pod", holder.demand.Pod.String(), "listed", listed)
		a.herald.Failed(holder.demand.Pod, r, id)
		signal(a.kick) // whether it lasts is looked at in time
	}
	for id, rec := range p.records {
		i, listed := p.listing.at[id]
		if uid, taken := p.taken[id]; rec.broken.IsZero() || taken && uid == rec.holder && !(listed && p.listing.devices[i].Healthy) {
			continue
		}
		rec.broken = time.Time{}
	}
}

// watchFailuresLocked tells which failures have lasted, forgets old ones, and gives when to look again; zero: when an offer
// changes.
func (a *Allocator) watchFailuresLocked(now time.Time) (next time.Time) {
	for r, p := range a.pools {
		for id, rec := range p.records {
			for len(rec.failures) > 0 && now.Sub(rec.failures[0]) > failureMemory {
				rec.failures = rec.failures[1:]
			}
			if uid, taken := p.taken[id]; !taken || uid != rec.holder {
				rec.broken = time.Time{}
			}
			switch due := rec.broken.Add(lastingFailure); {
			case rec.broken.IsZero():
				if len(rec.failures) == 0 && now.Sub(rec.told) > failureMemory {
					delete(p.records, id)
				}
			case rec.lasting:
			case now.Before(due):
				if next.IsZero() || due.Before(next) {
					next = due
				}
			default:
				rec.lasting = true
				holder := a.pods[rec.holder]
				if holder == nil || !holder.wanted {
					continue
				}
				again := !rec.told.IsZero() && now.Sub(rec.told) < failureMemory
				if again {
					a.log.Warn("a device keeps failing; it costs no further pod its life for now", "resource", r, "device", id,
						"pod", holder.demand.Pod.String(), "failures", len(rec.failures))
					continue
				}
				rec.told = now
				a.herald.FailedForLong(holder.demand.Pod, r, id)
			}
		}
	}
	return next
}

// failuresOf gives how often a device has failed lately while somebody had it, and when it last did.
func (p *pool) failuresOf(id device.ID, now time.Time) (n int, last time.Time) {
	rec := p.records[id]
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
