package allocator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// Pauses before a retry after a plugin failure: they double from the first to the last.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// reserveLocked plans for one pod. If the plan succeeds, it holds the devices and starts a goroutine that asks the plugins
// without the lock and ends the attempt.
func (a *Allocator) reserveLocked(ctx context.Context, p *pod) {
	if p.complete() {
		a.regrantLocked(ctx, p)
		return
	}
	uid := p.demand.Pod.UID
	said := placement.Preferences{}
	if a.ledger.Quarantined[uid] != nil {
		said = nil // the pod's running containers decide, not preferences
	}
	best, no := a.planLocked(p, said)
	if no != nil {
		a.parkLocked(p, no.Wait, 0)
		return
	}
	held := a.ledger.Hold(uid, best.Choices)
	a.enterLocked(p, allocating)
	demand, has := p.demand, p.assigned
	a.work.Go(func() {
		for best.Ask != nil {
			said[best.Ask.Key()] = a.askPreference(ctx, demand.Pod, *best.Ask)
			a.match(demand)
			var ok bool
			if best, held, ok = a.improve(p, held, said); !ok {
				return
			}
		}
		chosen := best.Assignments(demand)
		got, err := a.callPlugins(ctx, demand.Pod, slices.Concat(has, chosen), func(container string) bool { _, is := best.Choices[container]; return is })
		if err != nil {
			a.fail(p, held, err)
			return
		}
		if err := a.save(demand, got); err != nil {
			a.doubt(p, held, err)
			return
		}
		a.succeed(p, held, got)
	})
}

// match compares the plugins' devices with the patterns that a pod's annotation has, for the plan that follows. It takes the lock only to
// find the listings.
func (a *Allocator) match(d device.PodDemand) {
	for _, one := range d.Demands {
		for r, s := range one.Select {
			a.listing(r).Match(s)
		}
	}
}

// listing returns a resource's listing.
func (a *Allocator) listing(r device.ResourceName) *ledger.Listing {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ledger.Lookup(r).Listing()
}

func (a *Allocator) planLocked(p *pod, said placement.Preferences) (placement.Result, *device.Refusal) {
	runsWith, no := a.runsWithLocked(p)
	if no != nil {
		return placement.Result{}, no
	}
	now, from := time.Now(), placement.Resources{}
	for _, d := range p.demand.Demands {
		for r := range d.Wants {
			if resource := a.ledger.Resources[r]; resource != nil {
				a.ledger.ForgetRefusals(r, now)
				from[r] = resource
			}
		}
	}
	return placement.Plan(placement.Input{
		Demand: p.demand, Has: p.assigned, Running: runsWith, Preferences: said, Topology: a.cfg.Topology, Sharing: a.sharingLocked(p),
	}, from)
}

// improve plans again with the plugins' preferences and holds the new choice instead. The pod holds a full choice all the
// time, so no younger pod gets its devices while plugins answer. improve returns false if the attempt ends: the pod has
// ended, has a new demand, or a device it needs has failed or gone.
func (a *Allocator) improve(p *pod, held ledger.Devices, said placement.Preferences) (best placement.Result, instead ledger.Devices, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	uid := p.demand.Pod.UID
	a.catchUpLocked()
	a.ledger.EndHold(uid, held)
	no := &device.Refusal{}
	if p.phase == allocating && p.newDemand == nil {
		if best, no = a.planLocked(p, said); no != nil {
			best, no = a.planLocked(p, nil) // a preference for one container may leave too few devices for another
		}
	}
	if no == nil {
		instead = a.ledger.Hold(uid, best.Choices)
	}
	for r, ids := range held {
		if !slices.Equal(ids, instead[r]) {
			a.wakeLocked(r, false)
		}
	}
	if no != nil {
		a.failLocked(p, no.Wait, 0)
		a.changedLocked()
	}
	return best, instead, no == nil
}

// callPlugins asks the plugins for the grants of the containers that need one, with one call for each container and resource, except for
// grants that are shared (sharing.go). It holds no lock. It adds up the sizes of the grants one by one, so at most one grant beyond the limits is in memory.
func (a *Allocator) callPlugins(ctx context.Context, pod device.Pod, all []device.Assignment, needs func(container string) bool) ([]device.Assignment, error) {
	all = slices.Clone(all)
	var inPod device.Grants
	for _, as := range all {
		if !needs(as.Container.Name) {
			inPod.Add(as.Shares...)
		}
	}
	for i, as := range all {
		if !needs(as.Container.Name) {
			continue
		}
		var inContainer device.Grants
		all[i].Shares = make([]device.Share, len(as.Shares))
		for j, s := range as.Shares {
			grant, shared := a.sharedGrant(as.Container, s, all[:i])
			if !shared {
				var err error
				grant, err = a.allocate(ctx, pod, as.Container, s)
				if err != nil && len(all) > 1 {
					err = fmt.Errorf("container %s: %w", as.Container.Name, err)
				}
				if err != nil {
					return nil, err
				}
			}
			s = a.granted(s, grant)
			all[i].Shares[j] = s
			inContainer.Add(s)
			inPod.Add(s)
			if no := cmp.Or(inContainer.CheckContainer(as.Container.Name), inPod.CheckPod()); no != nil {
				a.dropKept(pod.UID) // the plugin may answer with less the next time
				return nil, no
			}
		}
	}
	return all, nil
}

