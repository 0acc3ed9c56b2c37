package nodestatus

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestStabilizer(t *testing.T) {
	t.Parallel()
	const never = -1
	type step struct {
		at     float64 // seconds
		want   int
		number int
		again  float64 // seconds
	}
	for name, test := range map[string]struct {
		shown int
		steps []step
	}{
		"a rise counts at once": {2, []step{{0, 3, 3, never}, {0.1, 8, 8, never}}},
		"a fall counts when it has lasted": {8, []step{
			{0, 8, 8, never}, {1, 7, 8, 6}, {5.9, 7, 8, 6}, {6, 7, 7, never},
		}},
		"the Node shows more at the start": {8, []step{{0, 7, 8, 5}, {5, 7, 7, never}}},
		"a dip does not count":             {8, []step{{1, 0, 8, 6}, {2, 8, 8, never}, {100, 8, 8, never}}},
		"a dip restarts the window":        {8, []step{{1, 7, 8, 6}, {5, 8, 8, never}, {5.5, 7, 8, 10.5}, {10.5, 7, 7, never}}},
		"devices that fail one after the other make one fall": {8, []step{
			{1, 7, 8, 6}, {2, 6, 8, 7}, {3, 0, 8, 8}, {8, 0, 0, never},
		}},
		"a number that was higher for a moment falls": {8, []step{
			{0, 6, 8, 5}, {2, 7, 8, 5}, {4, 6, 8, 9}, {9, 6, 6, never}, {9.1, 7, 7, never},
		}},
		"a number that wavers for two windows falls to the highest": {8, []step{
			{0, 7, 8, 5}, {1, 6, 8, 6}, {5, 7, 7, never},
		}},
		"a number that wavers and falls further does so in two windows": {8, []step{
			{0, 7, 8, 5}, {3, 6, 8, 8}, {6, 5, 8, 10}, {9, 4, 8, 10}, {10, 4, 6, 20}, {20, 4, 4, never},
		}},
		"two falls are apart": {8, []step{
			{0, 7, 8, 5}, {5, 7, 7, never}, {6, 6, 7, 15}, {14.9, 6, 7, 15}, {15, 6, 6, never},
		}},
		"a fall that is taken back lengthens the window": {8, []step{
			{0, 7, 8, 5}, {5, 7, 7, never}, {20, 8, 8, never}, // 20 s, and so 25 s next time
			{40, 7, 8, 65}, {60, 8, 8, never},
			{80, 7, 8, 105}, {105, 7, 7, never}, {110, 8, 8, never}, // 30 s
			{120, 7, 8, 155}, {140, 8, 8, never},
			{739, 7, 8, 774}, {740, 8, 8, never}, // calm for less than 10 min
			{1341, 7, 8, 1346}, {1346, 7, 7, never},
		}},
		"one that is taken back late does not": {8, []step{
			{0, 7, 8, 5}, {5, 7, 7, never}, {180, 8, 8, never}, {200, 7, 8, 205},
		}},
		"the window is bounded": {8, []step{
			{0, 7, 8, 5}, {5, 7, 7, never}, {179, 8, 8, never}, {200, 7, 8, 380},
		}},
		"the second rise after a fall takes nothing back": {8, []step{
			{0, 6, 8, 5}, {5, 6, 6, never}, {10, 7, 7, never}, {100, 8, 8, never}, {101, 7, 8, 116},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Unix(1000, 0)
			s := newStabilizer(test.shown)
			for _, step := range test.steps {
				number, again := s.next(step.want, start.Add(seconds(step.at)))
				due := float64(never)
				if !again.IsZero() {
					due = again.Sub(start).Seconds()
				}
				if number != step.number || due != step.again {
					t.Errorf("at %v s %d is wanted: the number is %d, to be looked at again at %v; want %d and %v", step.at, step.want, number, due, step.number, step.again)
				}
			}
		})
	}
}

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// TestStabilizer_RandomDays_KeepItsPromises has up to sixteen devices fail and recover for a day, or ten thousand times, in random rhythms.
func TestStabilizer_RandomDays_KeepItsPromises(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		devices := 1 + r.IntN(16)
		mean := time.Duration(1<<r.IntN(9)) * time.Second // up to 4 min
		while := min(day, 10_000*mean)
		start := time.Unix(1000, 0)
		s := newStabilizer(devices)
		number, patches := devices, 0
		var fell, asked time.Time
		want := devices
		look := func(now time.Time) time.Time {
			before := number
			var again time.Time
			number, again = s.next(want, now)
			switch {
			case number < before && now.Sub(fell) < betweenFalls:
				t.Fatalf("seed %d: falls %v apart", seed, now.Sub(fell))
			case number < before:
				fell = now
				patches += 2
			case number > before:
				patches++
			}
			if number < want {
				t.Fatalf("seed %d: the number is %d, %d are wanted", seed, number, want)
			}
			if number > want && (again.Sub(now) <= 0 || again.Sub(now) > 2*longest) {
				t.Fatalf("seed %d: %d are wanted, the number is %d, and the next look is in %v", seed, want, number, again.Sub(now))
			}
			return again
		}
		for now := start; now.Sub(start) < while; {
			want, asked = r.IntN(devices+1), now
			again := look(now)
			now = now.Add(time.Millisecond + time.Duration(r.ExpFloat64()*float64(mean)))
			for !again.IsZero() && again.Before(now) {
				again = look(again)
			}
		}
		if patches > int(while/betweenFalls) {
			t.Errorf("seed %d: %d patches in %v, with %d devices and a change each %v or so", seed, patches, while, devices, mean)
		}
		end := asked.Add(day)
		for again := look(end); !again.IsZero(); {
			again = look(again)
		}
		if number != want {
			t.Errorf("seed %d: in the end the number is %d, and %d are wanted", seed, number, want)
		}
	}
}
