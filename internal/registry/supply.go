package registry

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A supply is what is known of one resource. Its fields are guarded by Registry.mu.
type supply struct {
	resource device.ResourceName
	link     *link    // the current registration; others are not heard
	session  *session // the connection to the plugin, where calls go while it is serving; nil while the plugin is away
	number   uint64   // device.Offer.Session
	roster            // of the plugin's latest list
	weight   int      // of the roster
	reported bool
	preStart bool
	prefers  bool
	state    device.OfferState
	since    time.Time          // it has been serving, or away
	endGrace context.CancelFunc // stops the clock from Stale to Lost

	lastError   string
	lastErrorAt time.Time
}

// remembered returns the supply of a plugin that the store knows of. A loss, and since when the plugin is away, outlast
// a restart of devmgrd: the published number does not rise before the plugin lists its devices.
func remembered(k device.PluginRecord, l *link) *supply {
	s := &supply{
		resource: k.Resource, link: l, roster: rosterOf(k), reported: k.Reported,
		state: device.Stale, since: time.Now(), endGrace: func() {},
	}
	s.weight = s.roster.weight()
	if k.Lost {
		s.state = device.Lost
	}
	if !k.Away.IsZero() && k.Away.Before(s.since) { // else the clock was set back
		s.since = k.Away
	}
	return s
}

func (s *supply) offer() device.Offer {
	since := s.since
	if s.session != nil && s.state != device.Serving {
		since = s.session.began
	}
	return device.Offer{
		Inventory: device.Inventory{Resource: s.resource, Devices: s.devices}, Connected: s.session != nil,
		State: s.state, Since: since, Session: s.number, Reported: s.reported, PreStart: s.preStart, Prefers: s.prefers,
		LastError: s.lastError, LastErrorAt: s.lastErrorAt,
	}
}

func (s *supply) record() device.PluginRecord {
	r := device.PluginRecord{Resource: s.resource, Endpoint: s.link.endpoint, Pod: s.link.home.pod, Reported: s.reported, Devices: s.devices}
	if s.state != device.Serving {
		r.Away, r.Lost = s.since.Round(0), s.state == device.Lost
	}
	return r
}

// fail keeps why the plugin could not be reached, registered or followed.
func (s *supply) fail(why string) { s.lastError, s.lastErrorAt = clip(why), time.Now() }

// here tells whether a plugin serves it, or has just come and is about to.
func (s *supply) here() bool { return s != nil && (s.state == device.Serving || s.session != nil) }

// arrive numbers a registration, so that the newest wins even if an older one takes longer to be checked.
func (r *Registry) arrive() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arrivals++
	return r.arrivals
}

// room reports whether a registration would be accepted. Nothing is promised: accept asks again, and a lost resource that
// could make room may be in use.
func (r *Registry) room(l *link) error {
	r.mu.Lock()
	err := r.roomLocked(l)
	r.mu.Unlock()
	if errors.As(err, new(*fullError)) && len(r.lostResources()) > 0 {
		return nil
	}
	return err
}

func (r *Registry) roomLocked(l *link) error {
	s := r.supplies[l.resource]
	switch {
	case r.closing:
		return errStopping
	case s == nil && len(r.supplies) >= r.cfg.MaxResources:
		return &fullError{resource: l.resource, limit: r.cfg.MaxResources}
	case s != nil && r.cfg.RejectDuplicates && s.state == device.Serving && s.link.path != l.path:
		return &takenError{resource: l.resource, endpoint: s.link.endpoint}
	}
	// A process that registers another plugin's socket under a name of its own would take that plugin out of service, and could
	// then register the name that has become free.
	if rival := r.rivalLocked(l); rival != nil && r.cfg.RejectDuplicates && rival.state == device.Serving {
		return &socketTakenError{endpoint: l.endpoint, resource: rival.resource}
	}
	return nil
}

