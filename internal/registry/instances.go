package registry

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"google.golang.org/grpc/connectivity"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Several plugins may serve one resource: the old and the new pod of a roll-out with surge, or two plugins by mistake. One of them is current: of those that
// have listed their devices the newest. The others are kept connected in reserve, with their lists. When the current one ends, one in reserve takes its
// place at once, with its own list: a roll-out that is rolled back leaves no gap. One in reserve that ends is forgotten; it has to register again.
//
// Where there is no room for the lists of all (plugins.maxTotalBytes), those but the current one rest: devmgrd has ended their streams, dropped their lists and
// kept the connections. The room of a dropped list stays its plugin's. When the current one ends, the newest that rests lists again, and serves a moment later.
//
// The state file names those in reserve as well: after a restart of devmgrd they are dialled when the current one has listed its devices or cannot be reached.
// One that is not reached is forgotten when its socket is gone or has no listener, and dialled again otherwise.

// maxReserve is the number of plugins in reserve of one resource. The oldest makes room.
const maxReserve = 3

// queues reports whether a newly connected plugin waits in reserve until it lists its devices.
func (s *resourceState) queues(l *registration) bool {
	return s.state == device.Serving && s.session != nil && s.registration.path != l.path
}

// queueLocked keeps a newly connected plugin in reserve until it lists its devices, and reports whether it did: the current plugin serves, and listens on
// another socket.
func (r *Registry) queueLocked(s *resourceState, l *registration, on *session) bool {
	if !s.queues(l) {
		return false
	}
	l.session = on
	r.reserveLocked(s, l)
	return true
}

// reserveLocked adds a registration to those in reserve.
func (r *Registry) reserveLocked(s *resourceState, l *registration) {
	if len(s.reserve) == maxReserve {
		s.reserve[0].cancel()
		s.reserve = slices.Delete(s.reserve, 0, 1)
	}
	s.reserve = append(s.reserve, l)
	r.saver.note(s.resource)
}

// all returns the current registration and those in reserve.
func (s *resourceState) all() []*registration {
	return append([]*registration{s.registration}, s.reserve...)
}

// end ends all registrations of the resource.
func (s *resourceState) end() {
	for _, l := range s.all() {
		l.cancel()
	}
	s.endTimer()
}

// connected returns those in reserve that are connected.
func (s *resourceState) connected() []*registration {
	return slices.DeleteFunc(slices.Clone(s.reserve), func(l *registration) bool { return l.session == nil })
}

// reserves reports whether a registration is in reserve.
func (s *resourceState) reserves(l *registration) bool {
	return s != nil && slices.Contains(s.reserve, l)
}

// latest returns the newest registration in reserve that matches; nil: none does.
func (s *resourceState) latest(match func(*registration) bool) (found *registration) {
	for _, l := range s.reserve {
		if match(l) && (found == nil || l.id > found.id) {
			found = l
		}
	}
	return found
}

// endReserveLocked ends the registrations in reserve that match.
func (r *Registry) endReserveLocked(s *resourceState, match func(*registration) bool) {
	s.reserve = slices.DeleteFunc(s.reserve, func(l *registration) bool {
		if match(l) {
			l.cancel()
			r.saver.note(s.resource)
			return true
		}
		return false
	})
}

// rememberedPlugins returns the registrations of a record: the current one, and those in reserve.
func (r *Registry) rememberedPlugins(k device.PluginRecord) (current *registration, reserve []*registration) {
	add := func(newer bool) {
		for _, p := range k.Reserve {
			if p.Newer == newer && len(reserve) < maxReserve {
				reserve = append(reserve, r.rememberedPlugin(k.Resource, p.Pod, p.Quota, p.Endpoint))
			}
		}
	}
	add(false)
	current = r.rememberedPlugin(k.Resource, k.Pod, k.Quota, k.Endpoint)
	add(true)
	for _, l := range reserve {
		l.after = current.tried
	}
	return current, reserve
}

// rememberedPlugin returns the registration of a plugin in a record.
func (r *Registry) rememberedPlugin(resource device.ResourceName, pod device.PluginPod, quota device.Quota, endpoint string) *registration {
	r.lastNumber++
	l := newRegistration(r, r.lastNumber, resource, r.locationOfPod(pod), endpoint)
	if !pod.Known() {
		l.quota = quota
	}
	return l
}

