package flapping

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

const gpu device.ResourceName = "vendor.example/gpu"

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func at(minute int) time.Time { return start.Add(time.Duration(minute) * time.Minute) }

// suspended returns until which minute the device d is suspended; 0: it is not.
func suspended(l *Log, minute int) int {
	all := l.Suspensions(at(minute))
	if len(all) == 0 {
		return 0
	}
	rec, _ := l.Record(all[0].ID)
	return int(rec.Until.Sub(start) / time.Minute)
}

func TestFell(t *testing.T) {
	type fall struct{ minute, until int } // and until when the device is suspended after it
	for name, falls := range map[string][]fall{
		"twice":                             {{0, 0}, {10, 0}},
		"three times within an hour":        {{0, 0}, {10, 0}, {20, 80}},
		"three times, but not within one":   {{0, 0}, {30, 0}, {61, 0}, {92, 0}},
		"falls while suspended are ignored": {{0, 0}, {1, 0}, {2, 62}, {3, 62}, {61, 62}},
		"on probation the time doubles":     {{0, 0}, {1, 0}, {2, 62}, {63, 183}, {200, 440}, {441, 921}},
		"a day is the longest":              {{0, 0}, {1, 0}, {2, 62}, {62, 182}, {182, 422}, {422, 902}, {902, 1862}, {1862, 3302}, {3302, 4742}},
		"after probation it is good again":  {{0, 0}, {1, 0}, {2, 62}, {122, 0}, {123, 0}, {124, 184}},
	} {
		t.Run(name, func(t *testing.T) {
			l := New(start, time.Hour)
			for i, f := range falls {
				l.Expire(at(f.minute))
				before := suspended(l, f.minute)
				if changed, _ := l.Fell(gpu, "d", at(f.minute)); changed != (before == 0) {
					t.Errorf("fall %d: changed is %v", i, changed)
				}
				if got := suspended(l, f.minute); got != f.until {
					t.Errorf("fall %d: suspended until minute %d, want %d", i, got, f.until)
				}
				rec, _ := l.Record("d")
				l = New(at(f.minute), time.Hour, rec) // a restart changes nothing
			}
		})
	}
}

// A first suspension may be short. It doubles all the same, and probation lasts for an hour.
func TestFell_ShortFirstSuspension_Doubles(t *testing.T) {
	l := New(start, 2*time.Minute)
	for i, f := range []struct{ minute, until int }{{0, 0}, {1, 0}, {2, 4}, {3, 4}, {5, 9}, {68, 76}} {
		l.Fell(gpu, "d", at(f.minute))
		if got := suspended(l, f.minute); got != f.until {
			t.Errorf("fall %d: suspended until minute %d, want %d", i, got, f.until)
		}
		rec, _ := l.Record("d")
		l = New(at(f.minute), 2*time.Minute, rec)
	}
}

func TestSuspensions_ReasonHasTheHistory(t *testing.T) {
	l := New(start, time.Hour)
	for _, minute := range []int{0, 1, 2} {
		l.Fell(gpu, "d", at(minute))
	}
	l.Fell(gpu, "other", at(2))
	all := l.Suspensions(at(3))
	want := "suspended by devmgrd until 2026-01-01T13:02:00Z: it became unhealthy 3 times within an hour, the last time at 2026-01-01T12:02:00Z"
	if len(all) != 1 || all[0].ID != "d" || all[0].Reason != want || !all[0].Suspended || !all[0].Since.Equal(at(2)) {
		t.Errorf("%+v", all)
	}
	l.Fell(gpu, "d", at(64))
	want = "suspended by devmgrd until 2026-01-01T15:04:00Z: it became unhealthy again, at 2026-01-01T13:04:00Z"
	if all := l.Suspensions(at(65)); len(all) != 1 || all[0].Reason != want {
		t.Errorf("%+v", all)
	}
	l.Forget("d")
	if len(l.Suspensions(at(65))) != 0 {
		t.Error("it is suspended though it has been forgotten")
	}
}

// Records expire, and the time of the next change is never later than it should be.
func TestExpire_Random_AgreesWithASlowLook(t *testing.T) {
	for seed := range uint64(30) {
		random, l := rand.New(rand.NewPCG(seed, 1)), New(start, time.Hour)
		var next time.Time
		for minute := range 5000 {
			now := at(minute)
			if random.IntN(40) == 0 {
				l.Fell(gpu, device.ID(fmt.Sprint(random.IntN(3))), now)
				_, next = l.Expire(now)
				continue
			}
			before, count := len(l.Suspensions(now.Add(-time.Minute))), len(l.records)
			gone, later := l.Expire(now)
			if changed := len(l.Suspensions(now)) != before || len(gone) > 0; changed && (next.IsZero() || next.After(now)) {
				t.Fatalf("seed %d, minute %d: a change, and the next was said to be at %v", seed, minute, next)
			}
			if len(l.records) != count-len(gone) {
				t.Fatalf("seed %d: %d records of %d are left, %d gone", seed, len(l.records), count, len(gone))
			}
			next = later
		}
		if gone, next := l.Expire(at(20_000)); len(l.records) > 0 || !next.IsZero() {
			t.Errorf("seed %d: %d records are left, %v gone, next %v", seed, len(l.records), gone, next)
		}
	}
}

