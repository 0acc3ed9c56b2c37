package nodestatus

import (
	"maps"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	// shortest is the stabilization window of a resource that does not flap. It covers a plugin whose first list after a start
	// is empty.
	shortest = 5 * time.Second
	// longest bounds the stabilization window. Slower changes are not flapping.
	longest = 3 * time.Minute
	// calm is how long a resource must not rise before its window is the shortest again.
	calm = 10 * time.Minute
	// betweenFalls is the least time between two falls of one resource. A fall costs two patches, and often a third for the
	// rise that follows.
	betweenFalls = 10 * time.Second
)

// A stabilizer decides the published value of one resource: see the package's comment. It works like the stabilization window of a
// HorizontalPodAutoscaler, which grows here so that a device that flaps with any period up to longest costs few falls. Cordoned devices are added before and
// subtracted after, so that a cordon lowers the number at once.
//
// A stabilizer reads no clock: its caller passes the time, which never runs backwards.
type stabilizer struct {
	number int    // the published value, with the cordoned devices
	shown  int    // without them
	want   int    // the last argument of next
	highs  []high // empty: want is the number
	window time.Duration
	fell   time.Time // when number last fell
	lower  time.Time // since when want had been lower then
	fallen bool      // no rise has followed yet
	rose   time.Time // when want rose last
}

// A high is a value that was wanted until some time, and that no later wanted value has reached. The first high of a
// stabilizer is its number; each further high is lower and later.
type high struct {
	number int
	until  time.Time
}

// newStabilizer returns the stabilizer of a resource with the Node's current value.
func newStabilizer(shown int) *stabilizer {
	return &stabilizer{number: shown, want: shown, window: shortest}
}

// next returns the value to publish now that want is wanted, and when to ask again if want stays: zero for never.
func (s *stabilizer) next(want int, now time.Time) (number int, again time.Time) {
	s.take(want, now)
	if len(s.highs) == 0 {
		return s.number, time.Time{}
	}
	due := s.due()
	if now.Before(due) {
		return s.number, due
	}
	s.fell, s.lower, s.fallen = now, s.highs[0].until, true
	for len(s.highs) > 0 && !now.Before(s.highs[0].until.Add(s.window)) {
		s.highs = s.highs[1:]
	}
	s.number = s.want
	if len(s.highs) > 0 {
		s.number = s.highs[0].number
	}
	return s.next(want, now)
}

// take records the wanted value.
func (s *stabilizer) take(want int, now time.Time) {
	switch {
	case want < s.want:
		if len(s.highs) == 0 && now.Sub(s.rose) > calm {
			s.window = shortest
		}
		s.highs = append(s.highs, high{s.want, now})
	case want > s.want:
		s.rose = now
		for len(s.highs) > 0 && s.highs[len(s.highs)-1].number <= want {
			s.highs = s.highs[:len(s.highs)-1]
		}
	}
	s.want = want
	if want <= s.number {
		return
	}
	if lasted := now.Sub(s.lower); s.fallen && lasted < longest { // a longer window would have avoided the fall
		s.window = max(s.window, min(lasted+shortest, longest))
	}
	s.number, s.fallen = want, false
}

// due returns when the number falls: when want has not fallen further for the window, so that devices that fail one after
// the other make one fall, or after two windows at the latest.
func (s *stabilizer) due() time.Time {
	first, last := s.highs[0], s.highs[len(s.highs)-1]
	due := loops.Earliest(last.until.Add(s.window), first.until.Add(2*s.window))
	if soonest := s.fell.Add(betweenFalls); soonest.After(due) {
		return soonest
	}
	return due
}

// lose returns the value to publish now that the plugin counts as lost, and when to ask again: zero for never.
func (s *stabilizer) lose(want int, now time.Time) (number int, again time.Time) {
	if soonest := s.fell.Add(betweenFalls); want < s.number && now.Before(soonest) {
		s.take(want, now)
		return s.number, soonest
	}
	if want < s.number {
		s.fell, s.lower, s.fallen = now, now, true
	}
	s.number, s.want, s.highs = want, want, nil
	return want, time.Time{}
}

// stabilizers are those of all published resources.
type stabilizers map[device.ResourceName]*stabilizer

// keep forgets all but the resources of want.
func (all stabilizers) keep(want map[device.ResourceName]int) {
	maps.DeleteFunc(all, func(r device.ResourceName, _ *stabilizer) bool { _, wanted := want[r]; return !wanted })
}

// next returns the value of a resource to publish now that n is wanted, and when to ask again; zero: never. A new resource begins
// with the Node's current value.
func (all stabilizers) next(r device.ResourceName, n int, sure certain, seen nodeState, now time.Time) (number int, again time.Time) {
	out := sure.out[r]
	if all[r] == nil {
		shown, ok := seen.allocatable[r]
		if !ok {
			shown = n
		}
		all[r] = newStabilizer(shown + out)
		all[r].shown = shown
	}
	next := all[r].next
	if sure.lost[r] {
		next = all[r].lose
	}
	number, again = next(n+out, now)
	// A cordoned device may count for a pod that has been bound before: when it is back in service, the number rises to what is wanted and not beyond.
	all[r].shown = min(number-out, max(all[r].shown, n))
	return all[r].shown, again
}

// certain is what makes a number fall for certain.
type certain struct {
	out  map[device.ResourceName]int  // cordoned devices that no pod has
	lost map[device.ResourceName]bool // the plugin has been away for longer than its grace period
}

func certainOf(resources device.Resources) certain {
	sure := certain{map[device.ResourceName]int{}, map[device.ResourceName]bool{}}
	for r, s := range resources.ByName {
		sure.out[r] = len(s.OutOfService)
		sure.lost[r] = s.Offer != nil && s.Offer.State == device.Lost
	}
	return sure
}