// accept puts l in its predecessor's place and starts it. The predecessor's inventory, and how far it may be trusted,
// stay until the new plugin has sent its first list. On error nothing has changed and the session is still the caller's.
//
// It names the resource that has lost its socket to l, if there is one. ListAndWatch names no resource: whoever dials the
// socket gets the new plugin's list, and the same devices would be offered, and given out, under both names. So a socket
// belongs to one resource, and the newest registration has it. A plugin that serves several resources has a socket for
// each; the API leaves it no other way.
func (r *Registry) accept(l *link, to *session) (loser device.ResourceName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.roomLocked(l); err != nil {
		return "", err
	}
	s, rival := r.supplies[l.resource], r.rivalLocked(l)
	if s != nil && s.link.id > l.id || rival != nil && rival.link.id > l.id {
		return "", errOvertaken
	}
	if rival != nil {
		r.vacateLocked(rival, evicted)
		loser = rival.resource
	}
	if s == nil {
		s = &supply{resource: l.resource, link: l, state: device.Serving, since: time.Now(), endGrace: func() {}}
		r.supplies[l.resource] = s
	} else {
		s.link.cancel()
	}
	s.link, s.session, s.number, s.preStart, s.prefers = l, to, l.id, to.preStart, to.prefers
	if s.state == device.Stale {
		r.graceLocked(s, r.cfg.GracePeriod) // the whole of it: the plugin has just shown that it lives
	}
	r.startLocked(l, to)
	r.metrics.registrations.WithLabelValues(string(l.resource)).Inc()
	r.metrics.setUp(l.resource, true)
	r.metrics.setPod(l.resource, l.home.pod)
	r.memory.note(l.resource)
	r.directories.tell()
	r.signal()
	return loser, nil
}

// rivalLocked gives the supply of another resource whose plugin listens, or listened, at l's socket. There is at most
// one.
func (r *Registry) rivalLocked(l *link) *supply {
	for _, s := range r.supplies {
		if s.link.path == l.path && s.resource != l.resource {
			return s
		}
	}
	return nil
}

// withdraw takes out a plugin that came through a registration socket which is no more. If another registration of the
// resource has been accepted meanwhile, that one stays.
func (r *Registry) withdraw(l *link) {
	r.mu.Lock()
	s := r.supplies[l.resource]
	current := !r.closing && s != nil && s.link == l
	if current {
		r.vacateLocked(s, withdrawn)
	}
	r.mu.Unlock()
	if current {
		r.callAgain() // one that was replaced by it may be in another directory
		l.log.Warn("plugin is withdrawn: nothing new is allocated from it until one registers", "grace", r.cfg.GracePeriod)
	}
}

// vacateLocked leaves a supply without a plugin's socket. Nobody serves it, so any registration is newer than what is left.
func (r *Registry) vacateLocked(s *supply, lack string) {
	s.link.cancel()
	s.link = newLink(r, 0, s.resource, s.link.home, "")
	s.link.lack = lack
	s.fail(lack)
	r.awayLocked(s)
	r.memory.note(s.resource)
	r.signal()
}

// orphaned tells whether the resource's plugin has been withdrawn and no other has come, or whether it has been forgotten.
func (r *Registry) orphaned(resource device.ResourceName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.supplies[resource]
	return s == nil || s.link.lack == withdrawn || s.link.lack == podGone
}

// startLocked runs the link, on the session if there is one. Its life is its own: it outlasts the call of Register
// that brought it about and ends when it is replaced or forgotten, or when the registry closes.
func (r *Registry) startLocked(l *link, on *session) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	r.work.Go(func() {
		defer cancel()
		l.Run(ctx, on)
	})
}

// roster returns what a link starts from.
func (r *Registry) roster(resource device.ResourceName) roster {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.supplies[resource]; s != nil {
		return s.roster
	}
	return roster{}
}

// connected takes notice that a link has reached its plugin again. What the plugin offered before counts as it did, until
// the plugin lists its devices.
func (r *Registry) connected(l *link, on *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.supplies[l.resource]
	if r.closing || s == nil || s.link != l {
		return
	}
	s.session = on
	r.metrics.setUp(l.resource, true)
	r.signal()
}

