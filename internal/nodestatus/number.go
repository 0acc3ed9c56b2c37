package nodestatus

import (
	"maps"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// figures are what the number of one resource on the Node is made of. In this order:
//
//	due     max( capacity, min( requested, peak ) )                     pods that are bound hold up what the scheduler has seen
//	        and at least what the Node shows, until all pods are listed
//	stable  due, or a higher number from the stabilization window       a fall counts later (stabilizer.go)
//	number  stable, and in the 30 s after an outage of the API server:
//	        min( max( stable, known ), max( known, bound ) )            no fall, and no rise but for pods that are bound
//	        or in the 30 s after devmgrd's start:
//	        min( stable, max( found, bound ) )                          no such rise
//
// The kubelet fails new pods of a resource that it manages too (situation.shared). The number of such a resource is min( bound, capacity ), which a restarting kubelet needs
// for the pods that devmgrd has. If that is 0, the kubelet's capacity with an allocatable of 0 may stay.
type figures struct {
	capacity  int // the View's: usable devices and those in use, and at least the requests of admitted pods
	requested int // by pods that are bound
	bound     int // likewise; 0 until all are listed: some that the state file names may have ended
	peak      int // the most that the Node has shown in the last 30 s
	least     int // the Node's value until all pods are listed, when nothing falls
	known     int // after an outage, the number that others know: devmgrd's latest, or the Node's; negative: none, or there was no outage
	found     int // ceiling for 30 s after devmgrd's start, unless bound pods request more: the value found on the Node, or devmgrd's latest if higher. 0: no ceiling
}

// due is the number that counts now, if nothing else is waited for.
func (f figures) due() int {
	n := max(f.capacity, f.least)
	return max(n, min(f.requested, f.peak))
}

// number is what the Node shows, now that its due number is stable.
func (f figures) number(stable int) int {
	switch {
	case f.known >= 0:
		return min(max(stable, f.known), max(f.known, f.bound))
	case f.found > 0:
		return min(stable, max(f.found, f.bound))
	}
	return stable
}

// wanted returns the values that the Node shows in the end, and when to ask again if nothing changes; zero: never.
func (d *decider) wanted(s situation, now time.Time) (want map[device.ResourceName]int, again time.Time) {
	d.peaks.observe(s.node, d.ours, now)
	if d.found == nil {
		d.found = map[device.ResourceName]int{}
		maps.Copy(d.found, s.node.capacity)
	}
	back, began := s.back.Add(watchDelay), s.began.Add(watchDelay)
	switch {
	case now.Before(back):
		again = back
	case now.Before(began):
		again = began
	}
	d.stable.keep(s.capacity)
	want = make(map[device.ResourceName]int, len(s.capacity))
	for r, n := range s.capacity {
		if s.shared[r] {
			n := min(s.requested[r], n)
			none := n == 0 && s.node.shows(r) && s.node.allocatable[r] == 0 // in effect
			if s.listed && !none {
				want[r] = n
			}
			continue
		}
		f := figures{capacity: n, requested: s.requested[r], peak: d.peaks[r].number, known: -1}
		if s.listed {
			f.bound = s.requested[r]
		} else {
			f.least = s.node.capacity[r]
		}
		latest, written := d.latest[r]
		shown, shows := s.node.capacity[r]
		switch {
		case now.Before(back) && written:
			f.known = latest
		case now.Before(back) && shows:
			f.known = shown
		case !now.Before(back) && now.Before(began) && d.found[r] > 0:
			f.found = max(d.found[r], latest)
		}
		stable, due := d.stable.next(r, f.due(), s.certain, s.node, now)
		want[r], again = f.number(stable), loops.Earliest(again, due)
	}
	return want, again
}
