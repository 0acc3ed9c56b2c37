package nodestatus_test

import (
	"maps"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
)

// TestFlapping_ADay_LeavesTheNodeAlone has the health of one device of eight change for a day, in several rhythms, and for hours in fast ones.
func TestFlapping_ADay_LeavesTheNodeAlone(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	steady := func(half time.Duration) func(*rand.Rand) time.Duration {
		return func(*rand.Rand) time.Duration { return half }
	}
	random := func(mean time.Duration) func(*rand.Rand) time.Duration {
		return func(r *rand.Rand) time.Duration {
			return time.Millisecond + min(time.Duration(r.ExpFloat64()*float64(mean)), 3*mean)
		}
	}
	lasts := func(name string) time.Duration { // some thousand changes: the window is the longest within minutes
		switch name {
		case "each second":
			return day / 12
		case "each 5 s", "each 7 s", "at random, each 10 s or so":
			return day / 3
		}
		return day
	}
	for name, pause := range map[string]func(*rand.Rand) time.Duration{
		"each second":                  steady(time.Second),
		"each 5 s":                     steady(5 * time.Second),
		"each 7 s":                     steady(7 * time.Second),
		"each 20 s":                    steady(20 * time.Second),
		"each 2 min":                   steady(2 * time.Minute),
		"at random, each 10 s or so":   random(10 * time.Second),
		"at random, each minute or so": random(time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewInMemory(t)
				api.Put(node(nil, nil))
				v := newView(quantities{"a.example/gpu": 8})
				publish(t, api, v)
				untilShows(t, api, map[string]string{"a.example/gpu": "8/8"})
				patches := len(api.Patches())
				began, since := time.Now(), time.Now()
				shown, for8 := true, time.Duration(0)
				api.OnPatch(func() {
					if shown {
						for8 += time.Since(since)
					}
					shown, since = shows(api)["a.example/gpu"] == "8/8", time.Now()
				})
				r := rand.New(rand.NewPCG(1, 2))
				for n := 7; time.Since(began) < lasts(name); n = 15 - n {
					v.set(quantities{"a.example/gpu": n})
					time.Sleep(pause(r))
				}
				synctest.Wait()
				if shown {
					for8 += time.Since(since)
				}
				patches = len(api.Patches()) - patches
				share := 100 * float64(for8) / float64(time.Since(began))
				if patches > int(lasts(name)/(10*time.Second)) || share < 95 {
					t.Errorf("%d patches in %v; the Node shows all eight for %.1f%% of the time, want 95%% at least", patches, lasts(name), share)
				}
				t.Logf("%d patches; the Node shows all eight for %.2f%% of the time", patches, share)
			})
		})
	}
}

// TestFlapping_AnEmptyFirstList_LeavesTheNodeAlone: plugins exist that list nothing at their start and all devices a second later.
func TestFlapping_AnEmptyFirstList_LeavesTheNodeAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := kubetest.NewInMemory(t)
		api.Put(node(nil, nil))
		v := newView(quantities{"a.example/gpu": 8})
		publish(t, api, v)
		untilShows(t, api, map[string]string{"a.example/gpu": "8/8"})
		for range 10 { // roll-outs
			v.set(quantities{"a.example/gpu": 0})
			time.Sleep(time.Second)
			v.set(quantities{"a.example/gpu": 8})
			time.Sleep(time.Hour)
		}
		if got := shows(api); len(api.Patches()) != 1 || !maps.Equal(got, map[string]string{"a.example/gpu": "8/8"}) {
			t.Errorf("the Node shows %v after %q", got, api.Patches())
		}
	})
}

// TestFall_AnotherWriterMeanwhile_IsOverruledAtOnce: a number that waits for its fall is defended like any other, and falls in
// its time.
func TestFall_AnotherWriterMeanwhile_IsOverruledAtOnce(t *testing.T) {
	t.Parallel()
	for name, theirs := range map[string]map[string]string{
		"higher": {"a.example/gpu": "9"},
		"lower":  {"a.example/gpu": "7"},
		"none":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := kubetest.NewInMemory(t)
				api.Put(node(nil, nil))
				v := newView(quantities{"a.example/gpu": 8})
				publish(t, api, v)
				untilShows(t, api, map[string]string{"a.example/gpu": "8/8"})
				v.set(quantities{"a.example/gpu": 7})
				time.Sleep(time.Second)
				api.Put(node(theirs, theirs))
				time.Sleep(2 * time.Second)
				if got := shows(api)["a.example/gpu"]; got != "8/8" {
					t.Errorf("2 s after the other writer's change the Node shows %q, want 8/8", got)
				}
				time.Sleep(4 * time.Second)
				if got := shows(api)["a.example/gpu"]; got != "7/7" {
					t.Errorf("7 s after less was wanted the Node shows %q, want 7/7", got)
				}
			})
		})
	}
}
