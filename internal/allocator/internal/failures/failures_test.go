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
	start                 time.Time
	away, released, ended bool
}

func (w *world) at(second int) time.Time { return w.start.Add(time.Duration(second) * time.Second) }

// watch returns what is due, and the second of the next check; 0: none.
func (w *world) watch(second int) string {
	due, next := w.Watch(w.at(second), State{
		Current: !w.away,
		Has:     func(_ device.ID, uid device.PodUID) bool { return !w.released && uid == "pod" },
		Pod:     func(device.PodUID) (known, active bool) { return true, !w.ended },
	})
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

func (w *world) settle(second int, lasts bool) bool {
	return w.Settle(w.at(second), func(device.ID, device.PodUID) bool { return lasts })
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
			{"fails", fails(0, true), "true true"}, {"recovers", settles(3, false), "false"}, {"watch", watches(20), ""},
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
			{"fails", fails(0, true), "true true"}, {"away", sets(func(w *world) { w.Away(); w.away = true }), ""}, {"watch", watches(20), ""},
			{"back", sets(func(w *world) { w.away = false }), ""}, {"settle", settles(30, true), "true"}, {"watch", watches(31), "next 40"},
		},
		"a released device has no failure": {
			{"fails", fails(0, true), "true true"}, {"released", sets(func(w *world) { w.released = true }), ""}, {"watch", watches(20), ""},
		},
		"a pod that has ended gets no report": {
			{"fails", fails(0, true), "true true"}, {"ended", sets(func(w *world) { w.ended = true }), ""}, {"watch", watches(10), ""},
		},
		"failures are remembered for an hour": {
			{"fails", fails(0, true), "true true"}, {"recovers", settles(1, false), "false"}, {"recent", recent(3600), "1"},
			{"older", recent(3601), "0"}, {"watch", watches(3601), ""}, {"forgotten", func(w *world) string { return fmt.Sprint(len(w.records)) }, "0"},
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
