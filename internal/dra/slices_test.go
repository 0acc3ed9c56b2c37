package dra

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/internal/device"
)

func noAttributes(device.DeviceStatus) attributes { return nil }

// free returns listed and healthy devices named prefix0, prefix1, ...
func free(prefix string, n int) (all []device.DeviceStatus) {
	for i := range n {
		all = append(all, device.DeviceStatus{Resource: gpu, Device: device.Device{ID: device.ID(fmt.Sprint(prefix, i)), Healthy: true}, State: device.StateFree, Listed: true, Claimable: true})
	}
	return all
}

func inputOf(devices []device.DeviceStatus) input {
	return input{node: "n1", resource: gpu, devices: devices, most: 2048, attributes: noAttributes}
}

// contents returns the devices of slices in order, by pool, each with its taints.
func contents(of []*resourceapi.ResourceSlice) map[string]string {
	all := map[string]string{}
	for _, s := range of {
		var list []string
		for _, d := range s.Spec.Devices {
			text := d.Name
			for _, t := range d.Taints {
				text += "+" + strings.TrimPrefix(t.Key, "devmgrd.io/") + t.Value
				if t.Effect != resourceapi.DeviceTaintEffectNoSchedule {
					text += ":" + string(t.Effect)
				}
			}
			list = append(list, text)
		}
		all[strings.TrimPrefix(s.Spec.Pool.Name, "n1/a.example/gpu/")] = strings.Join(list, " ")
	}
	return all
}

func TestShow_States(t *testing.T) {
	t.Parallel()
	holder := &device.Holder{Pod: device.Pod{UID: "u"}}
	for _, c := range []struct {
		name   string
		change func(*device.DeviceStatus)
		input  func(*input)
		want   string
	}{
		{name: "free", want: "d0"},
		{name: "not claimable", change: func(d *device.DeviceStatus) { d.Claimable = false }, want: ""},
		{name: "of a pod with a claim", change: func(d *device.DeviceStatus) { d.State, d.Holder, d.Claimed = device.StateAssigned, holder, true }, want: "d0"},
		{name: "unhealthy", change: func(d *device.DeviceStatus) { d.State, d.Healthy = device.StateUnhealthy, false }, want: "d0+unhealthy"},
		{name: "unhealthy in use", change: func(d *device.DeviceStatus) { d.State, d.Holder, d.Healthy = device.StateAssigned, holder, false }, want: "d0+unhealthy"},
		{name: "cordoned", change: func(d *device.DeviceStatus) { d.State, d.Cordon = device.StateCordoned, &device.Cordon{Reason: "fan"} }, want: "d0+cordoned"},
		{name: "suspended", change: func(d *device.DeviceStatus) {
			d.State, d.Cordon = device.StateSuspended, &device.Cordon{Suspended: true}
		}, want: "d0+suspended"},
		{name: "suspended and unhealthy", change: func(d *device.DeviceStatus) {
			d.State, d.Cordon, d.Healthy = device.StateSuspended, &device.Cordon{Suspended: true}, false
		}, want: "d0+suspended"},
		{name: "refused", change: func(d *device.DeviceStatus) {
			d.State, d.Cordon = device.StateRefused, &device.Cordon{Suspended: true, Refused: true}
		}, want: "d0+refused"},
		{name: "releasing", change: func(d *device.DeviceStatus) { d.State, d.Holder = device.StateReleasing, holder }, want: "d0"},
		{name: "busy", change: func(d *device.DeviceStatus) { d.State, d.Holder = device.StateBusy, holder }, want: "d0+busy"},
		{name: "stale", change: func(d *device.DeviceStatus) { d.State = device.StateStale }, want: "d0"},
		{name: "lost", change: func(d *device.DeviceStatus) { d.State = device.StateStale }, input: func(in *input) { in.lost = true }, want: "d0+plugin-lost"},
		{name: "unhealthy, without taints", change: func(d *device.DeviceStatus) { d.Healthy = false }, input: func(in *input) { in.untaint = true }, want: ""},
		{name: "unhealthy and claimed, without taints", change: func(d *device.DeviceStatus) { d.Healthy, d.Claimed = false, true }, input: func(in *input) { in.untaint = true }, want: "d0"},
		{name: "free, without taints", input: func(in *input) { in.untaint = true }, want: "d0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			devices := free("d", 1)
			if c.change != nil {
				c.change(&devices[0])
			}
			in := inputOf(devices)
			if c.input != nil {
				c.input(&in)
			}
			out, err := show(in)
			if got := contents(out.slices)["0"]; err != nil || got != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
			if c.want == "" && len(out.slices) > 0 {
				t.Error("a pool without devices has a slice")
			}
		})
	}
}

