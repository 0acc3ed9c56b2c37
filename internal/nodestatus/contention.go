package nodestatus

import (
	"slices"
	"sync"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A number of ours that somebody else has changed so often, each time within quiet of the last, is contested. One change is
// an accident, or a Node that was recreated. A kubelet that manages the resource too writes its number every few seconds.
const (
	contentionLimit  = 3
	contentionWindow = time.Minute
)

// contention remember who is contested.
type contention struct {
	now func() time.Time

	mu          sync.Mutex
	overwritten map[device.ResourceName]overwrites
}

type overwrites struct {
	times int
	last  time.Time
}

// record notes that our number has been changed. It returns how often by now.
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

// contested returns the resources whose numbers somebody else keeps changing, ascending.
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
