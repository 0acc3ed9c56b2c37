package allocator

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/failures"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A grant is a plugin's answer to Allocate. A grant holds for one boot of the machine: device nodes are
// renumbered at the next boot, and files that the plugin has created in a tmpfs are gone. A grant also holds only while the
// host has the files and devices that it names. Otherwise devmgrd asks the plugin again for the same devices, and the answer
// replaces the old grant before the container starts. While the plugin is away the container waits.
//
// A pod whose containers have not run since the boot may get others: it is planned again where its plugin
// fails, so that a device missing on the host does not block the pod while others are free.

// A lapse is why a container's grant no longer holds.
type lapse int

const (
	otherBoot lapse = iota // the grant is of another boot
	unusable               // it could not be applied
)

// served reports whether each container has its devices, with a grant that can be injected.
func (p *pod) served() bool { return p.complete() && len(p.lapsed) == 0 }

// lapse records that a container's grant no longer holds.
func (p *pod) lapse(container string, why lapse) {
	lists.Put(&p.lapsed, container, why)
}

// maxRegrants is how often a plugin may fail a pod that has not run since the boot before the pod may get other devices.
const maxRegrants = 3

// regrantLocked renews the lapsed grants of a pod.
func (a *Allocator) regrantLocked(ctx context.Context, p *pod) {
	if p.preparing() {
		a.parkLocked(p, p.wait, 0) // the end of the call revives the pod
		return
	}
	running := a.running[p.demand.Pod.UID]
	starting := max(0, time.Until(running.InjectedLast().Add(idleGrace)))               // so long its idle containers may be about to start
	movable := !p.ran && p.departure.failed == "" && !running.MayRun() && starting == 0 // a pod whose release has failed had ended
	failed := p.tries >= maxRegrants && p.wait.Reason != device.StoreUnavailable
	if movable && (failed || slices.Contains(slices.Collect(maps.Values(p.lapsed)), unusable)) {
		a.moveLocked(p, p.wait)
		return
	}
	if no, lasting := a.regrantableLocked(p); no != nil {
		left := max(0, time.Until(lasting))
		if movable && !lasting.IsZero() && left == 0 {
			a.moveLocked(p, no.Wait)
			return
		}
		a.parkLocked(p, no.Wait, cmp.Or(left, starting))
		return
	}
	a.enterLocked(p, allocating)
	demand, lapsed := p.demand, maps.Clone(p.lapsed)
	all := slices.Clone(p.assigned)
	for i, as := range all {
		if _, is := lapsed[as.Container.Name]; !is {
			continue
		}
		all[i].Shares = slices.Clone(as.Shares)
		for j, s := range as.Shares {
			all[i].Shares[j].At = a.ledger.Resources[s.Resource].Listing().Newest() // before the call: the list may change meanwhile
		}
	}
	a.work.Go(func() {
		got, err := a.callPlugins(ctx, demand.Pod, all, func(container string) bool { _, is := lapsed[container]; return is })
		if err == nil {
			err = a.save(demand, got)
		}
		a.regranted(p, got, err)
	})
}

// regrantableLocked returns why a pod's plugins cannot be asked again for its devices, or nil. If a plugin does not list a device,
// lasting is when its absence counts as lasting: many plugins list no devices, or only some, for a moment after their start.
func (a *Allocator) regrantableLocked(p *pod) (no *device.Refusal, lasting time.Time) {
	if other := a.allocatingSharerLocked(p); other != nil {
		return device.Refuse(device.Allocating, nil, "pod %s has devices by the same claim, and its plugins are being asked", other.demand.Pod), time.Time{}
	}
	for c, s := range device.Shares(p.assigned) {
		if _, lapsed := p.lapsed[c.Name]; !lapsed {
			continue
		}
		resource := a.ledger.Resources[s.Resource]
		if no := resource.Unavailable(s.Resource); no != nil {
			return no, time.Time{}
		}
		for _, id := range s.IDs {
			if !resource.Listing().Lists(id) {
				return device.Refuse(device.DeviceUnhealthy, nil, "the device plugin of %s does not list device %s, which is assigned to the pod", s.Resource, id),
					resource.Offer().Since.Add(failures.Lasting)
			}
		}
	}
	return nil, time.Time{}
}

// regranted ends an attempt to renew grants. After a failed commit the state file may contain either grant; both name the
// same devices.
func (a *Allocator) regranted(p *pod, got []device.Assignment, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		p.tries++
		a.failLocked(p, waitFor(err), loops.Doubled(firstPause, lastPause, p.tries-1))
		return
	}
	lapsed := p.lapsed
	p.lapsed = nil
	a.grantedLocked(p, got, func(container string) bool { _, was := lapsed[container]; return was })
	a.withholdLocked(p)
	a.cfg.Log.Info("devices granted again", "pod", p.demand.Pod.String(), "devices", device.Summary(got))
}

// withholdLocked withholds what may be a pod's devices under other IDs: the plugin may have stopped listing them during the attempt.
func (a *Allocator) withholdLocked(p *pod) {
	for _, s := range device.Shares(p.assigned) {
		a.ledger.Withhold(s.Resource)
	}
}

// moveLocked plans a pod again that has not run with its devices. The runtime may have containers of the pod that were
// created and never started, as after a power cut. These containers have the devices that the pod releases, so they are
// barred first, as in a release (departure.go).
func (a *Allocator) moveLocked(p *pod, why device.Wait) {
	suspects := a.idleLocked(p.demand.Pod.UID)
	if len(suspects) == 0 {
		a.replanLocked(p, why)
		return
	}
	if left := time.Until(a.syncedAt.Add(idleGrace)); left > 0 {
		a.parkLocked(p, why, left)
		return
	}
	a.enterLocked(p, allocating)
	a.work.Go(func() {
		proven := a.proveIdle(suspects)
		a.mu.Lock()
		defer a.mu.Unlock()
		if p.phase == abandoned || p.newDemand != nil || p.ran || p.preparing() || !a.barLocked(p.demand.Pod.UID, proven) {
			a.failLocked(p, why, firstPause)
			return
		}
		a.replanLocked(p, why)
	})
}

// reviveLocked retries a pod that waits for a new grant: a container that kept the pod from getting other devices may be gone
// or idle. A pause goes on.
func (a *Allocator) reviveLocked(p *pod) {
	if p != nil && p.phase == waiting && len(p.lapsed) > 0 && p.retry.IsZero() {
		a.queueLocked(p)
	}
}

// replanLocked releases a pod's devices, and plans the pod again when the release is on disk.
func (a *Allocator) replanLocked(p *pod, why device.Wait) {
	a.cfg.Log.Warn("pod planned again", "pod", p.demand.Pod.String(), "devices", device.Summary(p.assigned), "reason", why.Reason, "err", why.Message)
	p.doubt = ledger.DevicesOf(p.assigned)
	for container, l := range p.lapsed {
		if l == unusable && why.Reason != device.PreStartFailed {
			lists.Put(&p.distrusts, container, true)
		}
	}
	p.assigned, p.lapsed, p.fresh, p.preparations, p.tries = nil, nil, nil, nil, 0
	a.publishLocked(p)
	a.parkLocked(p, why, 0)
	a.saveLaterLocked(p)
	a.scheduleWriteLocked(0)
}
