package nri

import (
	"sync"

	"github.com/devmgrd/devmgrd/internal/device"
)

// attempts count how often containers were given their devices without being started, over one connection. A runtime tells
// devmgrd nothing of what fails behind devmgrd's answer: two NRI plugins that set the same thing, another plugin that
// refuses, a device node that the OCI runtime cannot make. The kubelet tries such a container again for ever.
type attempts struct {
	mu  sync.Mutex
	all map[device.Container]*attempt
}

type attempt struct {
	times     int    // in a row
	id        string // the runtime's ID of the newest container
	validated bool   // all NRI plugins had answered about it, and devmgrd had nothing against it
}

// Bounds of attempts: how many in a row are reported first (then each time that their number has doubled), and of how many
// containers they are remembered.
const (
	reportedAttempts = 4
	maxAttempts      = 1024
)

// given notes that a container gets its devices. It returns how many times before it got them without success, and how far the last
// attempt came, if that is worth a report.
func (a *attempts) given(c device.Container, id string) (times int, validated, report bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	one := a.all[c]
	if one == nil {
		if a.all == nil || len(a.all) >= maxAttempts {
			a.all = map[device.Container]*attempt{}
		}
		one = &attempt{}
		a.all[c] = one
	}
	times, validated = one.times, one.validated
	one.times, one.id, one.validated = times+1, id, false
	return times, validated, times >= reportedAttempts && times&(times-1) == 0
}

// passed notes that a container's adjustment was validated.
func (a *attempts) passed(c device.Container, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.all[c]; one != nil && one.id == id {
		one.validated = true
	}
}

// forget ends the count: the container starts, or has a reason of its own.
func (a *attempts) forget(c device.Container) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, c)
}

// forgetPod ends the counts of a pod's containers.
func (a *attempts) forgetPod(uid device.PodUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for c := range a.all {
		if c.Pod == uid {
			delete(a.all, c)
		}
	}
}