// listed takes the list that a link has received. Its devices are the same slice as before if nothing has changed.
// It reports whether the plugin was not serving before.
func (r *Registry) listed(l *link, on *session, list roster) (back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.supplies[l.resource]
	if r.closing || s == nil || s.link != l {
		return false
	}
	back = s.state != device.Serving || !s.reported
	if !back && s.session == on && device.SameList(s.devices, list.devices) {
		return false
	}
	s.endGrace()
	if s.state != device.Serving {
		s.since = time.Now()
		r.arrivals++
		s.number = r.arrivals
	}
	s.session, s.preStart, s.prefers = on, on.preStart, on.prefers
	s.roster, s.reported, s.state = list, true, device.Serving
	r.memory.note(l.resource)
	r.signal()
	return back
}

// ended takes notice that a link's stream has ended. It tells whether that was news.
func (r *Registry) ended(l *link) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.supplies[l.resource]
	if r.closing || s == nil || s.link != l {
		return false
	}
	return r.awayLocked(s)
}

// awayLocked makes the offer of a supply that has lost its plugin Stale. It tells whether that was news.
func (r *Registry) awayLocked(s *supply) (news bool) {
	if s.session != nil {
		r.signal()
	}
	s.session = nil
	r.metrics.setUp(s.resource, false)
	if s.state != device.Serving {
		return false
	}
	// A plugin whose first stream fails has, as the kubelet sees it, listed nothing: the resource is published with
	// zero devices. Without a number on the node, pods that ask for it would be admitted unchecked.
	s.reported = true
	s.state, s.since = device.Stale, time.Now()
	r.graceLocked(s, r.cfg.GracePeriod)
	r.memory.note(s.resource)
	r.signal()
	return true
}

// unreached takes notice that the link could not reach its plugin, or not follow it any longer.
func (r *Registry) unreached(l *link, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.supplies[l.resource]
	if r.closing || s == nil || s.link != l {
		return
	}
	s.fail(err.Error())
	r.memory.note(l.resource) // a plugin that served before devmgrd's restart is away since then
}

// unmet takes notice that a plugin of the resource was not registered.
func (r *Registry) unmet(resource device.ResourceName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.supplies[resource]; s != nil && !r.closing {
		s.fail("registration refused: " + err.Error())
	}
}

// lost tells whether the link is the current one of an offer that is Lost.
func (r *Registry) lost(l *link) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.supplies[l.resource]
	return s != nil && s.link == l && s.state == device.Lost
}

// dialTime is what a remembered plugin has at least to be dialled and to list its devices before it is Lost: it may have
// come back while devmgrd was down.
const dialTime = 10 * time.Second

// graceLeft returns what is left of the grace period of a plugin that is away since then. A plugin cannot have come back
// before the machine was booted.
func (r *Registry) graceLeft(since, booted time.Time) time.Duration {
	if since.Before(booted) {
		since = booted
	}
	left := r.cfg.GracePeriod - time.Since(since)
	return min(max(left, dialTime), r.cfg.GracePeriod)
}

// bootTime returns when the machine was booted, by the clock as it is now.
func bootTime() time.Time {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}
	}
	return time.Now().Round(0).Add(-time.Duration(up.Nano()))
}

// graceLocked starts the clock that turns a Stale offer into a Lost one. Whoever ends it does so under the lock, so a
// clock that runs out at the same moment knows that it came too late.
func (r *Registry) graceLocked(s *supply, left time.Duration) {
	s.endGrace()
	ctx, cancel := context.WithCancel(context.Background())
	s.endGrace = cancel
	r.work.Go(func() {
		defer cancel()
		clock := time.NewTimer(left)
		defer clock.Stop()
		select {
		case <-ctx.Done():
		case <-clock.C:
			r.lose(ctx, s)
		}
	})
}

func (r *Registry) lose(ctx context.Context, s *supply) {
	r.mu.Lock()
	gone := ctx.Err() == nil && s.state == device.Stale
	if gone {
		s.state = device.Lost
		r.memory.note(s.resource)
		r.signal()
	}
	away, connected := time.Since(s.since), s.session != nil
	r.mu.Unlock()
	if gone {
		r.log.Warn("plugin is lost: only devices in use still count", "resource", s.resource,
			"away", away.Round(time.Millisecond), "connected", connected)
	}
}

// record gives what there is to remember of a resource.
func (r *Registry) record(resource device.ResourceName) (device.PluginRecord, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.supplies[resource]
	if s == nil {
		return device.PluginRecord{}, false
	}
	return s.record(), true
}
