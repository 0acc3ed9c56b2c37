package allocator

import (
	"context"
	"iter"
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
	begun   bool // its calls
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
	if _, lapsed := p.lapsed[name]; lapsed || !p.active() || p.phase == returned {
		return
	}
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
	if p == nil || p.preparations[c.Name] == nil || p.preparations[c.Name].begun {
		return
	}
	as, ok := p.of(c.Name)
	if !ok {
		return
	}
	if !p.active() {
		close(p.preparations[c.Name].done)
		delete(p.preparations, c.Name)
		a.scheduleWriteLocked(0) // its release waits for that
		return
	}
	pod, prep, shares := p.demand.Pod, p.preparations[c.Name], a.preparesLocked(as)
	prep.shares, prep.begun = shares, true
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
	// A new grant of the pod, or its release, has waited for that.
	switch p := a.pods[c.Pod]; {
	case p == nil:
	case p.active():
		a.reviveLocked(p)
	default:
		a.scheduleWriteLocked(0)
	}
}

// An init container hands its devices on to containers that start after its end, as by the kubelet. They are prepared for one container after the other,
// ahead only while none of them exists. The start of one ends what was prepared for the others.

// siblings yields the other containers between which and this one devices are handed on.
func (p *pod) siblings(of device.Assignment) iter.Seq[device.Assignment] {
	return func(yield func(device.Assignment) bool) {
		if !slices.ContainsFunc(p.demand.Demands, func(d device.Demand) bool { return d.Kind == device.Init }) {
			return
		}
		d, _ := p.demand.Of(of.Container.Name)
		own := map[device.Key]bool{}
		for _, s := range of.Shares {
			for _, id := range s.IDs {
				if d.Claimed[s.Resource][id] == "" { // else see sharing.go
					own[device.Key{Resource: s.Resource, ID: id}] = true
				}
			}
		}
		for _, as := range p.assigned {
			if as.Container != of.Container && slices.ContainsFunc(as.Shares, func(s device.Share) bool {
				return slices.ContainsFunc(s.IDs, func(id device.ID) bool { return own[device.Key{Resource: s.Resource, ID: id}] })
			}) && !yield(as) {
				return
			}
		}
	}
}

// sibling reports whether a sibling of a container is one of these.
func (p *pod) sibling(as device.Assignment, is func(container string) bool) bool {
	for other := range p.siblings(as) {
		if is(other.Container.Name) {
			return true
		}
	}
	return false
}

// prepareAheadLocked requests the preparation of a container's next start, unless the runtime has a container that may use the devices. When it is created,
// the kubelet has seen the end of these.
func (a *Allocator) prepareAheadLocked(p *pod, as device.Assignment) {
	exists := a.running[p.demand.Pod.UID].Has
	if !exists(as.Container.Name) && !p.sibling(as, exists) {
		a.prepareLocked(p, as)
	}
}

// prepareNextLocked requests the preparation of what probably starts after a container has stopped: after an init container those to which it hands its
// devices on. If it has failed instead, they are prepared for it again when it is created.
func (a *Allocator) prepareNextLocked(p *pod, stopped device.Assignment) {
	next := []device.Assignment{stopped}
	if p.init(stopped.Container.Name) {
		after := p.assigned[slices.IndexFunc(p.assigned, func(as device.Assignment) bool { return as.Container == stopped.Container })+1:]
		siblings := slices.Collect(p.siblings(stopped))
		siblings = slices.DeleteFunc(siblings, func(as device.Assignment) bool { _, is := device.AssignmentOf(after, as.Container.Name); return !is })
		if len(siblings) > 0 {
			next = siblings
		}
	}
	for _, as := range next {
		a.prepareAheadLocked(p, as)
	}
}

// preparing reports whether a plugin prepares devices of the pod.
func (p *pod) preparing() bool {
	for _, prep := range p.preparations {
		if prep.running {
			return true
		}
	}
	return false
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
	if prep == nil && on == creating { // the pod has just ended
		return &device.Readiness{State: device.Waiting, Wait: waitPreparing}
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