// granted completes the state file's record of a grant with the current offer's details.
func (a *Allocator) granted(s device.Share, g device.Grant) device.Share {
	a.mu.Lock()
	defer a.mu.Unlock()
	resource := a.ledger.Resources[s.Resource]
	s.Near, s.Grant, s.PreStart, s.Boot = resource.Listing().Near(s.IDs), g, resource.Offer().PreStart, a.cfg.Boot
	return s
}

// save makes a pod's assignments durable in one commit.
func (a *Allocator) save(d device.PodDemand, got []device.Assignment) error {
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	if err := a.cfg.Store.SavePods([]device.PodRecord{{Demand: d, Assignments: got, Since: time.Now()}}, nil); err != nil {
		return device.Refuse(device.StoreUnavailable, err, "cannot save the assignment")
	}
	return nil
}

// fail ends an attempt after a plugin failure and releases the pod's hold.
func (a *Allocator) fail(p *pod, held ledger.Devices, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ledger.EndHold(p.demand.Pod.UID, held)
	for r := range held {
		a.wakeUnpausedLocked(r) // or two pods whose attempts fail would end each other's pauses
	}
	p.tries++
	a.failLocked(p, waitFor(err), loops.Doubled(firstPause, lastPause, p.tries-1))
	a.changedLocked()
}

// doubt ends an attempt whose commit has failed. The state file may still contain the commit: when the last sync fails, bbolt
// has written everything, and every later commit includes it. So the devices stay set aside until a later commit has replaced
// the pod's record.
func (a *Allocator) doubt(p *pod, held ledger.Devices, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.doubt, p.saved = held, true
	if p.phase == abandoned {
		p.newDemand = nil
		a.endLocked(p)
		return
	}
	a.parkLocked(p, waitFor(err), 0)
	a.saveLaterLocked(p)
}

// decideLocked ends the doubt about a pod's record: a commit has replaced it with a record without the devices.
func (a *Allocator) decideLocked(p *pod) {
	if p.doubt == nil {
		return
	}
	held := p.doubt
	p.doubt = nil
	a.passFailuresLocked(p, held, true)
	a.ledger.EndHold(p.demand.Pod.UID, held)
	for r := range held {
		a.wakeLocked(r, false)
	}
	a.wakeSharersLocked(p)
	later := p.newDemand
	p.newDemand = nil
	switch {
	case !p.active():
	case later != nil:
		a.changeLocked(p, *later)
	case !p.served():
		a.queueLocked(p)
	}
	a.changedLocked()
}

// succeed ends an attempt whose assignments are durable.
func (a *Allocator) succeed(p *pod, held ledger.Devices, got []device.Assignment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.changedLocked()
	before := p.assigned
	p.saved, p.newDemand = true, nil
	delete(a.unsaved, p.demand.Pod.UID)
	took := time.Since(p.bound)
	a.metrics.admission.Observe(took.Seconds())
	a.cfg.Log.Info("devices assigned", "pod", p.demand.Pod.String(), "devices", device.Summary(got), "took", took.Round(time.Microsecond))
	a.grantedLocked(p, got, func(container string) bool { _, had := device.AssignmentOf(before, container); return !had })
	for r := range held {
		a.ledger.Withhold(r) // the list may have changed meanwhile, and only now the grant's time is known
	}
}

// grantedLocked takes over a pod's assignments, which are on disk. fresh reports whether a container's grant is new.
func (a *Allocator) grantedLocked(p *pod, got []device.Assignment, fresh func(container string) bool) {
	p.assigned, p.kept = got, nil
	for _, s := range device.Shares(got) {
		delete(a.byKubelet.kept[p.demand.Pod.UID], s.Resource)
	}
	if p.phase == allocating {
		a.settleLocked(p)
	}
	p.since, p.sinceFor = time.Now(), ""
	a.publishLocked(p)
	a.examinePodLocked(p)
	if p.refused == nil || !p.refused.sameDevices(got) {
		a.cfg.Notifier.Assigned(p.demand.Pod, got)
	}
	for _, as := range got {
		if !fresh(as.Container.Name) {
			continue
		}
		lists.Put(&p.fresh, as.Container.Name, true)
		delete(p.distrusts, as.Container.Name)
		delete(p.preparations, as.Container.Name) // the preparation was for an older grant
		a.prepareAheadLocked(p, as)
	}
	a.disturbLocked(p)
	if p.phase == abandoned {
		a.endLocked(p)
	}
}

// failLocked ends a failed attempt of a pod that holds nothing from it.
func (a *Allocator) failLocked(p *pod, why device.Wait, pause time.Duration) {
	defer a.withholdLocked(p)
	later := p.newDemand
	p.newDemand = nil
	switch {
	case p.phase == abandoned:
		a.endLocked(p)
	case later != nil:
		a.changeLocked(p, *later)
	default:
		a.parkLocked(p, why, pause)
	}
}

// waitFor returns the reason that an error carries.
func waitFor(err error) device.Wait {
	if no, ok := errors.AsType[*device.Refusal](err); ok {
		return device.Wait{Reason: no.Reason, Message: err.Error(), InUse: no.InUse}
	}
	if errors.Is(err, context.Canceled) {
		return device.Wait{Reason: device.Allocating, Message: "devmgrd is stopping"}
	}
	return device.Wait{Reason: device.PluginError, Message: err.Error()}
}