func TestShow_Slice(t *testing.T) {
	t.Parallel()
	in := inputOf(free("D", 2))
	in.attributes = func(d device.DeviceStatus) attributes {
		id := string(d.ID)
		return attributes{"id": {StringValue: &id}}
	}
	out, err := show(in)
	if err != nil || len(out.slices) != 1 {
		t.Fatal(out, err)
	}
	s := out.slices[0]
	if s.Name != SliceName("n1", gpu, 0) || s.Annotations["devmgrd.io/resource"] != string(gpu) || *s.Spec.NodeName != "n1" || s.Spec.Driver != "devmgrd.io" ||
		s.Spec.Pool != (resourceapi.ResourcePool{Name: "n1/a.example/gpu/0", ResourceSliceCount: 1}) {
		t.Errorf("got %+v", s)
	}
	if d := s.Spec.Devices[1]; d.Name != Name("D1") || *d.Attributes["id"].StringValue != "D1" {
		t.Errorf("got %+v", d)
	}
}

func TestShow_Order(t *testing.T) {
	t.Parallel()
	in := inputOf(free("d", 5))
	in.order = []device.ID{"d3", "gone", "d1"}
	out, err := show(in)
	if got := contents(out.slices)["0"]; err != nil || got != "d3 d1 d0 d2 d4" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestShow_TooMany(t *testing.T) {
	t.Parallel()
	in := inputOf(free("d", 5))
	in.most, in.saved = 4, map[device.ID]int{"d0": 1}
	out, err := show(in)
	if err == nil || err.Error() != "a.example/gpu has 5 devices, more than dra.maxDevices 4" || len(out.slices) > 0 || !maps.Equal(out.saved, in.saved) {
		t.Errorf("got %+v, %v", out, err)
	}
	in.devices[4].Listed = false // it does not count
	if out, err = show(in); err != nil || len(out.slices) != 2 {
		t.Errorf("got %+v, %v", out, err)
	}
}

// sortByID puts devices into the order of the allocator.
func sortByID(devices []device.DeviceStatus) []device.DeviceStatus {
	slices.SortFunc(devices, func(x, y device.DeviceStatus) int { return device.CompareIDs(x.ID, y.ID) })
	return devices
}

func TestPlace(t *testing.T) {
	t.Parallel()
	old := free("d", 64)
	added := func(at int64, d device.DeviceStatus) device.DeviceStatus { d.Added = at; return d }
	fresh := added(1, free("a", 1)[0]) // before the others in natural order
	all := sortByID(append(slices.Clone(old), fresh))
	everywhere := func(k int) map[device.ID]int {
		places := map[device.ID]int{}
		for _, d := range old {
			places[d.ID] = k
		}
		return places
	}
	type places = map[device.ID]int
	for _, c := range []struct {
		name          string
		devices       []device.DeviceStatus
		saved, placed places
		want          places // of some
		save          places
	}{
		{name: "a full pool", devices: old, want: everywhere(0)},
		{name: "two pools", devices: free("d", 66), want: places{"d63": 0, "d64": 1, "d65": 1}, save: places{"d64": 1, "d65": 1}},
		{name: "a new one", devices: all, placed: everywhere(0), want: places{"a0": 1, "d63": 0}, save: places{"a0": 1}},
		{name: "a new one after a restart", devices: all, want: places{"a0": 1, "d63": 0}, save: places{"a0": 1}},
		{name: "another restart", devices: all, saved: places{"a0": 1}, want: places{"a0": 1, "d63": 0}, save: places{"a0": 1}},
		{name: "a place for life", devices: free("d", 3), saved: places{"d1": 7, "gone": 3}, want: places{"d0": 0, "d1": 7, "d2": 0}, save: places{"d1": 7, "gone": 3}},
		{name: "its own pool is full", devices: all, saved: func() places { p := everywhere(1); p["a0"] = 1; return p }(), want: places{"a0": 0, "d63": 1}, save: everywhere(1)},
		{name: "its own pool is full, and others are before it", devices: sortByID(append(slices.Clone(all), free("e", 64)...)), // the e have pool 0
			saved: func() places { p := everywhere(1); p["a0"] = 1; return p }(), want: places{"a0": 2, "d63": 1, "e63": 0}, save: func() places { p := everywhere(1); p["a0"] = 2; return p }()},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := maps.Clone(c.saved)
			now, save := place(c.devices, c.saved, c.placed)
			for id, k := range c.want {
				if got, there := now[id]; !there || got != k {
					t.Errorf("%s has place %d, want %d", id, got, k)
				}
			}
			if len(now) != len(c.devices) || !maps.Equal(save, c.save) {
				t.Errorf("%d places, to save %v, want %v", len(now), save, c.save)
			}
			if !maps.Equal(c.saved, before) {
				t.Error("the saved places were changed")
			}
		})
	}
}

