package registry

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// slowInventory is what a lister should come to: plain and slow.
func slowInventory(message []*pluginapi.Device) []device.Device {
	byID := map[device.ID]device.Device{}
	for _, m := range message {
		if m.ID == "" || len(m.ID) > 1024 {
			continue
		}
		d := device.Device{ID: device.ID(m.ID), Healthy: m.Health == "Healthy"}
		nodes := map[int]bool{}
		for _, n := range m.GetTopology().GetNodes() {
			if len(m.Topology.Nodes) <= 64 && n.GetID() >= 0 && n.GetID() < 1024 {
				nodes[int(n.GetID())] = true
			}
		}
		d.NUMA = slices.Sorted(maps.Keys(nodes))
		byID[d.ID] = d
	}
	var all []device.Device
	for _, id := range slices.SortedFunc(maps.Keys(byID), device.CompareIDs) {
		all = append(all, byID[id])
	}
	return all
}

// slowNowhere counts the devices near a NUMA node that cannot be, or near too many, of those that have a good ID.
func slowNowhere(message []*pluginapi.Device) (n int) {
	for _, m := range message {
		if m.ID != "" && len(m.ID) <= 1024 && (len(m.GetTopology().GetNodes()) > 64 ||
			slices.ContainsFunc(m.GetTopology().GetNodes(), func(n *pluginapi.NUMANode) bool { return n.GetID() > 1023 })) {
			n++
		}
	}
	return n
}

func sameDevices(a, b []device.Device) bool {
	return slices.EqualFunc(a, b, func(a, b device.Device) bool {
		return a.ID == b.ID && a.Healthy == b.Healthy && slices.Equal(a.NUMA, b.NUMA)
	})
}

// A lister returns the same as its slow twin, does not change a slice that it has returned, and returns the same slice again
// exactly when nothing has changed.
func TestListerAgainstTwin(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		var l lister
		var message []*pluginapi.Device
		for step := range 40 {
			switch random.IntN(6) {
			case 0: // a new list, perhaps with faults
				message = nil
				for range random.IntN(12) {
					message = append(message, randomDevice(random))
				}
			case 1: // another order
				message = slices.Clone(message)
				random.Shuffle(len(message), func(i, j int) { message[i], message[j] = message[j], message[i] })
			case 2, 3: // one device changes
				if len(message) > 0 {
					message = slices.Clone(message)
					i := random.IntN(len(message))
					d := randomDevice(random)
					d.ID = message[i].ID
					message[i] = d
				}
			case 4: // one goes
				if len(message) > 0 {
					i := random.IntN(len(message))
					message = slices.Delete(slices.Clone(message), i, i+1)
				}
			}
			before := l.devices
			kept := slices.Clone(before)
			found := l.take(message, time.Now())
			want := slowInventory(message)
			if found.nowhere != slowNowhere(message) {
				t.Fatalf("seed %d step %d:\nmessage %v\nfaults %+v", seed, step, message, found)
			}
			if !sameDevices(l.devices, want) {
				t.Fatalf("seed %d step %d:\nmessage %v\ngot  %v\nwant %v", seed, step, message, l.devices, want)
			}
			if !reflect.DeepEqual(before, kept) {
				t.Fatalf("seed %d step %d: an inventory was edited after it was handed out", seed, step)
			}
			if device.SameList(before, l.devices) != sameDevices(kept, want) {
				t.Fatalf("seed %d step %d: same slice %t, same devices %t", seed, step, device.SameList(before, l.devices), sameDevices(kept, want))
			}
		}
	}
}

// longest is an ID that is just taken.
var longest = strings.Repeat("l", 1024)

func randomDevice(random *rand.Rand) *pluginapi.Device {
	d := &pluginapi.Device{ID: []string{"", "a", "b", "c", "d", "e::1", "e::2", "e::10", "e", "f", longest, longest + "x"}[random.IntN(12)]}
	d.Health = []string{"Healthy", "Healthy", "Unhealthy", "healthy", ""}[random.IntN(5)]
	if n := random.IntN(5); n > 1 {
		d.Topology = &pluginapi.TopologyInfo{}
		for range n - 2 {
			d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: []int64{-1, 0, 1, 2, 1023, 1024, 1<<32 - 1}[random.IntN(7)]})
		}
		if random.IntN(8) == 0 { // near all nodes of a large machine, or near more
			d.Topology.Nodes = nil
			for id := range 63 + int64(random.IntN(4)) {
				d.Topology.Nodes = append(d.Topology.Nodes, &pluginapi.NUMANode{ID: id})
			}
		}
	}
	return d
}

