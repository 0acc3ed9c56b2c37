package registry

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// listOf returns a plugin's list of healthy devices.
func listOf(ids ...string) []*pluginapi.Device {
	var list []*pluginapi.Device
	for _, id := range ids {
		list = append(list, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return list
}

func addedOf(l *lister) map[string]int64 {
	added := map[string]int64{}
	for _, d := range l.devices {
		added[string(d.ID)] = d.Added
	}
	return added
}

func TestAdded(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	at := func(d time.Duration) int64 { return start.Add(d).UnixNano() }
	type step struct {
		after time.Duration
		list  string // one letter is one device
		want  map[string]int64
	}
	for name, steps := range map[string][]step{
		"the first list is not dated":   {{0, "ab", map[string]int64{"a": 0, "b": 0}}},
		"an empty list is the first":    {{0, "", nil}, {time.Second, "a", map[string]int64{"a": at(time.Second)}}},
		"one list has one date":         {{0, "a", nil}, {time.Second, "abc", map[string]int64{"a": 0, "b": at(time.Second), "c": at(time.Second)}}},
		"a date stays":                  {{0, "a", nil}, {time.Second, "ab", nil}, {time.Minute, "abc", map[string]int64{"a": 0, "b": at(time.Second), "c": at(time.Minute)}}},
		"an empty list in between":      {{0, "a", nil}, {time.Second, "ab", nil}, {2 * time.Second, "", nil}, {time.Minute, "ab", map[string]int64{"a": 0, "b": at(time.Second)}}},
		"a part of the list in between": {{0, "ab", nil}, {time.Second, "b", nil}, {2 * time.Second, "", nil}, {3 * time.Second, "ab", map[string]int64{"a": 0, "b": 0}}},
		"absent for a day":              {{0, "ab", nil}, {time.Second, "b", nil}, {24 * time.Hour, "ab", map[string]int64{"a": 0, "b": 0}}},
		"absent while one is added":     {{0, "ab", nil}, {time.Second, "b", nil}, {2 * time.Second, "bc", nil}, {time.Minute, "abc", map[string]int64{"a": at(time.Minute), "b": 0, "c": at(2 * time.Second)}}},
		"back with one that is added":   {{0, "ab", nil}, {time.Second, "b", nil}, {time.Minute, "abc", map[string]int64{"a": 0, "b": 0, "c": at(time.Minute)}}},
		"renamed, and named as before":  {{0, "ab", nil}, {time.Second, "cd", nil}, {time.Minute, "ab", map[string]int64{"a": at(time.Minute), "b": at(time.Minute)}}},
		"all IDs are new":               {{0, "ab", nil}, {time.Second, "cd", map[string]int64{"c": at(time.Second), "d": at(time.Second)}}},
		"the clock is set back":         {{0, "a", nil}, {time.Hour, "ab", nil}, {time.Second, "abc", map[string]int64{"a": 0, "b": at(time.Hour), "c": at(time.Hour) + 1}}},
	} {
		l := lister{most: 1000}
		for i, s := range steps {
			var ids []string
			for _, letter := range s.list {
				ids = append(ids, string(letter))
			}
			l.take(listOf(ids...), start.Add(s.after))
			if got := addedOf(&l); s.want != nil && !maps.Equal(got, s.want) {
				t.Errorf("%s: list %d: %v, want %v", name, i, got, s.want)
			}
		}
	}
}

// The dates are those of a slow twin that remembers each list, however the plugin's streams and the clock change.
func TestAddedAgainstTwin(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 2))
		now := time.Unix(1_800_000_000, 0)
		l := lister{most: 1000}
		added, absent := map[string]int64{}, map[string]bool{} // of all devices ever; those that keep their dates
		var before []string
		newest, first := int64(0), true
		for step := range 60 {
			now = now.Add(time.Duration(random.IntN(1500)-100) * time.Second)
			if random.IntN(5) == 0 {
				l = lister{deviceList: l.deviceList, most: l.most} // another stream
			}
			list := slices.Clone(before)
			switch random.IntN(4) {
			case 0:
				list = nil
				for id := range 6 {
					if random.IntN(2) == 0 {
						list = append(list, strconv.Itoa(id))
					}
				}
			case 1:
				random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			}
			stamp := max(now.UnixNano(), newest+1)
			for _, id := range list {
				switch {
				case slices.Contains(before, id), absent[id]:
				case first:
					added[id] = 0
				default:
					added[id], newest = stamp, stamp
				}
			}
			for _, id := range before {
				absent[id] = true
			}
			for _, id := range list {
				delete(absent, id)
			}
			if newest == stamp {
				clear(absent)
			}
			before, first = list, false

			l.take(listOf(list...), now)
			want := map[string]int64{}
			for _, id := range list {
				want[id] = added[id]
			}
			if got := addedOf(&l); !maps.Equal(got, want) {
				t.Fatalf("seed %d step %d: %v, want %v", seed, step, got, want)
			}
		}
	}
}

// Absences are bounded: those of earlier lists give way.
func TestAbsencesAreBounded(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	l := lister{most: 3}
	for i, ids := range [][]string{{"a", "b", "c", "d", "e"}, {"c", "d", "e"}, {"e"}, {"a", "c", "e"}} {
		now = now.Add(time.Second)
		l.take(listOf(ids...), now)
		if len(l.absent) > 3 {
			t.Errorf("%d absences after list %d", len(l.absent), i)
		}
	}
	if got := addedOf(&l); got["a"] != now.UnixNano() || got["c"] != 0 {
		t.Errorf("%v: the absence of a has given way, and that of c has not", got)
	}
}

// A remembered device keeps its date, and new ones get a later one even if the clock was set back.
func TestAddedOfRememberedPlugin(t *testing.T) {
	t.Parallel()
	late, now := time.Unix(2_000_000_000, 0).UnixNano(), time.Unix(1_000_000_000, 0)
	l := lister{most: 10, deviceList: deviceListOf(device.PluginRecord{Reported: true, Devices: []device.Device{{ID: "a"}, {ID: "b", Added: late}}}, now)}
	l.take(listOf("a", "b", "c"), now)
	if got, want := addedOf(&l), (map[string]int64{"a": 0, "b": late, "c": late + 1}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	l = lister{most: 10, deviceList: deviceListOf(device.PluginRecord{}, now)} // it has never listed anything
	l.take(listOf("a"), time.Now())
	if got := addedOf(&l); got["a"] != 0 {
		t.Errorf("the first list is dated: %v", got)
	}
}

// A record of an older version does not tell the newest date of a device that is listed no longer: no grant so far counts as newer.
func TestNewestOfOlderVersion(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000_000, 0)
	l := lister{most: 10, deviceList: deviceListOf(device.PluginRecord{Reported: true, Devices: []device.Device{{ID: "a"}}}, now)}
	if l.newest != now.UnixNano() {
		t.Errorf("newest %d", l.newest)
	}
	l.take(listOf("a", "b"), now.Add(-time.Hour))
	if got, want := addedOf(&l), (map[string]int64{"a": 0, "b": now.UnixNano() + 1}); !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
