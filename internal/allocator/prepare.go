package allocator

import (
	"context"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A preparation is the state of PreStartContainer for the next start of one container. Plugins that require it need the call
// before each start, but the runtime's hook has no time for it. So devmgrd calls it ahead: when the devices have been
// assigned, and again each time the container has stopped. Until the preparation has succeeded the container is refused, and
// the kubelet tries again.
type preparation struct {
	shares  []device.Share // that it is about
	running bool
	err     error
	retry   time.Time     // after a failure: earliest retry
	tries   int           // consecutive failures
	done    chan struct{} // closed when it has ended
}

// has reports whether a preparation is about a device.
func (prep *preparation) has(r device.ResourceName, id device.ID) bool {
	return prep != nil && slices.ContainsFunc(prep.shares, func(s device.Share) bool { return s.Resource == r && slices.Contains(s.IDs, id) })
}

// failure returns why the preparation has failed; nil: it has not.
func (prep *preparation) failure() *device.Wait {
	if prep == nil || prep.running || prep.err == nil {
		return nil
	}
	return &device.Wait{Reason: device.PreStartFailed, Message: prep.err.Error()}
}

// covers reports whether a preparation is about all devices of these shares.
func (prep *preparation) covers(shares []device.Share) bool {
	return !slices.ContainsFunc(shares, func(s device.Share) bool {
		return slices.ContainsFunc(s.IDs, func(id device.ID) bool { return !prep.has(s.Resource, id) })
	})
}

// preparesLocked returns the shares of an assignment that need PreStartContainer, without devices that are shared and ready. A kubelet's
// checkpoint does not record which shares do, so for imported ones the plugin's current offer decides.
func (a *Allocator) preparesLocked(as device.Assignment) []device.Share {
	return a.unpreparedLocked(as.Container, slices.DeleteFunc(slices.Clone(as.Shares), func(s device.Share) bool {
		return !s.PreStart && (as.Imported.IsZero() || !a.ledger.Of(s.Resource).Offer().PreStart)
	}))
}

// prepareLocked requests the preparation of a container's next start, if its plugins require one and none is running.
func (a *Allocator) prepareLocked(p *pod, as device.Assignment) {
	name := as.Container.Name
	last, shares := p.preparations[name], a.preparesLocked(as)
	if len(shares) == 0 || last != nil && last.running || a.preparingLocked(as) != nil {
		return
	}
	next := &preparation{shares: shares, running: true, done: make(chan struct{})}
	if last != nil {
		next.tries = last.tries
	}
	lists.Put(&p.preparations, name, next)
	a.toPrepare = append(a.toPrepare, as.Container)
	loops.Signal(a.kick)
}

// startPreparingLocked makes the calls that prepareLocked has requested.
func (a *Allocator) startPreparingLocked(ctx context.Context, c device.Container) {
	p := a.pods[c.Pod]
	if p == nil || p.preparations[c.Name] == nil {
		return
	}
	as, ok := p.of(c.Name)
	if !ok {
		return
	}
	pod, prep, shares := p.demand.Pod, p.preparations[c.Name], a.preparesLocked(as)
	prep.shares = shares
	a.work.Go(func() {
		var err error
		for _, s := range shares {
			if err == nil {
				err = a.cfg.Plugins.PreStart(ctx, pod, c, s.Resource, s.IDs)
			}
		}
		a.prepared(pod, c, prep, err)
	})
}

func (a *Allocator) prepared(pod device.Pod, c device.Container, prep *preparation, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	prep.running, prep.err = false, err
	if err != nil {
		prep.retry = time.Now().Add(loops.Doubled(firstPause, lastPause, prep.tries))
		prep.tries++
		a.cfg.Log.Warn("PreStartContainer failed", "pod", pod.String(), "container", c.Name, "err", err)
		if p := a.pods[c.Pod]; p != nil && p.preparations[c.Name] == prep && p.phase == settled && !p.ran {
			a.unusableLocked(p, c.Name, device.Wait{Reason: device.PreStartFailed, Message: err.Error()}, ledger.Lacking)
		}
	} else {
		prep.tries = 0
	}
	close(prep.done)
	a.changedLocked() // NodePrepareResources waits for any change
}

var waitPreparing = device.Wait{Reason: device.Preparing, Message: "the device plugin is preparing the devices"}

// preparedLocked returns the readiness that a preparation imposes on a container that is otherwise ready; nil: it may start.
func (a *Allocator) preparedLocked(p *pod, as device.Assignment, on occasion) *device.Readiness {
	if len(a.preparesLocked(as)) == 0 {
		return nil
	}
	if a.syncedAt.IsZero() { // other containers may run with the devices
		return &device.Readiness{State: device.Waiting, Wait: device.Wait{Reason: device.Preparing, Message: "the container runtime has not listed its containers yet"}}
	}
	if other := a.preparingLocked(as); other != nil {
		return &device.Readiness{State: device.Pending, Done: other.done, Wait: waitPreparing}
	}
	prep := p.preparations[as.Container.Name]
	due := prep == nil || prep.err != nil && !time.Now().Before(prep.retry) || !prep.running && prep.err == nil && !prep.covers(a.preparesLocked(as))
	if due && on == creating {
		a.prepareLocked(p, as)
		prep = p.preparations[as.Container.Name]
	}
	if prep == nil {
		return &device.Readiness{State: device.Pending, Wait: waitPreparing}
	}
	if prep.running {
		return &device.Readiness{State: device.Pending, Done: prep.done, Wait: waitPreparing}
	}
	if why := prep.failure(); why != nil {
		return &device.Readiness{State: device.Waiting, Wait: *why}
	}
	return nil
}