// A plugin may invent names.
func TestFell_ManyDevices_AreBounded(t *testing.T) {
	l := New(start, time.Hour)
	for range 3 {
		l.Fell(gpu, "bad", start) // suspended: it does not make room
	}
	for i := range 3 * maxDevices {
		changed, gone := l.Fell(gpu, device.ID(fmt.Sprint(i)), start.Add(time.Duration(i)))
		want := device.ID("")
		if i >= maxDevices-1 {
			want = device.ID(fmt.Sprint(i - maxDevices + 1))
		}
		if !changed || gone != want {
			t.Fatalf("device %d: changed %v, %s has made room, want %s", i, changed, gone, want)
		}
	}
	if len(l.records) != maxDevices || suspended(l, 1) != 60 {
		t.Errorf("%d records, suspended until %d", len(l.records), suspended(l, 1))
	}
}

// health.command examines devices whose suspensions are switched off: their records have no falls.
func TestObject_ObjectionsEndInAFullLog_RecordsGo(t *testing.T) {
	l := New(start, time.Hour)
	for i := range maxDevices {
		l.Object(gpu, device.ID(fmt.Sprint(i)), "bad", start)
	}
	if changed, gone := l.Object(gpu, "one more", "bad", start); changed || gone != "" {
		t.Errorf("changed %v, and %q has made room for a device, though the command objects to all", changed, gone)
	}
	for _, id := range []device.ID{"0", "1"} {
		if changed, _ := l.Object(gpu, id, "", start); !changed {
			t.Errorf("device %s: the end of the objection is no change", id)
		}
		if rec, known := l.Record(id); known {
			t.Errorf("device %s still has a record: %+v", id, rec)
		}
	}
	for _, id := range []device.ID{"one more", "another"} {
		if changed, gone := l.Object(gpu, id, "bad", start); !changed || gone != "" {
			t.Errorf("device %s: changed %v, and %q has made room", id, changed, gone)
		}
	}
}

// A record of a state file may have no fall: the resource's suspensions were switched off meanwhile.
func TestFell_FullLog_DeviceWithoutAFallMakesRoom(t *testing.T) {
	known := []device.Falls{{Resource: gpu, ID: "none"}, {Resource: gpu, ID: "nor this"}}
	for i := range maxDevices - 2 {
		known = append(known, device.Falls{Resource: gpu, ID: device.ID(fmt.Sprint(i)), Falls: []time.Time{start}})
	}
	l := New(start, time.Hour, known...)
	_, first := l.Fell(gpu, "a", start)
	_, second := l.Object(gpu, "b", "bad", start)
	if first == second || first != "none" && first != "nor this" || second != "none" && second != "nor this" {
		t.Errorf("%q and %q have made room", first, second)
	}
}

// The clock may have been ahead when the record was written.
func TestNew_ClockSetBack_SuspensionIsNoLonger(t *testing.T) {
	l := New(start, time.Hour, device.Falls{Resource: gpu, ID: "d", Falls: []time.Time{at(10_000)}, Until: at(10_060), Spell: time.Hour})
	if got := suspended(l, 0); got != 60 {
		t.Errorf("suspended until minute %d", got)
	}
}

// Of very many devices that have become unhealthy once, those that fell first make room, and none is looked for.
func TestLog_VeryManyFall_OldestMakeRoom(t *testing.T) {
	l, now := New(time.Unix(0, 0), time.Minute), time.Unix(0, 0)
	for i := range 4 * maxDevices {
		_, gone := l.Fell("r", device.ID(fmt.Sprint(i)), now.Add(time.Duration(i)))
		if want := device.ID(fmt.Sprint(i - maxDevices)); i >= maxDevices && gone != want {
			t.Fatalf("%d: %q has made room, want %q", i, gone, want)
		}
	}
	if l.Len() != maxDevices || l.queue.Len() != maxDevices {
		t.Errorf("%d devices are followed, %d may be forgotten", l.Len(), l.queue.Len())
	}
}

// The devices of other resources take the room but for a few.
func TestLog_OthersTakeTheRoom_FewAreFollowed(t *testing.T) {
	l := New(time.Unix(0, 0), time.Minute)
	l.Leave(maxAll)
	for i := range 2 * fewDevices {
		l.Fell("r", device.ID(fmt.Sprint(i)), time.Unix(0, 0))
	}
	if l.Len() != fewDevices {
		t.Errorf("%d devices are followed, want %d", l.Len(), fewDevices)
	}
	l.Leave(maxAll - 1)
	l.Fell("r", "x", time.Unix(0, 0))
	l.Fell("r", "y", time.Unix(0, 0))
	if l.Len() != fewDevices+1 {
		t.Errorf("%d devices are followed with room for one more, want %d", l.Len(), fewDevices+1)
	}
}

// Falls of before the clock was set back count as of now.
func TestNew_ClockWasSetBack_FallsAreOfNow(t *testing.T) {
	l := New(at(0), time.Minute, device.Falls{Resource: gpu, ID: "d", Falls: []time.Time{at(60 * 24), at(60*24 + 1)}})
	l.Fell(gpu, "d", at(61))
	if got := suspended(l, 61); got != 0 {
		t.Errorf("it is suspended until minute %d with one fall within an hour", got)
	}
}
