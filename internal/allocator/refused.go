package allocator

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A refused container has devices and cannot start with them: the hook has found why, or the runtime could not create it. Between two attempts of the
// kubelet its plugin may be asked again, and the pod may be planned again, but it goes on waiting for the same reason until the container has started.
type refused struct {
	container string
	why       device.Wait
	since     time.Time // the first refusal for that reason
	times     int       // refusals for that reason, in a row
	devices   ledger.Devices
}

// wait returns what readers see.
func (r *refused) wait() device.Wait {
	w := r.why
	if r.times > 1 {
		w.Message += fmt.Sprintf("; refused %d times", r.times)
	}
	return w
}

// sameDevices reports whether these assignments have the devices with which the container was refused.
func (r *refused) sameDevices(all []device.Assignment) bool {
	return maps.EqualFunc(ledger.DevicesOf(all), r.devices, slices.Equal)
}

// Refused records why a container with devices was refused. If the host lacks what the grant names, lapsed is set and the pod
// waits for a new grant.
func (a *Allocator) Refused(c device.Container, why device.Wait, lapsed bool) {
	a.mu.do(func() { a.notCreatedLocked(c, why, lapsed) })
}

func (a *Allocator) notCreatedLocked(c device.Container, why device.Wait, lapsed bool) {
	p := a.pods[c.Pod]
	if p == nil || p.phase != settled {
		return
	}
	if _, has := p.of(c.Name); !has {
		return
	}
	if lapsed {
		a.unusableLocked(p, c.Name, why, ledger.Lacking)
		return
	}
	if a.refusedLocked(p, c.Name, why) {
		a.cfg.Notifier.Waiting(p.demand.Pod, why)
	}
}

// refusedLocked records a refusal, and reports whether it differs from the last one.
func (a *Allocator) refusedLocked(p *pod, container string, why device.Wait) (news bool) {
	before := p.refused
	p.refused = &refused{container, why, time.Now(), 1, ledger.DevicesOf(p.assigned)}
	if before != nil && before.why.Reason == why.Reason {
		p.refused.since, p.refused.times = before.since, before.times+1
	}
	a.snapshot = nil
	a.changedLocked()
	return before == nil || before.why != why
}

// refuseLocked records what is known against the devices of a request.
func (a *Allocator) refuseLocked(s device.Share, why string, found ledger.Finding) {
	now := time.Now()
	for _, id := range s.IDs {
		if before := a.ledger.Resources[s.Resource].Refuses(id); a.ledger.Refuse(s.Resource, id, len(s.IDs), device.Clip(why), found, now) {
			if !before {
				a.cfg.Notifier.DeviceRefused(s.Resource, id, why)
			}
			a.reconsiderLocked(s.Resource)
		}
	}
}

// reconsiderLocked has the planning loop bring a resource's suspensions up to date.
func (a *Allocator) reconsiderLocked(r device.ResourceName) {
	delete(a.suspensionsDue, r)
	loops.Signal(a.kick)
}

// acceptedLocked records that a container has started. The start of another container says nothing of the one that was refused.
func (a *Allocator) acceptedLocked(p *pod, container string) {
	if as, has := p.of(container); has {
		for _, s := range as.Shares {
			if a.ledger.Start(s.Resource, s.IDs) {
				a.reconsiderLocked(s.Resource)
			}
		}
	}
	if p.refused != nil && p.refused.container == container {
		p.refused, p.failures, a.snapshot = nil, 0, nil
		a.changedLocked()
	}
}

// unusableLocked renews a container's grant after a pause that doubles with each consecutive failure, whatever the devices. The pod waits
// meanwhile. Other pods get these devices last.
func (a *Allocator) unusableLocked(p *pod, container string, why device.Wait, found ledger.Finding) {
	p.lapse(container, unusable)
	as, _ := p.of(container)
	if len(as.Shares) > 1 { // any of them may be the cause
		found = ledger.Suspected
	}
	for _, s := range as.Shares {
		a.refuseLocked(s, why.Message, found)
	}
	p.failures++
	a.parkLocked(p, why, loops.Doubled(firstPause, lastPause, p.failures-1)) // it compares with the last refusal
	a.refusedLocked(p, container, why)
}

// uncreatedLocked examines a container that had devices and ended before it started: the runtime could not create it, and reported why only
// to the kubelet. If it has CDI devices, these may be the cause: only the runtime looks up their definitions, in the plugin's files. The plugin
// of an old grant is asked again. lacks is what the host lacks of them; empty: not known.
func (a *Allocator) uncreatedLocked(p *pod, l *containers.Container, lacks string) {
	as, has := p.of(l.Name)
	if l.Started || l.Barred || !l.Stamped || !has || p.phase != settled || p.sibling(as, a.running[p.demand.Pod.UID].Runs) {
		return
	}
	var names []string
	for _, s := range as.Shares {
		names = append(names, s.Grant.CDINames()...)
	}
	if len(names) == 0 {
		return
	}
	why := device.Wait{Reason: device.HostDeviceMissing, Message: fmt.Sprintf("container %s could not be created: %s", l.Name, lacks)}
	found := ledger.Lacking
	if lacks == "" { // the container's command may be wrong
		found = ledger.Suspected
		why.Message = fmt.Sprintf("container %s could not be created: the kubelet's event Failed has the container runtime's error. Its plugin granted the CDI devices %s", l.Name, device.ClipTo(strings.Join(names, ", "), 256))
	}
	switch {
	case !l.Fresh:
		a.unusableLocked(p, l.Name, why, found)
	case a.refusedLocked(p, l.Name, why):
		a.cfg.Notifier.Waiting(p.demand.Pod, why)
	}
}
