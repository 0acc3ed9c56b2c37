package failures

import (
	"fmt"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A world is a log's surroundings: one device that a pod has, and the seconds since the start.
type world struct {
	*Log
	start time.Time
	ended bool // the pod
}

func (w *world) at(second int) time.Time { return w.start.Add(time.Duration(second) * time.Second) }

// watch returns what is due, and the second of the next check; 0: none.
func (w *world) watch(second int) string {
	due, _, next := w.Watch(w.at(second), func(device.PodUID) bool { return !w.ended }, MaxWatched)
	text := ""
	for _, d := range due {
		text += [...]string{"unlisted", "lasted", "repeated"}[d.Kind] + fmt.Sprintf("(%d) ", d.Count)
	}
	if !next.IsZero() {
		text += fmt.Sprint("next ", int(next.Sub(w.start).Seconds()))
	}
	return text
}

func (w *world) fail(second int, listed bool) (begins, counts bool) {
	return w.Fail("d", "pod", listed, w.at(second))
}

// settle is a list in which the device is failed or not.
func (w *world) settle(second int, lasts bool) bool {
	if !lasts {
		w.Recover("d", w.at(second))
	}
	return w.Back(w.at(second))
}

func TestLog(t *testing.T) {
	type step struct {
		name string
		do   func(*world) string
		want string
	}
	fails := func(second int, listed bool) func(*world) string {
		return func(w *world) string { begins, counts := w.fail(second, listed); return fmt.Sprint(begins, counts) }
	}
	settles := func(second int, lasts bool) func(*world) string {
		return func(w *world) string { return fmt.Sprint(w.settle(second, lasts)) }
	}
	watches := func(second int) func(*world) string {
		return func(w *world) string { return w.watch(second) }
	}
	sets := func(f func(*world)) func(*world) string {
		return func(w *world) string { f(w); return "" }
	}
	recent := func(second int) func(*world) string {
		return func(w *world) string { return fmt.Sprint(w.Recent(w.at(second))["d"].Count) }
	}
	for name, steps := range map[string][]step{
		"an unhealthy device counts at once, and lasts": {
			{"fails", fails(0, true), "true true"}, {"still fails", fails(1, true), "false false"},
			{"watch", watches(2), "next 10"}, {"watch", watches(10), "lasted(1) "}, {"once", watches(11), ""},
		},
		"an unlisted device counts after the grace": {
			{"fails", fails(0, false), "true false"}, {"watch", watches(1), "next 5"}, {"watch", watches(5), "unlisted(1) next 10"},
			{"watch", watches(10), "lasted(1) "},
		},
		"a late check finds both": {{"fails", fails(0, false), "true false"}, {"watch", watches(20), "unlisted(1) lasted(1) "}},
		"a device that recovers does not last": {
			{"fails", fails(0, true), "true true"}, {"recovers", settles(3, false), "false"}, {"watch", watches(20), "next 3600"},
		},
		"a second failure within the hour is a repeated one": {
			{"fails", fails(0, true), "true true"}, {"watch", watches(10), "lasted(1) "}, {"recovers", settles(20, false), "false"},
			{"fails", fails(100, true), "true true"}, {"watch", watches(110), "repeated(2) "},
		},
		"and a later one is not": {
			{"fails", fails(0, true), "true true"}, {"watch", watches(10), "lasted(1) "}, {"recovers", settles(20, false), "false"},
			{"fails", fails(4000, true), "true true"}, {"watch", watches(4010), "lasted(1) "},
		},
		"a failure begins again after an absence of the plugin": {
			{"fails", fails(0, true), "true true"}, {"away", sets(func(w *world) { w.Away() }), ""}, {"watch", watches(20), ""},
			{"back", settles(30, true), "true"}, {"watch", watches(31), "next 40"},
		},
		"a released device has no failure": {
			{"fails", fails(0, true), "true true"}, {"released", sets(func(w *world) { w.Leave("d", "pod", w.at(1)) }), ""}, {"watch", watches(20), "next 3600"},
		},
		"a pod that has ended gets no report": {
			{"fails", fails(0, true), "true true"}, {"ended", sets(func(w *world) { w.ended = true }), ""}, {"watch", watches(10), ""},
		},
		"failures are remembered for an hour": {
			{"fails", fails(0, true), "true true"}, {"recovers", settles(1, false), "false"}, {"recent", recent(3600), "1"},
			{"older", recent(3601), "0"}, {"watch", watches(3600), ""}, {"forgotten", func(w *world) string { return fmt.Sprint(len(w.records)) }, "0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{Log: New(), start: time.Unix(1_000_000, 0)}
			for i, s := range steps {
				if got := s.do(w); got != s.want {
					t.Fatalf("step %d, %s: %q, want %q", i, s.name, got, s.want)
				}
			}
		})
	}
}

// A device that fails all the time is remembered with a bounded number of failures.
func TestLog_Bounded(t *testing.T) {
	w := &world{Log: New(), start: time.Unix(1_000_000, 0)}
	for i := range 2 * maxFailures {
		w.fail(i, true)
		w.settle(i, false)
	}
	if n := w.Recent(w.at(300))["d"].Count; n != maxFailures {
		t.Errorf("%d failures are remembered, want %d", n, maxFailures)
	}
}

// manyFail returns a log of that many devices that have failed in the first second, all with one pod.
func manyFail(n int) *world {
	w := &world{Log: New(), start: time.Unix(1_000_000, 0)}
	for i := range n {
		w.Fail(device.ID(fmt.Sprint(i)), "pod", true, w.at(0))
	}
	return w
}

// lookedAt returns how many devices a Watch looks at.
func (w *world) lookedAt(second int) (n int) {
	w.Watch(w.at(second), func(device.PodUID) bool { n++; return true }, MaxWatched)
	return n
}

// A Watch looks at the devices that are due, whatever the number of those that have failed.
func TestWatch_ManyHaveFailed_OnlyThoseDueAreLookedAt(t *testing.T) {
	w := manyFail(1000)
	if n := w.lookedAt(9); n != 0 {
		t.Errorf("a Watch looks at %d devices of which none is due", n)
	}
	if n := w.lookedAt(10); n != 1000 {
		t.Errorf("a Watch looks at %d devices, want all", n)
	}
	w.Recover("7", w.at(11))
	w.Fail("7", "pod", true, w.at(12))
	if n := w.lookedAt(13); n != 0 {
		t.Errorf("a Watch looks at %d devices, and none is due", n)
	}
	if n := w.lookedAt(22); n != 1 {
		t.Errorf("a Watch looks at %d devices, and one is due", n)
	}
	if err := w.Check(func(device.ID, device.PodUID) bool { return true }); err != nil {
		t.Error(err)
	}
}

// A Watch of very many devices that are due is done in parts.
func TestWatch_VeryManyAreDue_RestIsDueAtOnce(t *testing.T) {
	const n, most = 2001, 1000
	w := manyFail(n)
	seen := map[device.ID]bool{}
	for part := range 3 {
		due, looked, next := w.Watch(w.at(10), func(device.PodUID) bool { return true }, most)
		if looked > most || len(due) > looked || next.After(w.at(10)) || next.IsZero() != (part == 2) {
			t.Errorf("part %d: %d devices, next at %v", part, len(due), next)
		}
		for _, d := range due {
			seen[d.ID] = true
		}
	}
	if len(seen) != n {
		t.Errorf("%d devices have been due, want %d", len(seen), n)
	}
}

// Of very many devices that recover, and of their failures, a limited number is remembered.
func TestLog_VeryManyRecover_FewAreRemembered(t *testing.T) {
	const n = 2 * maxDevices
	w := manyFail(n)
	for range 5 {
		for i := range n {
			w.Recover(device.ID(fmt.Sprint(i)), w.at(1))
		}
		for i := range n {
			w.Fail(device.ID(fmt.Sprint(i)), "pod", true, w.at(2))
		}
	}
	if w.times > max(n, maxTimes) {
		t.Errorf("%d failures of %d failed devices are remembered, want at most %d", w.times, n, maxTimes)
	}
	for i := range n {
		w.Leave(device.ID(fmt.Sprint(i)), "pod", w.at(3))
	}
	if len(w.records) != maxDevices || w.times > maxTimes {
		t.Errorf("%d devices with %d failures are remembered, want %d with at most %d", len(w.records), w.times, maxDevices, maxTimes)
	}
	if err := w.Check(func(device.ID, device.PodUID) bool { return true }); err != nil {
		t.Error(err)
	}
	w.watch(3602)
	if len(w.records) != 0 || w.times != 0 {
		t.Errorf("after an hour %d devices are remembered", len(w.records))
	}
}
