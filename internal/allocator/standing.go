package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// Claim answers the runtime's question about a container that it is about to make. It is a look-up: it waits for nothing.
// If the container may be made, it counts as living from this moment, so that its devices cannot be released between the
// answer and its start; Unclaim takes that back.
func (a *Allocator) Claim(r device.Running) device.Standing {
	a.mu.Lock()
	defer a.mu.Unlock()
	st := a.standingLocked(r.Container)
	if st.Stand == device.Ready && a.behind != nil {
		return device.Standing{Stand: device.Busy, Done: a.behind, Wait: comparing}
	}
	if st.Stand == device.Free || st.Stand == device.Ready {
		a.reportLocked(func() { a.liveLocked(r, true) })
		if p := a.pods[r.Container.Pod]; p != nil {
			a.admittedLocked(p) // the kubelet has it made
		}
	}
	return st
}

// Unclaim tells that the container is not going to be made after all. What was prepared for its start stays prepared.
func (a *Allocator) Unclaim(r device.Running) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reportLocked(func() { a.deadLocked(r.Container.Pod, r.ID) })
}

// Standing tells how a container stands.
func (a *Allocator) Standing(c device.Container) device.Standing {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.standingLocked(c)
}

// comparing is what Claim answers while the runtime's containers are still to be compared with the state file.
var comparing = device.Wait{Reason: device.Allocating, Message: "the container runtime's containers are being compared with the state file"}

// allocating is what is said while an attempt is due or in flight.
var allocating = device.Wait{Reason: device.Allocating, Message: "the allocation is in progress"}

func (a *Allocator) standingLocked(c device.Container) device.Standing {
	p := a.pods[c.Pod]
	if p == nil || p.leaving {
		return device.Standing{Stand: device.Unknown}
	}
	demand, ok := p.demand.Of(c.Name)
	if !ok {
		return device.Standing{Stand: device.Free}
	}
	_, lapsed := p.lapsed[c.Name]
	switch {
	case p.complete() && !lapsed: // another container of the pod may wait to be granted its devices again
	case p.phase == queuing, p.phase == asking:
		return device.Standing{Stand: device.Busy, Done: p.done, Wait: allocating}
	case p.phase == parked:
		return device.Standing{Stand: device.Waiting, Wait: p.wait}
	}
	as, ok := p.of(c.Name)
	if !ok { // it was dropped before it had its devices
		return device.Standing{Stand: device.Unknown}
	}
	if not := a.preparedLocked(p, as); not != nil {
		return *not
	}
	return device.Standing{Stand: device.Ready, Assignment: as, Env: demand.Env, Refs: demand.Refs, Fresh: p.fresh[c.Name]}
}
