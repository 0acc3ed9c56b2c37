package nodestatus

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A stage plays a Node that shows what is written to it.
type stage struct {
	t         *testing.T
	moderator *moderator
	shown     map[string]shownCondition
	now       time.Time
	writes    int
}

func newStage(t *testing.T) *stage {
	return &stage{t, newModerator(), map[string]shownCondition{}, time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC), 0}
}

var (
	fine   = condition{devicesHealthy, true, "AllDevicesHealthy", "vendor.example/gpu: 2"}
	broken = condition{devicesHealthy, false, "DeviceUnhealthy", "vendor.example/gpu: 1 of 2 devices are unhealthy: b"}
)

// plays has the condition be c for a time, and asks as often as the publisher would.
func (s *stage) plays(c condition, lasts time.Duration) {
	s.t.Helper()
	for end := s.now.Add(lasts); s.now.Before(end); {
		write, again := s.moderator.next([]condition{c}, s.shown, s.now)
		for _, w := range write {
			s.shown[w.Type] = shownCondition{w, s.now}
			s.moderator.written(s.now)
			s.writes++
		}
		next := s.now.Add(componentsLook)
		if !again.IsZero() && again.Before(next) {
			next = again
		}
		if !next.After(s.now) {
			s.t.Fatal("it wants to be asked again at once, for ever")
		}
		s.now = next
		if next.After(end) {
			s.now = end
		}
	}
}

func (s *stage) shows(want condition) {
	s.t.Helper()
	if got := s.shown[want.Type].condition; got != want {
		s.t.Errorf("the Node shows %+v, want %+v", got, want)
	}
}

func TestModerator_ProblemThatLasts_IsShownUntilItHasBeenGoneForAWhile(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.plays(fine, time.Second)
	s.shows(fine)
	s.plays(fine, time.Minute)
	s.plays(broken, devicesPatience-time.Second)
	s.shows(fine)
	s.plays(broken, 2*time.Second)
	s.shows(broken)
	s.plays(fine, recovery-time.Second)
	s.shows(broken)
	s.plays(fine, 2*time.Second)
	s.shows(fine)
	if s.writes != 3 {
		t.Errorf("%d writes, want one for each change", s.writes)
	}
	s.plays(fine, time.Hour)
	if s.writes != 3 {
		t.Errorf("%d writes at rest", s.writes-3)
	}
}

// A plugin that lists nothing for a moment is no problem; a device that flaps is one problem, and not many.
func TestModerator_Flaps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.plays(fine, time.Minute)
	s.plays(broken, time.Second)
	s.plays(fine, time.Minute)
	s.shows(fine)
	if s.writes != 1 {
		t.Errorf("%d writes, want the first only", s.writes)
	}
	for range 1000 {
		s.plays(broken, time.Second)
		s.plays(fine, 2*time.Second)
	}
	s.shows(broken)
	s.plays(fine, time.Minute)
	s.shows(fine)
	if s.writes != 3 {
		t.Errorf("%d writes for a device that flapped, want 2", s.writes-1)
	}
}

// Messages that change all the time are written once in ten seconds.
func TestModerator_MessageChanges_WritesAreLimited(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	began := s.now
	for i := range 600 {
		c := broken
		c.Message = string(rune('a' + i%20))
		s.plays(c, 500*time.Millisecond)
	}
	if most := int(s.now.Sub(began)/betweenConditions) + 1; s.writes > most || s.writes < most/2 {
		t.Errorf("%d writes in %s, want at most %d", s.writes, s.now.Sub(began), most)
	}
}

func TestModerator_AnotherWriterRemovesIt_IsWrittenAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.plays(fine, time.Minute)
	clear(s.shown)
	s.plays(fine, time.Minute)
	s.shows(fine)
}

func TestConditionsPatch_TransitionTime_ChangesWithTheStatusOnly(t *testing.T) {
	t.Parallel()
	then := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	now := then.Add(time.Hour)
	other := fine
	other.Message = "vendor.example/gpu: 3"
	for _, c := range []struct {
		next  condition
		since time.Time
	}{{other, then}, {broken, now}} {
		body, err := conditionsPatch([]condition{c.next}, map[string]shownCondition{devicesHealthy: {fine, then}}, now)
		if err != nil {
			t.Fatal(err)
		}
		var patch struct{ Status corev1.NodeStatus }
		if err := json.Unmarshal(body, &patch); err != nil {
			t.Fatal(err)
		}
		got := patch.Status.Conditions[0]
		if !got.LastTransitionTime.Time.Equal(c.since) || !got.LastHeartbeatTime.Time.Equal(now) || got.Message != c.next.Message || (got.Status == corev1.ConditionTrue) != c.next.True {
			t.Errorf("%s", body)
		}
	}
}

// Blips that are short and far apart are no lasting problem, and neither are two on both sides of an outage of the API server.
func TestModerator_BlipsFarApart_AreNotShown(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.plays(fine, time.Minute)
	for range 10 {
		s.plays(broken, time.Second)
		s.plays(fine, 40*time.Second)
	}
	s.plays(broken, time.Second)
	s.plays(fine, 20*time.Second)
	s.plays(broken, time.Second)
	s.plays(fine, time.Minute)
	for range 3 {
		s.plays(broken, 3*time.Second)
		s.moderator.interrupt()
		s.now = s.now.Add(time.Hour)
	}
	s.plays(fine, time.Minute)
	s.shows(fine)
	if s.writes != 1 {
		t.Errorf("%d writes, want the first only", s.writes)
	}
}

// A problem that is shown stays shown over an outage of the API server, until there has been none for the recovery time.
func TestModerator_Interrupted_ShownProblemStays(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.plays(fine, time.Minute)
	s.plays(broken, devicesPatience+2*time.Second)
	s.shows(broken)
	s.moderator.interrupt()
	s.plays(fine, recovery-3*time.Second)
	s.shows(broken)
	s.plays(fine, 10*time.Second)
	s.shows(fine)
}
