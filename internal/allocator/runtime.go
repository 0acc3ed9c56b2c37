package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// RuntimeSynced tells of all containers that the runtime has, and of all local pods. Devices that are stamped on one of
// them and that the books do not know of, because the books were lost, are set aside: its pod is given the same again, and
// others do not get them before the runtime has no container of that pod any more.
func (a *Allocator) RuntimeSynced(all []device.Running, local []device.PodDemand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.live
	a.live = map[device.PodUID]tenant{}
	clear(a.disputed)
	for uid := range a.strays {
		a.letGoLocked(uid)
	}
	for _, r := range all {
		l := a.liveLocked(r, len(r.Stamp) > 0)
		if was := before[r.Container.Pod][r.ID]; was != nil {
			l.told = was.told
		}
		for resource, ids := range r.Stamp {
			a.setAsideLocked(r.Container.Pod, r.Container.Name, resource, ids)
		}
	}
	a.synced, a.met = true, true
	a.replaceLocked(local, true)
	for _, p := range a.pods {
		a.auditLocked(p)
	}
	a.writeLocked(0)
	signal(a.kick)
	signal(a.changed)
}

// setAsideLocked keeps others from the devices that a container was given by books that are gone.
func (a *Allocator) setAsideLocked(uid device.PodUID, container string, r device.ResourceName, ids []device.ID) {
	pool := a.pools.of(r)
	for _, id := range ids {
		switch owner, taken := pool.taken[id]; {
		case taken && owner != uid:
			a.log.Error("a device is in two hands", "resource", r, "device", id, "uid", uid, "container", container, "assigned to", owner)
			note(a.disputed, uid, container, r, id)
			continue
		case taken && a.pods[uid].has(r, id):
			continue // as the books say
		case !taken:
			a.log.Warn("a container runs with a device that the books do not know of; it is set aside for its pod",
				"resource", r, "device", id, "uid", uid, "container", container)
		}
		pool.stray([]device.ID{id}, uid) // unless an attempt holds it
		note(a.strays, uid, container, r, id)
	}
}

// note puts a device down among those that containers run with.
func note(in map[device.PodUID]map[string]device.Choice, uid device.PodUID, container string, r device.ResourceName, id device.ID) {
	of := in[uid]
	if of == nil {
		of = map[string]device.Choice{}
		in[uid] = of
	}
	if of[container] == nil {
		of[container] = device.Choice{}
	}
	if !slices.Contains(of[container][r], id) {
		of[container][r] = append(of[container][r], id)
	}
}

// reclaimLocked sets aside what somebody else had and has given back, if a container still runs with it.
func (a *Allocator) reclaimLocked() {
	if len(a.disputed) == 0 {
		return
	}
	disputed := a.disputed
	a.disputed = map[device.PodUID]map[string]device.Choice{}
	for uid, containers := range disputed {
		for container, choice := range containers {
			for r, ids := range choice {
				for _, id := range ids {
					if _, taken := a.pools[r].taken[id]; taken {
						note(a.disputed, uid, container, r, id)
					} else {
						a.setAsideLocked(uid, container, r, []device.ID{id})
					}
				}
			}
		}
	}
}

// letGoLocked frees what setAsideLocked has set aside for a pod and what is neither held nor assigned by now.
func (a *Allocator) letGoLocked(uid device.PodUID) {
	for _, choice := range a.strays[uid] {
		for r, ids := range choice {
			pool := a.pools[r]
			for _, id := range ids {
				if pool.strays[id] {
					delete(pool.strays, id)
					pool.giveBack([]device.ID{id}, uid)
				}
			}
			a.wakeLocked(r, false)
		}
	}
	delete(a.strays, uid)
	a.reclaimLocked()
	signal(a.changed)
}

// RuntimeLost tells that the runtime is away. What it had may still run, so nothing is released until it is back.
func (a *Allocator) RuntimeLost() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.synced = false
}

// RuntimeStarted tells that the runtime has been given all that it needs to make a container.
func (a *Allocator) RuntimeStarted(r device.Running) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.liveLocked(r, true)
	if p := a.pods[r.Container.Pod]; p != nil {
		delete(p.starts, r.Container.Name) // this start uses it up
	}
}

// liveLocked notes a container that lives, or is about to.
func (a *Allocator) liveLocked(r device.Running, stamped bool) *life {
	t := a.live[r.Container.Pod]
	if t == nil {
		t = tenant{}
		a.live[r.Container.Pod] = t
	}
	l := &life{name: r.Container.Name, made: r.Made, stamped: stamped, idle: r.Idle}
	t[r.ID] = l
	return l
}

// deadLocked forgets a container, and gives its name if it was known.
func (a *Allocator) deadLocked(r device.Running) (name string, known bool) {
	uid := r.Container.Pod
	l, known := a.live[uid][r.ID]
	if !known {
		return "", false
	}
	name = l.name
	delete(a.live[uid], r.ID)
	if len(a.live[uid]) > 0 {
		return name, true
	}
	delete(a.live, uid)
	delete(a.disputed, uid)
	if a.strays[uid] != nil {
		a.letGoLocked(uid) // what an attempt holds of it stays held
	}
	switch p := a.pods[uid]; {
	case p == nil:
	case !p.wanted:
		a.writeLocked(0) // it can be released now
	case p.told:
		p.heard = time.Now()
		signal(a.kick)
	}
	return name, true
}

// idleLimit is how long a local pod may have no container and keep its devices. A runtime that has been restarted does not
// tell of the end of sandboxes that were there before. Between two starts of a container that fails again and again the
// kubelet takes five minutes at most.
const idleLimit = 10 * time.Minute

// dropIdleLocked drops local pods that have had no container for so long, and tells when the next one is due. If one is
// there after all, the next container that is made of it binds it again.
func (a *Allocator) dropIdleLocked(now time.Time) (next time.Time) {
	for uid, p := range a.locals {
		if !p.wanted || !p.told || !a.synced || len(a.live[uid]) > 0 {
			continue
		}
		due := p.heard.Add(idleLimit)
		switch {
		case !now.Before(due):
			a.log.Info("a local pod has had no container for long; its devices are given back", "pod", p.demand.Pod.String())
			a.dropLocked(p)
		case next.IsZero() || due.Before(next):
			next = due
		}
	}
	return next
}

// RuntimeStopped tells that a container's processes have ended, or that it was never started.
func (a *Allocator) RuntimeStopped(r device.Running) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name, known := a.deadLocked(r)
	p := a.pods[r.Container.Pod]
	if !known || p == nil || !p.wanted {
		return
	}
	if a.live[r.Container.Pod].names(name) {
		return // its next instance runs already: its devices are not to be touched
	}
	if as, ok := p.of(name); ok {
		a.prepareLocked(p, as)
	}
}
