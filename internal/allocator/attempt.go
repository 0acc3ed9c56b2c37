package allocator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Pauses before a pod whose plugin has failed it is tried again: they double from the first to the last.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// reserveLocked plans for one pod. If that succeeds the devices are set aside and its plugins are asked, without the
// lock, by a goroutine that ends in settle.
func (a *Allocator) reserveLocked(ctx context.Context, p *pod) {
	choices, no := plan(p.demand, p.assigned, a.strays[p.demand.Pod.UID], a.pools)
	if no != nil {
		a.parkLocked(p, no.Wait, 0)
		return
	}
	uid := p.demand.Pod.UID
	held := hold{}
	for _, choice := range choices {
		for r, ids := range choice {
			pool := a.pools[r]
			for _, id := range ids {
				if _, taken := pool.taken[id]; !taken { // else it is this pod's already: an init container's, or one it runs with
					held[r] = append(held[r], id)
				}
			}
			pool.take(ids, uid)
		}
	}
	p.phase = asking
	delete(a.unsaved, uid) // the commit at the end of the attempt holds its demand too
	demand, has := p.demand, p.assigned
	a.work.Go(func() {
		got, err := a.ask(ctx, demand, choices)
		if err == nil {
			got = append(slices.Clone(has), got...)
			err = a.save(demand, got)
		}
		a.settle(p, held, got, err)
	})
}

// A hold is what an attempt has set aside.
type hold map[device.ResourceName][]device.ID

// ask has the plugins make the chosen devices usable, one call for each container and resource. It holds no lock.
func (a *Allocator) ask(ctx context.Context, d device.PodDemand, choices map[string]device.Choice) ([]device.Assignment, error) {
	var all []device.Assignment
	for _, demand := range d.Demands {
		choice, ok := choices[demand.Container.Name]
		if !ok {
			continue
		}
		as := device.Assignment{Container: demand.Container}
		for _, r := range slices.Sorted(maps.Keys(choice)) {
			grant, err := a.plugins.Allocate(ctx, d.Pod, demand.Container, r, choice[r])
			if err != nil {
				return nil, err
			}
			as.Shares = append(as.Shares, device.Share{Resource: r, IDs: choice[r], Grant: grant, PreStart: a.preStart(r)})
		}
		all = append(all, as)
	}
	return all, nil
}

// save makes a pod's assignments durable in one commit.
func (a *Allocator) save(d device.PodDemand, got []device.Assignment) error {
	a.pen.Lock()
	defer a.pen.Unlock()
	if err := a.books.SavePods([]device.PodRecord{{Demand: d, Assignments: got}}, nil); err != nil {
		return device.Refuse(device.StoreUnavailable, err, "the assignment cannot be made durable")
	}
	return nil
}

// settle ends an attempt: the pod has its devices, durably, or gives back what it held.
func (a *Allocator) settle(p *pod, held hold, got []device.Assignment, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		for r, ids := range held {
			a.pools[r].giveBack(ids, p.demand.Pod.UID)
		}
		p.tries++
		if p.later != nil {
			a.changeLocked(p, *p.later)
		} else {
			a.parkLocked(p, waitFor(err), min(firstPause<<min(p.tries-1, 8), lastPause))
		}
		for r := range held {
			a.wakeLocked(r, false)
		}
	} else {
		p.assigned, p.saved = got, true
		a.adoptLocked(p.demand.Pod.UID, got)
		a.settleLocked(p)
		took := time.Since(p.bound)
		a.metrics.admission.Observe(took.Seconds())
		a.log.Info("devices assigned", "pod", p.demand.Pod.String(), "devices", summary(got), "took", took.Round(time.Microsecond))
		a.herald.Assigned(p.demand.Pod, got)
		for _, as := range got {
			a.prepareLocked(p, as)
		}
	}
	p.later = nil
	if !p.wanted {
		a.dropLocked(p)
	}
	signal(a.changed)
}

// waitFor gives the reason that an error carries.
func waitFor(err error) device.Wait {
	var no *device.Refusal
	switch {
	case errors.As(err, &no):
		return device.Wait{Reason: no.Reason, Message: err.Error()}
	case errors.Is(err, context.Canceled):
		return device.Wait{Reason: device.Allocating, Message: "devmgrd is stopping"}
	}
	return device.Wait{Reason: device.PluginError, Message: err.Error()}
}

// summary names the devices of a pod's containers, for the log.
func summary(all []device.Assignment) map[string][]device.ID {
	s := map[string][]device.ID{}
	for _, as := range all {
		for _, share := range as.Shares {
			s[as.Container.Name+":"+string(share.Resource)] = share.IDs
		}
	}
	return s
}
