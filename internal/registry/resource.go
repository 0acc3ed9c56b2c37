package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A resourceState is one resource. Registry.mu guards its fields.
type resourceState struct {
	resource     device.ResourceName
	registration *registration // the current one
	reserve      []*registration
	session      *session // the connection to the plugin; nil: the plugin is away
	number       uint64   // device.Offer.Session
	deviceList            // of the plugin's latest list
	weight       int      // of deviceList
	account      string   // in the quotas of whose pods it counts, see quota.go; empty: of none
	lister       *session // the connection that has sent deviceList; nil: it is from the state file
	listed       uint64   // device.Offer.Listed
	reported     bool
	preStart     bool
	prefers      bool
	state        device.OfferState
	since        time.Time          // start of serving, or of the absence
	endTimer     context.CancelFunc // stops the timer: from Stale to Lost, or to the end of restarts
	lostAt       time.Time          // when a Stale offer becomes Lost
	restarts     restarts

	lastError   string
	lastErrorAt time.Time
}

// remembered returns a resource from the state file. The time since which its plugin is away is kept over a restart of devmgrd, so
// that the published capacity does not rise before the plugin lists its devices.
func remembered(k device.PluginRecord, l *registration, reserve ...*registration) *resourceState {
	s := &resourceState{
		resource: k.Resource, registration: l, reserve: reserve, deviceList: deviceListOf(k, time.Now()), account: k.Account, reported: k.Reported,
		state: device.Stale, since: time.Now(), endTimer: func() {},
	}
	s.weight = s.deviceList.weight()
	if k.Lost {
		s.state = device.Lost
	}
	if !k.Away.IsZero() && k.Away.Before(s.since) { // otherwise the clock was set back
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
		State: s.state, Since: since, Session: s.number, Listed: s.listed, Newest: s.newest, Reported: s.reported, PreStart: s.preStart, Prefers: s.prefers,
		LastError: s.lastError, LastErrorAt: s.lastErrorAt,
	}
}

func (s *resourceState) record() device.PluginRecord {
	r := device.PluginRecord{Resource: s.resource, Endpoint: s.registration.endpoint, Pod: s.registration.location.pod, Quota: s.registration.recorded(), Account: s.account, Reported: s.reported, Devices: s.devices, Newest: s.newest}
	for _, l := range slices.SortedFunc(slices.Values(s.reserve), func(a, b *registration) int { return cmp.Compare(a.id, b.id) }) {
		r.Reserve = append(r.Reserve, device.ReservePlugin{Endpoint: l.endpoint, Pod: l.location.pod, Quota: l.recorded(), Newer: l.id > s.registration.id})
	}
	if s.state != device.Serving {
		r.Away, r.Lost = s.since.Round(0), s.state == device.Lost
	}
	return r
}

// fail records the last error.
func (s *resourceState) fail(why string) {
	s.lastError, s.lastErrorAt = device.ClipTo(why, maxError), time.Now()
}

// present reports whether a plugin serves the resource, or is connected and about to.
func (s *resourceState) present() bool {
	return s != nil && (s.state == device.Serving || s.session != nil || len(s.connected()) > 0)
}

// nextNumber numbers a registration, so that the newest wins even if an older one takes longer to be checked.
func (r *Registry) nextNumber() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastNumber++
	return r.lastNumber
}

// checkAcceptable returns an error if a registration would be refused. accept checks again.
func (r *Registry) checkAcceptable(l *registration) error {
	r.mu.Lock()
	err := r.checkAcceptableLocked(l, nil)
	r.mu.Unlock()
	if _, makes := makesRoom(err); makes && r.hasLost() {
		return nil // accept decides
	}
	return err
}