// Two devices of one name, which only a collision of hashes can bring about, are in different pools.
func TestPools_OfOneName(t *testing.T) {
	t.Parallel()
	p := pools{}
	if !p.take(0, "a") || p.take(0, "a") || !p.take(1, "a") {
		t.Errorf("got %v", p)
	}
}

// A plugin that searches for IDs whose names collide gets a pool for eight of them.
func TestShow_NineDevicesOfOneName_EightPools(t *testing.T) {
	t.Parallel()
	var devices []device.DeviceStatus
	for _, n := range []int{1523251, 1566065, 2658592, 3408412, 4422989, 4599374, 4854040, 8005923, 8413775} { // 24 bits of their hashes agree
		d := free("d", 1)[0]
		d.ID = device.ID(strings.Repeat("x", 60) + fmt.Sprint(n))
		devices = append(devices, d)
	}
	if first := Name(devices[0].ID); slices.ContainsFunc(devices, func(d device.DeviceStatus) bool { return Name(d.ID) != first }) {
		t.Fatal("their names differ")
	}
	out, err := show(inputOf(devices))
	if err != nil || len(out.slices) != 8 {
		t.Errorf("%d slices, %v", len(out.slices), err)
	}
	in := inputOf(devices)
	in.saved, in.placed = out.saved, out.placed
	in.devices = slices.Clone(devices)
	in.devices[3].Listed, in.devices[3].Claimable = false, false
	if out, err = show(in); err != nil || len(out.slices) != 8 || len(out.placed) != 8 {
		t.Errorf("after one has gone: %d slices of %d devices, %v", len(out.slices), len(out.placed), err)
	}
}

func TestPlace_ForgetsDevicesThatAreNotThere(t *testing.T) {
	t.Parallel()
	saved := map[device.ID]int{"d0": 1, "u0": 2}
	for i := range maxSpare {
		saved[device.ID(fmt.Sprint("gone", i))] = 1
	}
	devices := free("d", 1)
	unlisted := free("u", 1)
	unlisted[0].Listed = false
	devices = append(devices, unlisted...)
	if _, save := place(devices, saved, nil); len(save) != len(saved) {
		t.Errorf("%d of %d places are kept", len(save), len(saved))
	}
	saved["onemore"] = 1
	if _, save := place(devices, saved, nil); !maps.Equal(save, map[device.ID]int{"d0": 1, "u0": 2}) {
		t.Errorf("%d places are kept", len(save))
	}
}

