package nodestatus

import (
	"slices"
	"sync"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A number of ours that somebody else has changed so often, each time within quiet of the last, is contested. One change is
// an accident, or a Node that was made anew. A kubelet that manages the resource too writes its number every few seconds.
const (
	tolerated = 3
	quiet     = time.Minute
)

// rivals remember who is contested.
type rivals struct {
	now func() time.Time

	mu  sync.Mutex
	met map[device.ResourceName]rivalry
}

type rivalry struct {
	times int
	last  time.Time
}

// meet notes that our number has been changed. It gives how often by now.
func (v *rivals) meet(r device.ResourceName) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.met == nil {
		v.met = map[device.ResourceName]rivalry{}
	}
	one := v.met[r]
	if v.now().Sub(one.last) > quiet {
		one = rivalry{}
	}
	one = rivalry{one.times + 1, v.now()}
	v.met[r] = one
	return one.times
}

// contested gives the resources whose numbers somebody else keeps changing, ascending.
func (v *rivals) contested() []device.ResourceName {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []device.ResourceName
	for r, one := range v.met {
		switch {
		case v.now().Sub(one.last) > quiet:
			delete(v.met, r)
		case one.times >= tolerated:
			all = append(all, r)
		}
	}
	slices.Sort(all)
	return all
}
