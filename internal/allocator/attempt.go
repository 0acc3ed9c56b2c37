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
	uid := p.demand.Pod.UID
	said := advice{}
	if a.strays[uid] != nil {
		said = nil // what its containers run with counts, not what would be better
	}
	best, no := a.planLocked(p, said)
	if no != nil {
		a.parkLocked(p, no.Wait, 0)
		return
	}
	held := a.holdLocked(uid, best.choices)
	p.phase = asking
	demand, has := p.demand, p.assigned
	a.work.Go(func() {
		for best.ask != nil {
			said[best.ask.topic()] = a.consult(ctx, demand.Pod, *best.ask)
			var ok bool
			if best, held, ok = a.improve(p, held, said); !ok {
				return
			}
		}
		got, err := a.ask(ctx, demand, best.choices)
		if err == nil {
			got = append(slices.Clone(has), got...)
			err = a.save(demand, got)
		}
		a.settle(p, held, got, err)
	})
}

func (a *Allocator) planLocked(p *pod, said advice) (proposal, *device.Refusal) {
	return plan(wish{demand: p.demand, has: p.assigned, runs: a.strays[p.demand.Pod.UID], advice: said, places: a.topology}, a.pools)
}

// improve plans anew with what plugins have said, and sets that aside instead. The pod holds a full choice all the time,
// so that no younger pod gets its devices while its plugins think. It gives false if there is nothing to go on with: the
// pod is not wanted any more, wants something else, or cannot have its devices since one has failed or gone.
func (a *Allocator) improve(p *pod, held hold, said advice) (best proposal, instead hold, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	uid := p.demand.Pod.UID
	a.giveBackLocked(uid, held)
	no := &device.Refusal{}
	if p.wanted && p.later == nil {
		if best, no = a.planLocked(p, said); no != nil {
			best, no = a.planLocked(p, nil) // what plugins prefer is a wish, and one may stand in the way of another container
		}
	}
	if no == nil {
		instead = a.holdLocked(uid, best.choices)
	}
	for r, ids := range held {
		if !slices.Equal(ids, instead[r]) {
			a.wakeLocked(r, false)
		}
	}
	if no != nil {
		a.failLocked(p, no.Wait, 0)
		signal(a.changed)
	}
	return best, instead, no == nil
}

// A hold is what an attempt has set aside.
type hold map[device.ResourceName][]device.ID

// holdLocked sets the chosen devices aside. Those that are neither free nor strays are the pod's own already.
func (a *Allocator) holdLocked(uid device.PodUID, choices map[string]device.Choice) hold {
	h := hold{}
	for _, container := range slices.Sorted(maps.Keys(choices)) {
		for r, ids := range choices[container] {
			pool := a.pools[r]
			for _, id := range ids {
				_, taken := pool.taken[id]
				if taken && !pool.strays[id] {
					continue
				}
				pool.take([]device.ID{id}, uid)
				delete(pool.strays, id)
				h[r] = append(h[r], id)
			}
		}
	}
	return h
}

// giveBackLocked gives back what an attempt has set aside. What a container of the pod runs with stays set aside for it.
func (a *Allocator) giveBackLocked(uid device.PodUID, h hold) {
	for r, ids := range h {
		a.pools[r].giveBack(ids, uid)
	}
	for _, choice := range a.strays[uid] {
		for r, ids := range choice {
			a.pools[r].stray(ids, uid)
		}
	}
	a.reclaimLocked()
}

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
			as.Shares = append(as.Shares, a.share(r, choice[r], grant))
		}
		all = append(all, as)
	}
	return all, nil
}

// share makes what the books keep of a plugin's answer, with what its offer says by now.
func (a *Allocator) share(r device.ResourceName, ids []device.ID, g device.Grant) device.Share {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools[r]
	return device.Share{Resource: r, IDs: ids, Near: p.listing.nodes(ids), Grant: g, PreStart: p.offer.PreStart}
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
	defer signal(a.changed)
	if err != nil {
		a.giveBackLocked(p.demand.Pod.UID, held)
		for r := range held {
			a.wakeLocked(r, false)
		}
		p.tries++
		a.failLocked(p, waitFor(err), min(firstPause<<min(p.tries-1, 8), lastPause))
		return
	}
	p.assigned, p.saved, p.later = got, true, nil
	delete(a.unsaved, p.demand.Pod.UID)
	a.settleLocked(p)
	p.since = time.Now()
	a.showLocked(p)
	a.examinePodLocked(p)
	took := time.Since(p.bound)
	a.metrics.admission.Observe(took.Seconds())
	a.log.Info("devices assigned", "pod", p.demand.Pod.String(), "devices", summary(got), "took", took.Round(time.Microsecond))
	a.herald.Assigned(p.demand.Pod, got)
	for _, as := range got {
		a.prepareLocked(p, as)
	}
	if !p.wanted {
		a.dropLocked(p)
	}
}

// failLocked ends an attempt that has come to nothing. The pod holds nothing any more.
func (a *Allocator) failLocked(p *pod, why device.Wait, pause time.Duration) {
	later := p.later
	p.later = nil
	switch {
	case !p.wanted:
		a.settleLocked(p)
		a.dropLocked(p)
	case later != nil:
		a.changeLocked(p, *later)
	default:
		a.parkLocked(p, why, pause)
	}
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
