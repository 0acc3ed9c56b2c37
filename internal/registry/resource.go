package registry

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A resourceState is what is known of one resource. Its fields are guarded by Registry.mu.
type resourceState struct {
	resource     device.ResourceName
	registration *registration // the current registration; others are not heard
	session      *session      // the connection to the plugin, where calls go while it is serving; nil while the plugin is away
	number       uint64        // device.Offer.Session
	deviceList                 // of the plugin's latest list
	weight       int           // of the roster
	reported     bool
	preStart     bool
	prefers      bool
	state        device.OfferState
	since        time.Time          // it has been serving, or away
	endGrace     context.CancelFunc // stops the clock from Stale to Lost

	lastError   string
	lastErrorAt time.Time
}

// remembered returns the supply of a plugin that the store knows of. A loss, and since when the plugin is away, outlast
// a restart of devmgrd: the published number does not rise before the plugin lists its devices.
func remembered(k device.PluginRecord, l *registration) *resourceState {
	s := &resourceState{
		resource: k.Resource, registration: l, deviceList: deviceListOf(k), reported: k.Reported,
		state: device.Stale, since: time.Now(), endGrace: func() {},
	}
	s.weight = s.deviceList.weight()
	if k.Lost {
		s.state = device.Lost
	}
	if !k.Away.IsZero() && k.Away.Before(s.since) { // else the clock was set back
		s.since = k.Away
	}
	return s
}

func (s *resourceState) offer() device.Offer {
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

func (s *resourceState) record() device.PluginRecord {
	r := device.PluginRecord{Resource: s.resource, Endpoint: s.registration.endpoint, Pod: s.registration.home.pod, Reported: s.reported, Devices: s.devices}
	if s.state != device.Serving {
		r.Away, r.Lost = s.since.Round(0), s.state == device.Lost
	}
	return r
}

// fail keeps why the plugin could not be reached, registered or followed.
func (s *resourceState) fail(why string) { s.lastError, s.lastErrorAt = clip(why), time.Now() }

// present reports whether a plugin serves it, or has just come and is about to.
func (s *resourceState) present() bool {
	return s != nil && (s.state == device.Serving || s.session != nil)
}

// nextNumber numbers a registration, so that the newest wins even if an older one takes longer to be checked.
func (r *Registry) nextNumber() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastNumber++
	return r.lastNumber
}

// checkRoom reports whether a registration would be accepted. Nothing is promised: accept asks again, and a lost resource that
// could make room may be in use.
func (r *Registry) checkRoom(l *registration) error {
	r.mu.Lock()
	err := r.checkRoomLocked(l)
	r.mu.Unlock()
	if errors.As(err, new(*fullError)) && len(r.lostResources()) > 0 {
		return nil
	}
	return err
}

func (r *Registry) checkRoomLocked(l *registration) error {
	s := r.resources[l.resource]
	switch {
	case r.closing:
		return errStopping
	case s == nil && len(r.resources) >= r.cfg.MaxResources:
		return &fullError{resource: l.resource, limit: r.cfg.MaxResources}
	case s != nil && r.cfg.RejectDuplicates && s.state == device.Serving && s.registration.path != l.path:
		return &takenError{resource: l.resource, endpoint: s.registration.endpoint}
	}
	// A process that registers another plugin's socket under a name of its own would take that plugin out of service, and could
	// then register the name that has become free.
	if rival := r.sameSocketLocked(l); rival != nil && r.cfg.RejectDuplicates && rival.state == device.Serving {
		return &socketTakenError{endpoint: l.endpoint, resource: rival.resource}
	}
	return nil
}

// accept puts l in its predecessor's place and starts it. The predecessor's inventory, and how far it may be trusted,
// stay until the new plugin has sent its first list. On error nothing has changed and the session is still the caller's.
//
// It names the resource that has lost its socket to l, if there is one. ListAndWatch names no resource: a caller that dials the
// socket gets the new plugin's list, and the same devices would be offered, and given out, under both names. So a socket
// belongs to one resource, and the newest registration has it. A plugin that serves several resources has a socket for
// each; the API leaves it no other way.
func (r *Registry) accept(l *registration, to *session) (loser device.ResourceName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.checkRoomLocked(l); err != nil {
		return "", err
	}
	s, rival := r.resources[l.resource], r.sameSocketLocked(l)
	if s != nil && s.registration.id > l.id || rival != nil && rival.registration.id > l.id {
		return "", errOvertaken
	}
	if rival != nil {
		r.dropSocketLocked(rival, evicted)
		loser = rival.resource
	}
	if s == nil {
		s = &resourceState{resource: l.resource, registration: l, state: device.Serving, since: time.Now(), endGrace: func() {}}
		r.resources[l.resource] = s
	} else {
		s.registration.cancel()
	}
	s.registration, s.session, s.number, s.preStart, s.prefers = l, to, l.id, to.preStart, to.prefers
	if s.state == device.Stale {
		r.graceLocked(s, r.cfg.GracePeriod) // the whole of it: the plugin has just shown that it lives
	}
	r.startLocked(l, to)
	r.metrics.registrations.WithLabelValues(string(l.resource)).Inc()
	r.metrics.setUp(l.resource, true)
	r.metrics.setPod(l.resource, l.home.pod)
	r.saver.note(l.resource)
	r.directories.notify()
	r.signal()
	return loser, nil
}