// Whatever a plugin lists, and whenever devmgrd restarts: no pool has more than 64 devices, a device has one pool, and it keeps that
// pool while it is listed.
func TestPlace_RandomLists(t *testing.T) {
	t.Parallel()
	for seed := range uint64(15) {
		r := rand.New(rand.NewPCG(seed, 1))
		universe := free("d", 300)
		listed := map[device.ID]bool{}
		var saved, placed, before map[device.ID]int
		clock := int64(0)
		for step := range 40 {
			clock++
			for i := range universe {
				d := &universe[i]
				if change := r.IntN(100); listed[d.ID] && change < 10 {
					delete(listed, d.ID)
				} else if !listed[d.ID] && change < 10+r.IntN(30) {
					listed[d.ID] = true
					if step > 0 && r.IntN(2) == 0 { // the registry may keep the date of a device that returns
						d.Added = clock
					}
				}
				d.Listed = listed[d.ID]
			}
			devices := make([]device.DeviceStatus, 0, len(universe))
			for _, d := range universe {
				if d.Listed || r.IntN(10) == 0 { // some are in use or cordoned
					devices = append(devices, d)
				}
			}
			now, save := place(devices, saved, placed)
			sizes := map[int]int{}
			for _, d := range devices {
				k, there := now[d.ID]
				if there != d.Listed {
					t.Fatalf("seed %d, step %d: %s is listed %v, placed %v", seed, step, d.ID, d.Listed, there)
				}
				if !there {
					continue
				}
				sizes[k]++
				if sizes[k] > poolSize {
					t.Fatalf("seed %d, step %d: pool %d is too large", seed, step, k)
				}
				if was, also := before[d.ID]; also && was != k {
					t.Fatalf("seed %d, step %d: %s moved from %d to %d", seed, step, d.ID, was, k)
				}
				if save[d.ID] != k {
					t.Fatalf("seed %d, step %d: %s has place %d, saved %d", seed, step, d.ID, k, save[d.ID])
				}
			}
			saved, placed, before = save, now, now
			if r.IntN(5) == 0 { // a restart, which finds the same list
				placed = nil
				if again, same := place(devices, maps.Clone(saved), nil); !maps.Equal(same, saved) || !maps.Equal(again, now) {
					t.Fatalf("seed %d, step %d: a restart changes places", seed, step)
				} else {
					placed = again
				}
			}
		}
	}
}

func TestDiffers(t *testing.T) {
	t.Parallel()
	make := func() *resourceapi.ResourceSlice {
		in := inputOf(free("d", 3))
		in.devices[1].Healthy = false
		in.attributes = newDescriberOf(t, in.devices).of
		out, err := show(in)
		if err != nil {
			t.Fatal(err)
		}
		return out.slices[0].DeepCopy()
	}
	at := metav1.NewTime(time.Unix(1, 0))
	for _, c := range []struct {
		name    string
		change  func(*resourceapi.ResourceSlice)
		differs bool
	}{
		{"nothing", func(*resourceapi.ResourceSlice) {}, false},
		{"what the API server fills in", func(s *resourceapi.ResourceSlice) {
			s.UID, s.ResourceVersion, s.Generation, s.CreationTimestamp = "u", "5", 3, at
			s.Spec.Pool.Generation = 7
			s.Spec.Devices[1].Taints[0].TimeAdded = &at
		}, false},
		{"the time of no taint", func(s *resourceapi.ResourceSlice) { s.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{} }, false},
		{"a taint less", func(s *resourceapi.ResourceSlice) { s.Spec.Devices[1].Taints = nil }, true},
		{"a taint more", func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices[0].Taints = []resourceapi.DeviceTaint{{Key: "x"}}
		}, true},
		{"another taint", func(s *resourceapi.ResourceSlice) { s.Spec.Devices[1].Taints[0].Key = taintBusy }, true},
		{"another effect", func(s *resourceapi.ResourceSlice) {
			s.Spec.Devices[1].Taints[0].Effect = resourceapi.DeviceTaintEffectNoExecute
		}, true},
		{"the order", func(s *resourceapi.ResourceSlice) { slices.Reverse(s.Spec.Devices) }, true},
		{"a device less", func(s *resourceapi.ResourceSlice) { s.Spec.Devices = s.Spec.Devices[:2] }, true},
		{"an attribute", func(s *resourceapi.ResourceSlice) { delete(s.Spec.Devices[0].Attributes, "id") }, true},
		{"a field of no use here", func(s *resourceapi.ResourceSlice) { s.Spec.Devices[0].BindingConditions = []string{"x"} }, true},
		{"the number of slices", func(s *resourceapi.ResourceSlice) { s.Spec.Pool.ResourceSliceCount = 2 }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			shown := make()
			c.change(shown)
			if got := differs(shown, make()); got != c.differs {
				t.Errorf("got %v", got)
			}
			next := updated(shown, make())
			if differs(next, make()) || next.Spec.Pool.Generation != shown.Spec.Pool.Generation+1 || next.ResourceVersion != shown.ResourceVersion {
				t.Errorf("the update is %+v", next)
			}
			if c.name == "what the API server fills in" && next.Spec.Devices[1].Taints[0].TimeAdded == nil {
				t.Error("the time of a taint is lost")
			}
		})
	}
}