func (r *Registry) checkAcceptableLocked(l *registration, forgettable map[device.ResourceName]bool) error {
	s := r.resources[l.resource]
	if r.closing {
		return errStopping
	}
	if err := r.checkQuotaLocked(l, forgettable); err != nil {
		return err
	}
	switch {
	case s == nil && len(r.resources) >= r.cfg.MaxResources:
		return &fullError{resource: l.resource, limit: r.cfg.MaxResources}
	case s != nil && r.cfg.RejectDuplicates && s.state == device.Serving && s.registration.path != l.path:
		return &duplicateError{fmt.Sprintf("%s is served by the plugin at %q, and plugins.onDuplicate is reject", l.resource, s.registration.endpoint)}
	}
	// Otherwise a process could register another plugin's socket under a new name, and then register the name that this frees.
	if rival := r.sameSocketLocked(l); rival != nil && r.cfg.RejectDuplicates && rival.state == device.Serving {
		return &duplicateError{fmt.Sprintf("the plugin at %q serves %s, and plugins.onDuplicate is reject; use one socket for each resource", l.endpoint, rival.resource)}
	}
	return nil
}

// accept starts l, and makes it the resource's registration. While another plugin serves the resource at another socket, that follows when l has listed
// its devices. The inventory stays until then. On error nothing has changed, and the caller keeps the session.
//
// accept returns the resource that has lost its socket to l, if there is one. ListAndWatch names no resource, so the new plugin's
// devices would be offered under both names. A socket therefore belongs to one resource: that of the newest registration.
func (r *Registry) accept(l *registration, to *session) (loser device.ResourceName, err error) {
	err = r.tryForgetting(func(forgettable map[device.ResourceName]bool) (err error) {
		loser, err = r.tryAccept(l, to, forgettable)
		return err
	})
	return loser, err
}

func (r *Registry) tryAccept(l *registration, to *session, forgettable map[device.ResourceName]bool) (loser device.ResourceName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.quota = l.quotaAt(to)
	if err := r.checkAcceptableLocked(l, forgettable); err != nil {
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
		s = &resourceState{resource: l.resource, registration: l, state: device.Serving, since: time.Now(), endTimer: func() {}}
		r.resources[l.resource] = s
	}
	for _, other := range r.resources {
		r.endReserveLocked(other, func(o *registration) bool { return o.path == l.path })
	}
	r.metrics.registrations.WithLabelValues(string(l.resource)).Inc()
	if r.queueLocked(s, l, to) {
		r.startLocked(l, to)
		r.directories.notify()
		return loser, nil
	}
	if s.session != nil {
		s.countRestartLocked(l, errAgain) // or its stream's end would have counted
	}
	if s.registration.path == l.path {
		s.registration.cancel()
	} else {
		r.setAsideLocked(s)
	}
	s.passLocked(l)
	s.session, s.number, s.preStart, s.prefers = to, l.id, to.preStart, to.prefers
	switch s.state {
	case device.Stale:
		r.graceLocked(s, r.cfg.GracePeriod) // in full: the plugin is alive
	case device.Serving:
		r.steadyLocked(s)
	}
	r.startLocked(l, to)
	r.metrics.setUp(l.resource, true)
	r.metrics.setPod(l.resource, l.location.pod)
	r.saver.note(l.resource)
	r.directories.notify()
	r.signal()
	return loser, nil
}

// sameSocketLocked returns the other resource whose plugin has l's socket; nil: there is none.
func (r *Registry) sameSocketLocked(l *registration) *resourceState {
	for _, s := range r.resources {
		if s.registration.path == l.path && s.resource != l.resource {
			return s
		}
	}
	return nil
}

// withdraw removes a plugin whose registration socket is gone, unless another registration has replaced it.
func (r *Registry) withdraw(l *registration) {
	r.mu.Lock()
	s := r.resources[l.resource]
	current := !r.closing && s != nil && s.registration == l
	level := slog.LevelDebug // the end of its stream was logged
	if current {
		if r.dropSocketLocked(s, withdrawn) {
			s.countRestartLocked(l, errors.New(withdrawn))
			level = s.levelLocked(slog.LevelWarn)
		}
		if current = s.registration.lack == withdrawn; current {
			r.callAgainLocked() // one that was replaced by it may be in another directory
		}
	} else if s.reserves(l) {
		r.endReserveLocked(s, func(other *registration) bool { return other == l })
	}
	r.mu.Unlock()
	if current {
		l.log.Log(context.Background(), level, "plugin withdrawn; allocation paused", "grace", r.cfg.GracePeriod)
	}
}

