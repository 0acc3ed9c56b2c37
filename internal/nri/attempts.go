package nri

import (
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// attempts counts for each container, over one connection, how often devmgrd answered without a start. The runtime
// does not report failures after devmgrd's answer: two NRI plugins that set the same entry, another plugin that refuses, a device
// node that the OCI runtime cannot create. The kubelet retries such a container for ever.
type attempts struct {
	mu  locks.Mutex[locks.Leaf]
	all map[device.Container]*attempt
}

type attempt struct {
	times     int      // in a row
	id        string   // the runtime's ID of the newest container
	validated bool     // all NRI plugins had answered about it, and devmgrd had nothing against it
	cdi       []string // the CDI devices that it was given
}

// reportedAttempts is the number of attempts in a row after which the first report comes; the next ones come after 8, 16 and so on. maxAttempts bounds the remembered containers.
const (
	reportedAttempts = 4
	maxAttempts      = 1024
)

// given counts an answer with a container's devices, or with none. It returns the number of earlier answers without a start, whether the last one
// passed validation, and whether to report that.
func (a *attempts) given(c device.Container, id string, cdi []string) (times int, validated, report bool) {
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
	one.times, one.id, one.validated, one.cdi = times+1, id, false, cdi
	return times, validated, times >= reportedAttempts && times&(times-1) == 0
}

// passed records that a container's adjustment was validated.
func (a *attempts) passed(c device.Container, id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.all[c]; one != nil && one.id == id {
		one.validated = true
	}
}

// unstarted returns the CDI devices of a container that was given its devices and has not started.
func (a *attempts) unstarted(c device.Container, id string) (cdi []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.all[c]; one != nil && one.id == id {
		cdi = one.cdi
	}
	return cdi
}

// former returns, once, the former container of a name if it has not started, with its CDI devices; empty: there is none.
func (a *attempts) former(c device.Container, id string) (former string, cdi []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.all[c]; one != nil && one.id != id && c.Name != "" {
		former, cdi = one.id, one.cdi
		one.id, one.cdi = "", nil
	}
	return former, cdi
}

// explain ends a container's count: it is refused for a known reason.
func (a *attempts) explain(c device.Container) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if one := a.all[c]; one != nil {
		one.times, one.cdi = 0, nil
	}
}

// forget ends a container's count: it starts.
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