func TestListerKeepsInventoryOfPredecessor(t *testing.T) {
	t.Parallel()
	old := []device.Device{{ID: "a", Healthy: true, NUMA: []int{1}}, {ID: "b"}}
	l := lister{deviceList: deviceList{devices: old}}
	l.take([]*pluginapi.Device{{ID: "b"}, {ID: "a", Health: "Healthy", Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: 1}}}}}, time.Now())
	if !device.SameList(l.devices, old) {
		t.Error("the same devices are another inventory")
	}
	l.take(nil, time.Now())
	if len(l.devices) != 0 {
		t.Error("an empty list is a list")
	}
}

// Devices are absent, and come back near several NUMA nodes when there is no room for more than before.
func TestLeaveOut_DeviceReturnsNearManyNodes_WeighsNoMore(t *testing.T) {
	t.Parallel()
	l := lister{most: 10}
	l.take([]*pluginapi.Device{{ID: "a"}, {ID: "b"}}, time.Now())
	l.take(nil, time.Now())
	before := l.deviceList
	near := &pluginapi.TopologyInfo{}
	for id := range int64(64) {
		near.Nodes = append(near.Nodes, &pluginapi.NUMANode{ID: id})
	}
	message := []*pluginapi.Device{{ID: "a", Topology: near}, {ID: "b", Topology: &pluginapi.TopologyInfo{Nodes: near.Nodes[:1]}}, {ID: "c"}}
	l.take(message, time.Now())
	if out := l.leaveOut(before); out != 1 || !sameDevices(l.devices, []device.Device{{ID: "a"}, {ID: "b", NUMA: []int{0}}}) {
		t.Errorf("%d left out, devices %v", out, l.devices)
	}
	if l.weight() > before.weight() {
		t.Errorf("the list weighs %d, and weighed %d", l.weight(), before.weight())
	}
	l.take(message[:2], time.Now())
	if len(l.devices[0].NUMA) != 64 {
		t.Errorf("the next list is not taken: %v", l.devices)
	}
}

func TestListCodec(t *testing.T) {
	t.Parallel()
	c := newListCodec()
	hear := func(n int) (*pluginapi.ListAndWatchResponse, bool) {
		var m pluginapi.ListAndWatchResponse
		if err := c.Unmarshal(wire(t, message(n)), &m); err != nil {
			t.Fatal(err)
		}
		return &m, c.unchanged
	}
	for i, want := range []struct {
		n         int
		unchanged bool
	}{{0, false}, {0, true}, {3, false}, {3, true}, {4, false}, {3, false}} {
		m, unchanged := hear(want.n)
		if unchanged != want.unchanged || !unchanged && len(m.Devices) != want.n {
			t.Errorf("message %d: unchanged %t with %d devices, want %+v", i, unchanged, len(m.Devices), want)
		}
	}
}

func message(n int) *pluginapi.ListAndWatchResponse {
	m := &pluginapi.ListAndWatchResponse{}
	for i := range n {
		m.Devices = append(m.Devices, &pluginapi.Device{
			ID: fmt.Sprintf("GPU-fef8089b-4820-abfc-e83e-94318197576e::%d", i), Health: pluginapi.Healthy,
			Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(i % 2)}}},
		})
	}
	return m
}

func wire(t testing.TB, m proto.Message) mem.BufferSlice {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return mem.BufferSlice{mem.SliceBuffer(data)}
}

// BenchmarkHealthChange50k puts the price of a changed list next to that of decoding it, which the library sets.
// The budget is a factor of 1.5.
func BenchmarkHealthChange50k(b *testing.B) {
	const n = 50_000
	m := message(n)
	list := [2]mem.BufferSlice{}
	list[0] = wire(b, m)
	m.Devices[n/2].Health = pluginapi.Unhealthy
	list[1] = wire(b, m)

	plain := newListCodec().CodecV2
	codec, l := newListCodec(), lister{}
	hear := func(i int) {
		var m pluginapi.ListAndWatchResponse
		if err := codec.Unmarshal(list[i%2], &m); err != nil || codec.unchanged {
			b.Fatal(err, codec.unchanged)
		}
		l.take(m.Devices, time.Now())
	}
	hear(1)
	var decode, both time.Duration
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		var m pluginapi.ListAndWatchResponse
		if err := plain.Unmarshal(list[i%2], &m); err != nil {
			b.Fatal(err)
		}
		decoded := time.Now()
		hear(i)
		decode += decoded.Sub(began)
		both += time.Since(decoded)
	}
	b.ReportMetric(float64(decode.Microseconds())/float64(b.N), "decode-µs")
	b.ReportMetric(float64(both.Microseconds())/float64(b.N), "decode+apply-µs")
	b.ReportMetric(float64(both)/float64(decode), "factor")
}

