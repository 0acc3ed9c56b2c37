package podstatus

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	// patience is how long a wait must last before it is shown: many pods wait for a moment only.
	patience = 5 * time.Second
	// recovery is how long devices must be healthy before a pod's condition is true again.
	recovery = 30 * time.Second
)

// Values of a condition's status.
const (
	yes = "True"
	no  = "False"
)

// A past is what is known of a pod from former looks.
type past struct {
	wait   device.Wait // the last wait that an event told of
	waits  time.Time   // since when the pod has waited; zero: it does not
	toldAt time.Time   // since when for that wait
	ready  time.Time   // since when it has not waited; zero: it waits
	waited bool        // it has been seen waiting
	clear  time.Time   // since when its devices are known to be healthy; zero: they are not
}

// look adds a look at the pod.
func (h *past) look(p *device.PodStatus, now time.Time) {
	switch {
	case p.State != device.Waiting:
		h.wait, h.waits, h.toldAt = device.Wait{}, time.Time{}, time.Time{}
		if h.ready.IsZero() {
			h.ready = now
		}
	case p.Told != (device.Wait{}):
		h.ready, h.waited = time.Time{}, true
		if h.waits.IsZero() {
			h.waits = now
		}
		if !h.wait.Same(p.Told) {
			h.wait, h.toldAt = p.Told, now
		}
	}
	switch {
	case !p.HealthKnown || p.Fault != nil && p.Fault.Ended.IsZero():
		h.clear = time.Time{}
	case h.clear.IsZero():
		h.clear = now
	}
}

// judge returns the conditions that a pod does not show and should, and when that may change if nothing else does; zero: never. counts is the text
// of its devices.
func judge(p *device.PodStatus, counts string, shown device.ShownPod, h past, now time.Time) (write []device.PodCondition, due time.Time) {
	add := func(c device.PodCondition, at time.Time) {
		switch is := shown.Condition(c.Type); {
		case shows(is, c, p.Told.InUse):
		case now.Before(at):
			due = loops.Earliest(due, at)
		default:
			c.Since = now
			if is.Status == c.Status {
				c.Since = is.Since
			}
			write = append(write, c)
		}
	}
	switch is := shown.Condition(device.DevicesAssigned); {
	case p.State == device.Ready && is.Status == no && !h.waited: // a container of it may have been refused before devmgrd's start
		add(device.PodCondition{Type: device.DevicesAssigned, Status: yes, Reason: "DevicesAssigned", Message: counts}, h.ready.Add(recovery))
	case p.State == device.Ready:
		add(device.PodCondition{Type: device.DevicesAssigned, Status: yes, Reason: "DevicesAssigned", Message: counts}, now)
	case p.State == device.Waiting && p.Told != (device.Wait{}):
		since := h.waits
		if is.Status == no {
			since = h.toldAt
		}
		add(device.PodCondition{Type: device.DevicesAssigned, Status: no, Reason: string(p.Told.Reason), Message: device.ClipTo(p.Told.Message, device.MaxPodCondition)}, since.Add(patience))
	}
	if len(p.Assignments) == 0 {
		return write, due
	}
	is := shown.Condition(device.DevicesHealthy)
	healed := time.Time{} // when a failure that has ended no longer counts
	if p.Fault != nil && !p.Fault.Ended.IsZero() {
		healed = p.Fault.Ended.Add(recovery)
	}
	switch {
	case p.Fault != nil && healed.IsZero(), now.Before(healed) && is.Status == yes:
		add(device.PodCondition{Type: device.DevicesHealthy, Status: no, Reason: string(p.Fault.Kind), Message: device.ClipTo(faultText(*p.Fault), device.MaxPodCondition)}, now)
		due = loops.Earliest(due, healed)
	case p.HealthKnown:
		if is.Status == no {
			if at := h.clear.Add(recovery); at.After(healed) {
				healed = at
			}
		}
		add(device.PodCondition{Type: device.DevicesHealthy, Status: yes, Reason: "DevicesHealthy"}, healed)
	}
	return write, due
}

// shows reports whether a condition needs no write. How many devices are free may differ.
func shows(is, c device.PodCondition, busy bool) bool {
	a, b := device.Wait{Reason: device.Reason(is.Reason), Message: is.Message, InUse: busy}, device.Wait{Reason: device.Reason(c.Reason), Message: c.Message, InUse: busy}
	return is.Status == c.Status && (is.Reason == c.Reason && is.Message == c.Message || c.Type == device.DevicesAssigned && c.Status == no && a.Same(b))
}

// faultText returns a fault in words.
func faultText(f device.Fault) string {
	text := ""
	switch f.Kind {
	case device.FaultPluginLost:
		return fmt.Sprintf("the device plugin of %s has been away for longer than its grace period", f.Resource)
	case device.FaultUnlisted:
		text = fmt.Sprintf("the device plugin of %s has stopped listing device %s", f.Resource, device.QuoteID(f.ID))
	default:
		text = fmt.Sprintf("device %s of %s is unhealthy", device.QuoteID(f.ID), f.Resource)
	}
	if f.Others > 0 {
		text += fmt.Sprintf("; so are %d more of the pod's devices, or not listed", f.Others)
	}
	return text
}

// countsOf returns how many devices of each resource a pod has. Its containers may share some.
func countsOf(all []device.Assignment) string {
	devices := map[device.ResourceName]map[device.ID]bool{}
	for _, s := range device.Shares(all) {
		of := lists.Inner(devices, s.Resource)
		for _, id := range s.IDs {
			of[id] = true
		}
	}
	var parts []string
	for _, r := range slices.Sorted(maps.Keys(devices)) {
		parts = append(parts, fmt.Sprintf("%d %s", len(devices[r]), r))
	}
	return device.ClipTo(strings.Join(parts, ", "), device.MaxPodCondition)
}