// dropSocketLocked ends the current plugin of a resource, and reports whether the resource has lost a serving plugin. Unless one in reserve takes its place, its registration
// has number 0: each other one is newer.
func (r *Registry) dropSocketLocked(s *resourceState, lack string) (served bool) {
	s.registration.cancel()
	s.registration.gone = true // so it is not put in reserve: its connection ends a moment later
	if r.succeedLocked(s) {
		return false
	}
	former := s.registration
	s.registration = newRegistration(r, 0, s.resource, former.location, "")
	s.registration.lack, s.registration.quota = lack, former.quota
	s.fail(lack)
	served = r.awayLocked(s)
	r.saver.note(s.resource)
	r.signal()
	return served
}

// orphaned reports whether the resource's plugin was withdrawn and not replaced, or the resource was forgotten.
func (r *Registry) orphaned(resource device.ResourceName) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[resource]
	return s == nil || s.registration.lack == withdrawn || s.registration.lack == podGone
}

// startLocked runs a registration until it is replaced or forgotten, or the Registry closes.
func (r *Registry) startLocked(l *registration, on *session) {
	ctx, cancel := context.WithCancel(context.Background())
	l.cancel = cancel
	r.work.Go(func() {
		defer cancel()
		l.Run(ctx, on)
	})
}

// deviceList returns a resource's latest list.
func (r *Registry) deviceList(resource device.ResourceName) deviceList {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.resources[resource]; s != nil {
		return s.deviceList
	}
	return deviceList{}
}

// connected records that a plugin is reachable again. Its offer stays as it is until the plugin lists its devices. connected fails if the process that
// answers is another pod's and its quota has no room.
func (r *Registry) connected(l *registration, on *session) error {
	return r.tryForgetting(func(forgettable map[device.ResourceName]bool) error { return r.tryConnect(l, on, forgettable) })
}

func (r *Registry) tryConnect(l *registration, on *session, forgettable map[device.ResourceName]bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.meetLocked(l, on, forgettable); err != nil {
		return err
	}
	s := r.resources[l.resource]
	switch {
	case s.reserves(l):
		l.session = on
	case !r.closing && s != nil && s.registration == l:
		s.session = on
		r.metrics.setUp(l.resource, true)
		r.signal()
	}
	return nil
}

// listed takes over a plugin's list, and returns it with the dates that count, and whether the plugin was not serving before. Unchanged devices are the same slice
// as before. alone: the resource's other plugins rest from then on.
func (r *Registry) listed(l *registration, on *session, list deviceList, alone bool) (dated deviceList, back bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	if r.closing || s == nil || s.registration != l && !s.reserves(l) {
		return list, false
	}
	l.listed = true
	if alone && s.succeeds(l) {
		for _, other := range s.all() {
			if other != l && other.listed {
				other.restLocked()
			}
		}
	}
	if s.registration != l {
		l.list = list
		if !s.succeeds(l) {
			return list, false
		}
		r.useLocked(s, l)
		list, l.redated = s.deviceList, false
		if s.state == device.Serving {
			r.steadyLocked(s)
			s.reported = true
			return list, true
		}
	} else if l.redated {
		list, l.redated = list.after(&s.deviceList, time.Now(), r.cfg.MaxDevices), false
	}
	back = s.state != device.Serving || !s.reported
	if !back && s.session == on && device.SameList(s.devices, list.devices) {
		return list, false
	}
	if back {
		r.steadyLocked(s)
	}
	if s.state != device.Serving {
		s.since = time.Now()
		r.lastNumber++
		s.number = r.lastNumber
	}
	if s.lister != on {
		r.lastNumber++
		s.lister, s.listed = on, r.lastNumber
	}
	s.session, s.preStart, s.prefers = on, on.preStart, on.prefers
	s.deviceList, s.reported, s.state = list, true, device.Serving
	r.saver.note(l.resource)
	r.signal()
	return list, back
}

// ended records that a plugin's stream has ended, and logs that if the plugin was serving.
func (r *Registry) ended(l *registration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	if r.closing || s == nil || s.registration != l && !s.reserves(l) {
		return
	}
	l.listed = false
	s.countRestartLocked(l, err)
	r.endReserveLocked(s, func(other *registration) bool { return other == l })
	if s.registration == l && !r.succeedLocked(s) && r.awayLocked(s) {
		l.log.Log(context.Background(), s.levelLocked(slog.LevelWarn), "plugin disconnected; allocation paused",
			"err", err, "grace", r.cfg.GracePeriod)
	}
}

