package nodestatus

import (
	"slices"
	"sync"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A resource is contested when another writer has changed its published capacity contentionLimit times, each time within
// contentionWindow of the last. A single change is an accident, or a recreated Node. A kubelet that manages the resource too
// writes its own value every few seconds.
const (
	contentionLimit  = 3
	contentionWindow = time.Minute
)

// contention records which resources are contested.
type contention struct {
	now func() time.Time

	mu          sync.Mutex
	overwritten map[device.ResourceName]overwrites
}

type overwrites struct {
	times int
	last  time.Time
}

// record records a change by another writer and returns their number so far.
func (v *contention) record(r device.ResourceName) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.overwritten == nil {
		v.overwritten = map[device.ResourceName]overwrites{}
	}
	one := v.overwritten[r]
	if v.now().Sub(one.last) > contentionWindow {
		one = overwrites{}
	}
	one = overwrites{one.times + 1, v.now()}
	v.overwritten[r] = one
	return one.times
}

// contested returns the contested resources, ascending.
func (v *contention) contested() []device.ResourceName {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []device.ResourceName
	for r, one := range v.overwritten {
		switch {
		case v.now().Sub(one.last) > contentionWindow:
			delete(v.overwritten, r)
		case one.times >= contentionLimit:
			all = append(all, r)
		}
	}
	slices.Sort(all)
	return all
}

// watchDelay is how long the watches of others may be behind. After a fall of the capacity the scheduler may still bind pods by the higher
// value for as long. After an outage of the API server, the scheduler's watch of pods and the kubelet's may be back before their watches of
// the Node: the published values are held for as long.
const watchDelay = 30 * time.Second

// peaks are the highest values that the Node has recently shown. Up to the peak, pods that are bound and not yet admitted
// hold up the capacity: the scheduler has bound them by that value, and with a lower one the kubelet would fail them
// permanently. They do not hold it above the peak: a pod that was bound past the scheduler and requests more is the kubelet's
// to reject.
type peaks map[device.ResourceName]peak

type peak struct {
	number int
	until  time.Time // when the Node last showed it
}

// observe records what the Node shows. A value that another writer has raised above devmgrd's does not count.
func (all peaks) observe(seen nodeState, ours quantities, now time.Time) {
	for r, n := range seen.allocatable {
		if mine := ours[r]; mine != nil {
			n = min(n, *mine)
		}
		if was, known := all[r]; !known || n >= was.number || now.Sub(was.until) > watchDelay {
			all[r] = peak{n, now}
		}
	}
}

// hold returns want, or the requests of bound pods where they are higher, up to the peak.
func (all peaks) hold(want, bound map[device.ResourceName]int) map[device.ResourceName]int {
	held := make(map[device.ResourceName]int, len(want))
	for r, n := range want {
		held[r] = max(n, min(bound[r], all[r].number))
	}
	return held
}
