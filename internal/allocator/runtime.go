package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// A tenant is what the runtime has of one pod: names of containers by the runtime's IDs.
type tenant map[string]string

// RuntimeSynced tells of all containers that the runtime has.
func (a *Allocator) RuntimeSynced(all []device.Running) {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.live)
	for _, r := range all {
		a.liveLocked(r)
	}
	a.synced = true
	a.writeLocked(0)
}

// RuntimeLost tells that the runtime is away. What it had may still run, so nothing is released until it is back.
func (a *Allocator) RuntimeLost() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.synced = false
}

// RuntimeStarted tells that the runtime is about to make a container.
func (a *Allocator) RuntimeStarted(r device.Running) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.liveLocked(r)
	if p := a.pods[r.Container.Pod]; p != nil {
		delete(p.starts, r.Container.Name) // this start uses it up
	}
}

func (a *Allocator) liveLocked(r device.Running) {
	t := a.live[r.Container.Pod]
	if t == nil {
		t = tenant{}
		a.live[r.Container.Pod] = t
	}
	t[r.ID] = r.Container.Name
}

// RuntimeStopped tells that a container's processes have ended, or that it was never started.
func (a *Allocator) RuntimeStopped(r device.Running) {
	a.mu.Lock()
	defer a.mu.Unlock()
	uid := r.Container.Pod
	name, known := a.live[uid][r.ID]
	if !known {
		return
	}
	delete(a.live[uid], r.ID)
	if len(a.live[uid]) == 0 {
		delete(a.live, uid)
	}
	p := a.pods[uid]
	if p == nil {
		return
	}
	if !p.wanted {
		a.writeLocked(0)
		return
	}
	for _, other := range a.live[uid] {
		if other == name {
			return // its next instance runs already: its devices are not to be touched
		}
	}
	if as, ok := p.of(name); ok {
		a.prepareLocked(p, as)
	}
}