// awayLocked makes the offer of a disconnected plugin Stale, and reports whether the plugin was serving.
func (r *Registry) awayLocked(s *resourceState) (served bool) {
	if s.session != nil {
		r.signal()
	}
	s.session = nil
	r.metrics.setUp(s.resource, false)
	if s.state != device.Serving {
		return false
	}
	// As under the kubelet, a plugin whose first stream fails has listed no device. The resource is published with 0: without a
	// number on the Node, the kubelet would admit pods that request the resource.
	s.reported = true
	s.state, s.since = device.Stale, time.Now()
	r.graceLocked(s, r.cfg.GracePeriod)
	r.saver.note(s.resource)
	r.signal()
	return true
}

// absent logs that a plugin from the state file is not there at the start.
func (r *Registry) absent(l *registration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.resources[l.resource]; s != nil && s.registration == l && !r.closing {
		s.absentLocked(err)
	}
}

func (s *resourceState) absentLocked(err error) {
	if s.state == device.Stale {
		s.registration.log.Warn("plugin from state file not there; waiting", "err", err, "until", s.lostAt.Round(time.Second))
	}
}

// unreached records why a plugin cannot be reached or followed.
func (r *Registry) unreached(l *registration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	l.gone = nobodyListens(err)
	if s.reserves(l) && l.gone {
		r.endReserveLocked(s, func(other *registration) bool { return other == l })
	}
	if r.closing || s == nil || s.registration != l {
		return
	}
	s.fail(err.Error())
	r.saver.note(l.resource) // a plugin that served before devmgrd's restart is away since then
}

// leftOut records that there was no room for some of a plugin's devices.
func (r *Registry) leftOut(l *registration, devices int, err error) {
	r.mu.Lock()
	if s := r.resources[l.resource]; s != nil && s.registration == l && !r.closing {
		s.fail(fmt.Sprintf("%d new devices left out: %v", devices, err))
		r.signal()
	}
	r.mu.Unlock()
	l.outs.Do(func() { l.log.Warn("new devices left out; no room for them", "devices", devices, "err", err) })
}

// registrationRefused records why a plugin of the resource was refused.
func (r *Registry) registrationRefused(resource device.ResourceName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.resources[resource]; s != nil && !r.closing {
		s.fail("registration refused: " + err.Error())
	}
}

// lost reports whether the offer of a current registration is Lost.
func (r *Registry) lost(l *registration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	return s != nil && s.registration == l && s.state == device.Lost
}

// dialTime is the minimum time for a plugin from the state file to list its devices before it is Lost.
const dialTime = 10 * time.Second

// graceLeft returns the rest of the grace period of a plugin that is away since then, or since the boot, if that was later.
func (r *Registry) graceLeft(since, booted time.Time) time.Duration {
	if since.Before(booted) {
		since = booted
	}
	left := r.cfg.GracePeriod - time.Since(since)
	return min(max(left, dialTime), r.cfg.GracePeriod)
}

// bootTime returns the time of the boot by the present clock.
func bootTime() time.Time {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}
	}
	return time.Now().Round(0).Add(-time.Duration(up.Nano()))
}

// graceLocked starts the timer that makes a Stale offer Lost.
func (r *Registry) graceLocked(s *resourceState, left time.Duration) {
	s.lostAt = time.Now().Add(left)
	r.afterLocked(s, left, func(ctx context.Context) { r.lose(ctx, s) })
}

func (r *Registry) lose(ctx context.Context, s *resourceState) {
	r.mu.Lock()
	gone := ctx.Err() == nil && s.state == device.Stale
	if gone {
		s.state, s.restarts = device.Lost, restarts{}
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

// record returns a resource's record for the state file.
func (r *Registry) record(resource device.ResourceName) (device.PluginRecord, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[resource]
	if s == nil {
		return device.PluginRecord{}, false
	}
	return s.record(), true
}
