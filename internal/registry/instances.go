package registry

import (
	"context"
	"log/slog"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Several plugins may serve one resource: the old and the new pod of a roll-out with surge, or two plugins by mistake. One of them is current: of those that
// have listed their devices the newest. The others are kept connected in reserve, with their lists. When the current one ends, one in reserve takes its
// place at once, with its own list: a roll-out that is rolled back leaves no gap. One in reserve that ends is forgotten; it has to register again.

// maxReserve is the number of plugins in reserve of one resource. The oldest makes room.
const maxReserve = 3

// queueLocked keeps a newly connected plugin in reserve until it lists its devices, and reports whether it did: the current plugin serves, and listens on
// another socket.
func (s *resourceState) queueLocked(l *registration, on *session) bool {
	if s.state != device.Serving || s.session == nil || s.registration.path == l.path {
		return false
	}
	s.retireLocked(func(other *registration) bool { return other.path == l.path })
	if len(s.reserve) == maxReserve {
		s.reserve[0].cancel()
		s.reserve = slices.Delete(s.reserve, 0, 1)
	}
	l.session = on
	s.reserve = append(s.reserve, l)
	return true
}

// all returns the current registration and those in reserve.
func (s *resourceState) all() []*registration {
	return append([]*registration{s.registration}, s.reserve...)
}

// reserves reports whether a registration is in reserve.
func (s *resourceState) reserves(l *registration) bool {
	return s != nil && slices.Contains(s.reserve, l)
}

// retireLocked ends the registrations in reserve that match.
func (s *resourceState) retireLocked(match func(*registration) bool) {
	s.reserve = slices.DeleteFunc(s.reserve, func(l *registration) bool {
		if match(l) {
			l.cancel()
			return true
		}
		return false
	})
}

// useLocked makes a registration in reserve the current one, and puts the former one in reserve if it is connected.
func (r *Registry) useLocked(s *resourceState, l *registration) {
	former := s.registration
	former.session, former.list, former.weight, former.listed = s.session, s.deviceList, s.weight, s.lister == s.session
	s.reserve = slices.DeleteFunc(s.reserve, func(other *registration) bool { return other == l })
	if former.session == nil {
		former.cancel()
	} else {
		s.reserve = append(s.reserve, former)
	}
	r.lastNumber++
	s.registration, s.session, s.number, s.preStart, s.prefers = l, l.session, r.lastNumber, l.session.preStart, l.session.prefers
	s.deviceList, s.weight, s.lister, s.listed = l.list, l.weight, l.session, r.lastNumber
	l.session, l.list, l.weight = nil, deviceList{}, 0
	r.metrics.setUp(s.resource, true)
	r.metrics.setPod(s.resource, s.registration.location.pod)
	r.saver.note(s.resource)
	r.directories.notify()
	r.signal()
}

// succeedLocked replaces the current plugin, whose connection has ended, by the newest in reserve that has listed its devices, and reports whether there
// is one.
func (r *Registry) succeedLocked(s *resourceState) bool {
	var next *registration
	for _, l := range s.reserve {
		if l.listed && (next == nil || l.id > next.id) {
			next = l
		}
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
