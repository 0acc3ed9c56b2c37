package allocator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A grant is what a plugin answered when it was asked for devices. It holds for one boot of the machine: device nodes are
// numbered anew at the next one, and files that the plugin has made in a tmpfs are gone. And it holds only as long as the
// host has what it names. Where it does not hold the plugin is asked once more for the same devices, and its answer
// replaces the old one before the container starts. While the plugin is away the container waits.
//
// A pod none of whose containers has run with the devices may as well have others: it is planned again where its plugin
// fails it, so that a device that the host lacks costs no pod its start while others are free.

// Why a container's devices have to be granted again.
type lapse int

const (
	otherBoot lapse = iota // the grant is of another boot
	unusable               // it could not be applied
)

// served reports whether each container has what it asks for, in a form that can be injected.
func (p *pod) served() bool { return p.complete() && len(p.lapsed) == 0 }

// lapse notes that a container's grant does not hold.
func (p *pod) lapse(container string, why lapse) {
	if p.lapsed == nil {
		p.lapsed = map[string]lapse{}
	}
	p.lapsed[container] = why
}

// maxRegrants is how often a plugin may fail a pod that has not run since the boot before the pod may have other devices.
const maxRegrants = 3

// regrantLocked has the lapsed grants of a pod given again.
func (a *Allocator) regrantLocked(ctx context.Context, p *pod) {
	movable := !p.ran && !a.running[p.demand.Pod.UID].mayRun()
	failed := p.tries >= maxRegrants && p.wait.Reason != device.StoreUnavailable
	if movable && (failed || slices.Contains(slices.Collect(maps.Values(p.lapsed)), unusable)) {
		a.moveLocked(p, p.wait)
		return
	}
	if no, lasting := a.regrantable(p); no != nil {
		left := time.Until(lasting)
		if movable && !lasting.IsZero() && left <= 0 {
			a.moveLocked(p, no.Wait)
			return
		}
		a.parkLocked(p, no.Wait, max(0, left))
		return
	}
	p.phase = allocating
	demand, has, lapsed, at := p.demand, p.assigned, maps.Clone(p.lapsed), map[device.ResourceName]int64{}
	for _, as := range has {
		for _, s := range as.Shares {
			at[s.Resource] = a.pools[s.Resource].listing.newest // before the call: the list may change meanwhile
		}
	}
	a.work.Go(func() {
		got, err := a.callPluginsAgain(ctx, demand.Pod, has, lapsed, at)
		if err == nil {
			err = a.save(demand, got)
		}
		a.regranted(p, got, err)
	})
}

// regrantable returns why a pod's plugins cannot be asked again for its devices, or nil. If a plugin does not list a device,
// lasting is when that counts as lasting: many plugins list no devices, or some, for a moment after their start.
func (a *Allocator) regrantable(p *pod) (no *device.Refusal, lasting time.Time) {
	for _, as := range p.assigned {
		if _, lapsed := p.lapsed[as.Container.Name]; !lapsed {
			continue
		}
		for _, s := range as.Shares {
			pool := a.pools[s.Resource]
			if no := (&draft{pool: pool}).unavailable(s.Resource); no != nil {
				return no, time.Time{}
			}
			for _, id := range s.IDs {
				if _, listed := pool.listing.at[id]; !listed {
					return device.Refuse(device.DeviceUnhealthy, nil, "the device plugin of %s does not list device %s, which is assigned to the pod", s.Resource, id),
						pool.offer.Since.Add(lastingFailure)
				}
			}
		}
	}
	return nil, time.Time{}
}

// callPluginsAgain returns the assignments of a pod with new grants for the lapsed containers. It holds no lock.
func (a *Allocator) callPluginsAgain(ctx context.Context, pod device.Pod, has []device.Assignment, lapsed map[string]lapse, at map[device.ResourceName]int64) ([]device.Assignment, error) {
	all := slices.Clone(has)
	var granted device.Grants // to the pod
	for i, as := range all {
		if _, is := lapsed[as.Container.Name]; !is {
			granted.Add(as.Shares...)
			continue
		}
		var container device.Grants
		shares := make([]device.Share, len(as.Shares))
		for j, s := range as.Shares {
			grant, err := a.plugins.Allocate(ctx, pod, as.Container, s.Resource, s.IDs)
			a.answered(s.Resource, s.IDs, err)
			if err != nil {
				return nil, err
			}
			shares[j] = a.share(s.Resource, s.IDs, grant, at[s.Resource])
			shares[j].Why = s.Why
			container.Add(shares[j])
			granted.Add(shares[j])
			if no := cmp.Or(container.CheckContainer(as.Container.Name), granted.CheckPod()); no != nil {
				return nil, no
			}
		}
		all[i].Shares = shares
	}
	return all, nil
}