// recorded returns the quota for the state file; zero if the pod that is recorded tells it.
func (l *registration) recorded() device.Quota {
	if l.location.pod.Known() {
		return device.Quota{}
	}
	return l.quota
}

// useLocked makes a registration in reserve the current one. The dates of its list may be older than the former one's list: it is dated again, and so
// is its next list.
func (r *Registry) useLocked(s *resourceState, l *registration) {
	s.reserve = slices.DeleteFunc(s.reserve, func(other *registration) bool { return other == l })
	former := s.deviceList
	r.setAsideLocked(s)
	r.lastNumber++
	s.passLocked(l)
	s.session, s.number, s.preStart, s.prefers = l.session, r.lastNumber, l.session.preStart, l.session.prefers
	s.deviceList, l.redated = l.list.after(&former, time.Now(), r.cfg.MaxDevices), true
	s.weight, s.lister, s.listed = s.deviceList.weight(), l.session, r.lastNumber
	l.session, l.list, l.weight = nil, deviceList{}, 0
	r.metrics.setUp(s.resource, true)
	r.metrics.setPod(s.resource, s.registration.location.pod)
	r.saver.note(s.resource)
	r.directories.notify()
	r.signal()
}

// setAsideLocked puts the current registration in reserve if it can be reached and duplicates are not rejected. Another one takes its place.
func (r *Registry) setAsideLocked(s *resourceState) {
	l := s.registration
	if s.session == nil && (l.gone || l.endpoint == "") || r.cfg.RejectDuplicates {
		l.cancel()
		return
	}
	l.session, l.list, l.weight = s.session, s.deviceList, s.weight
	if !l.listed {
		l.list = deviceList{}
	}
	r.reserveLocked(s, l)
}

// succeedLocked replaces the current plugin, whose connection has ended, by the newest in reserve that has listed its devices, and reports whether there
// is one.
func (r *Registry) succeedLocked(s *resourceState) bool {
	next := s.latest(func(l *registration) bool { return l.listed })
	if next == nil {
		s.resumeLocked()
	}
	if next == nil || s.state != device.Serving {
		return false
	}
	former := s.registration
	s.session = nil
	r.useLocked(s, next)
	r.steadyLocked(s)
	next.log.Log(context.Background(), s.levelLocked(slog.LevelWarn), "plugin ended; another instance serves", "former", former.where(), "devices", len(s.devices))
	return true
}

// succeeds reports whether a plugin of the resource is the current one when it lists its devices.
func (s *resourceState) succeeds(l *registration) bool {
	return s.registration == l || l.id > s.registration.id || s.state != device.Serving
}

// errRests is why the stream of a plugin ends that rests.
var errRests = errors.New("the plugin rests: there is no room for its list next to that of another plugin of the resource")

// restLocked ends a plugin's stream, and drops its list.
func (l *registration) restLocked() {
	l.rest, l.resume = context.WithCancel(context.Background())
	l.list, l.listed = deviceList{}, false
	l.endStream()
}

// resumeLocked lets the newest plugin that rests list its devices again.
func (s *resourceState) resumeLocked() {
	if l := s.latest(func(l *registration) bool { return l.rest != nil }); l != nil {
		l.resume()
	}
}

// rest makes a plugin rest whose list was not accepted, unless the one that it rests for has just ended.
func (r *Registry) rest(l *registration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.resources[l.resource]; s.reserves(l) && !s.succeeds(l) {
		l.restLocked()
	}
}

// awaitTurn returns nil when a plugin that rests is needed again, or does not rest, and an error when its connection has ended.
func (r *Registry) awaitTurn(ctx context.Context, l *registration, on *session) error {
	r.mu.Lock()
	rest, resume := l.rest, l.resume
	r.mu.Unlock()
	if rest == nil {
		return nil
	}
	defer resume()
	defer context.AfterFunc(ctx, resume)()
	broken := on.conn.WaitForStateChange(rest, connectivity.Ready)
	r.mu.Lock()
	defer r.mu.Unlock()
	l.rest = nil
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case broken:
		return errors.New("the connection to the plugin has ended")
	}
	return nil
}

// streams notes how the plugin's stream is ended.
func (r *Registry) streams(l *registration, end context.CancelFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.endStream = end
}

// rests reports whether a plugin rests.
func (r *Registry) rests(l *registration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.rest != nil
}