func newDescriberOf(t testing.TB, devices []device.DeviceStatus) *describer {
	s := newDescriber(t.TempDir(), t.TempDir())
	s.relist(gpu, devices, false)
	return s
}

// A slice of the API server that shows what is wanted takes no memory for its own copies of the attributes, and keeps all else.
func TestStore_SliceAsWanted_SharesItsAttributes(t *testing.T) {
	t.Parallel()
	in := inputOf(free("GPU-", 3))
	in.devices[1].Healthy = false
	in.attributes = newDescriberOf(t, in.devices).of
	out, err := show(in)
	if err != nil {
		t.Fatal(err)
	}
	want := out.slices[0]
	shown := want.DeepCopy()
	shown.ResourceVersion, shown.Spec.Pool.Generation, shown.Spec.Devices[1].Taints[0].TimeAdded = "7", 3, &metav1.Time{Time: time.Unix(1, 0)}
	before := shown.DeepCopy()
	p := &Publisher{slices: &Slices{store: newStore()}, pools: map[string]*pace{}}
	p.slices.observe(shown)
	for range 2 {
		all, _ := p.slices.now()
		if _, written := p.settle(t.Context(), shown.Name, all[shown.Name], want); written {
			t.Fatal("the slice was written")
		}
	}
	all, _ := p.slices.now()
	now := all[shown.Name]
	for i, d := range now.Spec.Devices {
		if !identical(d.Attributes, want.Spec.Devices[i].Attributes) {
			t.Errorf("device %s has attributes of its own", d.Name)
		}
		if identical(d.Attributes, shown.Spec.Devices[i].Attributes) {
			t.Error("the former version was changed")
		}
	}
	if !reflect.DeepEqual(now, before) || !reflect.DeepEqual(shown, before) {
		t.Errorf("the slice is\n%+v, and was\n%+v", now, before)
	}

	newer := before.DeepCopy()
	newer.ResourceVersion = "8"
	p.slices.observe(newer)
	p.slices.share(shown, want)
	if all, _ := p.slices.now(); all[shown.Name] != newer {
		t.Error("a newer version was replaced")
	}
}

// BenchmarkShow is one comparison of the largest resource.
func BenchmarkShow(b *testing.B) {
	in := inputOf(free("GPU-", 2048))
	in.attributes = newDescriberOf(b, in.devices).of
	first, err := show(in)
	if err != nil {
		b.Fatal(err)
	}
	in.saved, in.placed = first.saved, first.placed
	shown := first.slices[0].DeepCopy()
	for b.Loop() {
		now, _ := show(in)
		for range now.slices {
			differs(shown, now.slices[0])
		}
	}
}