// regranted ends an attempt to have grants given again. After a failed commit either grant may be in the state file; both
// name the same devices.
func (a *Allocator) regranted(p *pod, got []device.Assignment, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		p.tries++
		a.failLocked(p, waitFor(err), min(firstPause<<min(p.tries-1, 8), lastPause))
		return
	}
	lapsed := p.lapsed
	p.lapsed = nil
	for _, as := range got {
		for _, s := range as.Shares {
			a.withholdLocked(s.Resource) // the plugin may have stopped listing the devices meanwhile
		}
	}
	a.grantedLocked(p, got, func(container string) bool { _, was := lapsed[container]; return was })
	a.log.Info("devices granted again", "pod", p.demand.Pod.String(), "devices", summary(got))
}

// moveLocked has a pod planned again that has not run with its devices. The runtime may have containers of it that were created and
// never started, as after a power cut: they are barred first, as when devices are released (writer.go), since they were created with
// the devices that the pod gives back.
func (a *Allocator) moveLocked(p *pod, why device.Wait) {
	idle := maps.Clone(a.running[p.demand.Pod.UID])
	if len(idle) == 0 {
		a.replanLocked(p, why)
		return
	}
	if left := time.Until(a.syncedAt.Add(idleGrace)); left > 0 {
		a.parkLocked(p, why, left)
		return
	}
	p.phase = allocating
	a.work.Go(func() {
		proven := a.proveIdle(idle)
		a.mu.Lock()
		defer a.mu.Unlock()
		if !p.active || p.newDemand != nil || !a.running[p.demand.Pod.UID].bar(proven) {
			a.failLocked(p, why, firstPause)
			return
		}
		a.replanLocked(p, why)
	})
}

// reviveLocked tries again a pod that waits for its devices to be granted again: a container that kept it from having others may be
// gone, or be idle.
func (a *Allocator) reviveLocked(p *pod) {
	if p != nil && p.active && p.phase == parked && len(p.lapsed) > 0 {
		a.queueLocked(p)
	}
}

// replanLocked takes a pod's devices back, and has it planned again when that is on disk.
func (a *Allocator) replanLocked(p *pod, why device.Wait) {
	a.log.Warn("pod is given other devices", "pod", p.demand.Pod.String(), "devices", summary(p.assigned), "reason", why.Reason, "err", why.Message)
	p.doubt = hold{}
	for _, as := range p.assigned {
		for _, s := range as.Shares {
			p.doubt[s.Resource] = append(p.doubt[s.Resource], s.IDs...)
		}
	}
	p.assigned, p.lapsed, p.fresh, p.preparations, p.tries = nil, nil, nil, nil, 0
	a.publishLocked(p)
	a.parkLocked(p, why, 0)
	a.saveLaterLocked(p)
	a.scheduleWriteLocked(0)
}

// Refused notes why a container was refused that has its devices. The grant has lapsed if the host lacks what it names: then
// the pod waits until the grant has been given again.
func (a *Allocator) Refused(c device.Container, why device.Wait, lapsed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[c.Pod]
	if p == nil || !p.active || p.phase != settled {
		return
	}
	if _, has := p.of(c.Name); !has {
		return
	}
	if lapsed {
		a.unusableLocked(p, c.Name, why)
		return
	}
	news := p.refusal != why
	p.refusal, p.refusedContainer = why, c.Name
	a.feed.notify()
	if news {
		a.notifier.Waiting(p.demand.Pod, why)
	}
}

// unusableLocked has a container's grant given again after a pause that doubles with each failure in a row. The pod waits
// meanwhile. The devices are chosen last for others.
func (a *Allocator) unusableLocked(p *pod, container string, why device.Wait) {
	p.lapse(container, unusable)
	as, _ := p.of(container)
	for _, s := range as.Shares {
		for _, id := range s.IDs {
			a.pools[s.Resource].refuse(id)
		}
	}
	p.failures++
	a.parkLocked(p, why, min(firstPause<<min(p.failures-1, 8), lastPause))
}

// uncreatedLocked looks at a container that has ended before it started: the runtime has failed to create it, and said so to
// the kubelet only. Where a remembered grant names CDI devices these may be the cause: their definitions are the plugin's
// files, and are looked up by the runtime alone.
func (a *Allocator) uncreatedLocked(p *pod, l *runningContainer) {
	as, has := p.of(l.name)
	if l.started || l.fresh || !has || p.phase != settled {
		return
	}
	if slices.ContainsFunc(as.Shares, func(s device.Share) bool { return len(s.Grant.CDI) > 0 }) {
		a.unusableLocked(p, l.name, device.Wait{Reason: device.HostDeviceMissing, Message: "container " + l.name +
			" could not be created; the CDI devices that its plugin granted may no longer be defined, so devmgrd asks the plugin again"})
	}
}