// sameSocketLocked returns the supply of another resource whose plugin listens, or listened, at l's socket. There is at most
// one.
func (r *Registry) sameSocketLocked(l *registration) *resourceState {
	for _, s := range r.resources {
		if s.registration.path == l.path && s.resource != l.resource {
			return s
		}
	}
	return nil
}

// withdraw takes out a plugin that came through a registration socket that is gone. If another registration of the
// resource has been accepted meanwhile, that one stays.
func (r *Registry) withdraw(l *registration) {
	r.mu.Lock()
	s := r.resources[l.resource]
	current := !r.closing && s != nil && s.registration == l
	if current {
		r.dropSocketLocked(s, withdrawn)
	}
	r.mu.Unlock()
	if current {
		r.callAgain() // one that was replaced by it may be in another directory
		l.log.Warn("plugin withdrawn; allocation paused", "grace", r.cfg.GracePeriod)
	}
}

// dropSocketLocked leaves a supply without a plugin's socket. No plugin serves it, so any registration is newer than what is left.
func (r *Registry) dropSocketLocked(s *resourceState, lack string) {
	s.registration.cancel()
	s.registration = newRegistration(r, 0, s.resource, s.registration.home, "")
	s.registration.lack = lack
	s.fail(lack)
	r.awayLocked(s)
	r.saver.note(s.resource)
	r.signal()
}

// orphaned reports whether the resource's plugin has been withdrawn and no other has come, or whether it has been forgotten.
func (r *Registry) orphaned(resource device.ResourceName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[resource]
	return s == nil || s.registration.lack == withdrawn || s.registration.lack == podGone
}

// startLocked runs the link, on the session if there is one. Its life is its own: it outlasts the call of Register
// that brought it about and ends when it is replaced or forgotten, or when the registry closes.
func (r *Registry) startLocked(l *registration, on *session) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	r.work.Go(func() {
		defer cancel()
		l.Run(ctx, on)
	})
}

// deviceList returns what a link starts from.
func (r *Registry) deviceList(resource device.ResourceName) deviceList {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.resources[resource]; s != nil {
		return s.deviceList
	}
	return deviceList{}
}

// connected takes notice that a link has reached its plugin again. What the plugin offered before counts as it did, until
// the plugin lists its devices.
func (r *Registry) connected(l *registration, on *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	if r.closing || s == nil || s.registration != l {
		return
	}
	s.session = on
	r.metrics.setUp(l.resource, true)
	r.signal()
}

// listed takes the list that a link has received. Its devices are the same slice as before if nothing has changed.
// It reports whether the plugin was not serving before.
func (r *Registry) listed(l *registration, on *session, list deviceList) (back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	if r.closing || s == nil || s.registration != l {
		return false
	}
	back = s.state != device.Serving || !s.reported
	if !back && s.session == on && device.SameList(s.devices, list.devices) {
		return false
	}
	s.endGrace()
	if s.state != device.Serving {
		s.since = time.Now()
		r.lastNumber++
		s.number = r.lastNumber
	}
	s.session, s.preStart, s.prefers = on, on.preStart, on.prefers
	s.deviceList, s.reported, s.state = list, true, device.Serving
	r.saver.note(l.resource)
	r.signal()
	return back
}

// ended takes notice that a link's stream has ended. It reports whether that was news.
func (r *Registry) ended(l *registration) (news bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	if r.closing || s == nil || s.registration != l {
		return false
	}
	return r.awayLocked(s)
}

// awayLocked makes the offer of a supply that has lost its plugin Stale. It reports whether that was news.
func (r *Registry) awayLocked(s *resourceState) (news bool) {
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
	r.saver.note(s.resource)
	r.signal()
	return true
}

// unreached takes notice that the link could not reach its plugin, or not follow it any longer.
func (r *Registry) unreached(l *registration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	if r.closing || s == nil || s.registration != l {
		return
	}
	s.fail(err.Error())
	r.saver.note(l.resource) // a plugin that served before devmgrd's restart is away since then
}

// registrationRefused takes notice that a plugin of the resource was not registered.
func (r *Registry) registrationRefused(resource device.ResourceName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.resources[resource]; s != nil && !r.closing {
		s.fail("registration refused: " + err.Error())
	}
}

// lost reports whether the link is the current one of an offer that is Lost.
func (r *Registry) lost(l *registration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	return s != nil && s.registration == l && s.state == device.Lost
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

// graceLocked starts the clock that turns a Stale offer into a Lost one. A caller that ends it holds the lock, so a
// clock that runs out at the same moment knows that it came too late.
func (r *Registry) graceLocked(s *resourceState, left time.Duration) {
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

func (r *Registry) lose(ctx context.Context, s *resourceState) {
	r.mu.Lock()
	gone := ctx.Err() == nil && s.state == device.Stale
	if gone {
		s.state = device.Lost
		r.saver.note(s.resource)
		r.signal()
	}
	away, connected := time.Since(s.since), s.session != nil
	r.mu.Unlock()
	if gone {
		r.log.Warn("plugin lost; capacity reduced to devices in use", "resource", s.resource,
			"away", away.Round(time.Millisecond), "connected", connected)
	}
}

// record returns what there is to remember of a resource.
func (r *Registry) record(resource device.ResourceName) (device.PluginRecord, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[resource]
	if s == nil {
		return device.PluginRecord{}, false
	}
	return s.record(), true
}