// BenchmarkUnchanged80k hears the same list again: as the same bytes, and in another order each time.
func BenchmarkUnchanged80k(b *testing.B) {
	m := message(80_000)
	b.Run("same", func(b *testing.B) {
		data, codec, l := wire(b, m), newListCodec(), lister{}
		for b.Loop() {
			var m pluginapi.ListAndWatchResponse
			if err := codec.Unmarshal(data, &m); err != nil {
				b.Fatal(err)
			}
			if !codec.unchanged {
				l.take(m.Devices, time.Now())
			}
		}
	})
	b.Run("decoded", func(b *testing.B) { // as if the bytes were others
		l := lister{}
		l.take(m.Devices, time.Now())
		for b.Loop() {
			l.take(m.Devices, time.Now())
		}
	})
	b.Run("shuffled", func(b *testing.B) {
		l := lister{}
		l.take(m.Devices, time.Now())
		other := slices.Clone(m.Devices)
		rand.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
		lists := [][]*pluginapi.Device{m.Devices, other}
		for i := 0; b.Loop(); i++ {
			l.take(lists[i%2], time.Now())
		}
	})
}

func FuzzGrant(f *testing.F) {
	for _, a := range []*pluginapi.AllocateResponse{
		{},
		{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}},
		{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
			Envs:        map[string]string{"A": "b"},
			Mounts:      []*pluginapi.Mount{{ContainerPath: "/a", HostPath: "/b"}},
			Devices:     []*pluginapi.DeviceSpec{{HostPath: "/dev/a", Permissions: "rw"}},
			Annotations: map[string]string{"c": "d"},
			CdiDevices:  []*pluginapi.CDIDevice{{Name: "v/c=d"}},
		}}},
	} {
		data, err := proto.Marshal(a)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var answer pluginapi.AllocateResponse
		if proto.Unmarshal(data, &answer) != nil {
			return
		}
		g, err := grant(&answer, nil)
		if err != nil {
			if !reflect.DeepEqual(g, device.Grant{}) {
				t.Errorf("a grant comes with the error %v", err)
			}
			return
		}
		if n := g.Size(); n > device.MaxGrant {
			t.Errorf("a grant of %d bytes", n)
		}
		c := answer.ContainerResponses[0]
		if len(g.Env) != len(c.Envs) || len(g.Mounts) != len(c.Mounts) || len(g.Nodes) != len(c.Devices) ||
			len(g.CDI) != len(c.CdiDevices) || len(g.Annotations) != len(c.Annotations) {
			t.Errorf("something is missing: %+v of %v", g, c)
		}
		for name, value := range g.Env {
			if name == "" || strings.ContainsAny(name, "=\x00") || strings.Contains(value, "\x00") {
				t.Errorf("env %q=%q", name, value)
			}
		}
		for _, n := range g.Nodes {
			if n.HostPath[0] != '/' || n.ContainerPath != "" && n.ContainerPath[0] != '/' || n.Permissions == "" || strings.Trim(n.Permissions, "rwm") != "" {
				t.Errorf("node %+v", n)
			}
		}
		for _, m := range g.Mounts {
			if m.HostPath[0] != '/' || m.ContainerPath[0] != '/' {
				t.Errorf("mount %+v", m)
			}
		}
	})
}

func FuzzLister(f *testing.F) {
	f.Add([]byte{}, []byte{})
	f.Add(wire(f, message(3)).Materialize(), wire(f, message(2)).Materialize())
	f.Fuzz(func(t *testing.T, first, second []byte) {
		var l lister
		for _, data := range [][]byte{first, second, first, first} {
			var m pluginapi.ListAndWatchResponse
			if proto.Unmarshal(data, &m) != nil {
				continue
			}
			l.take(m.Devices, time.Now())
			if want := slowInventory(m.Devices); !sameDevices(l.devices, want) {
				t.Fatalf("got %v, want %v", l.devices, want)
			}
		}
	})
}
