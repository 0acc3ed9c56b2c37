package allocator

import "github.com/devmgrd/devmgrd/internal/device"

// Standing answers the runtime's question about a container. It is a look-up: it waits for nothing.
func (a *Allocator) Standing(c device.Container) device.Standing {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[c.Pod]
	if p == nil || p.leaving {
		return device.Standing{Stand: device.Unknown}
	}
	demand, ok := p.demand.Of(c.Name)
	if !ok {
		return device.Standing{Stand: device.Free}
	}
	switch p.phase {
	case queuing, asking:
		return device.Standing{Stand: device.Busy, Done: p.done,
			Wait: device.Wait{Reason: device.Allocating, Message: "the allocation is in progress"}}
	case parked:
		return device.Standing{Stand: device.Waiting, Wait: p.wait}
	}
	as, ok := p.of(c.Name)
	if !ok { // it was dropped before it had its devices
		return device.Standing{Stand: device.Unknown}
	}
	if not := a.preparedLocked(p, as); not != nil {
		return *not
	}
	return device.Standing{Stand: device.Ready, Assignment: as, Env: demand.Env}
}
