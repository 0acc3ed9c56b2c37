package ledger

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/device"
)

// listed returns a listing of healthy devices.
func listed(ids ...device.ID) *Listing {
	var devices []device.Device
	for _, id := range ids {
		devices = append(devices, device.Device{ID: id, Healthy: true})
	}
	return NewListing(devices, nil, Ordering{}, nil)
}

func TestMatching_SameIDs_AreComparedOnce(t *testing.T) {
	t.Parallel()
	first := listed("a", "b", "c", "d")
	s := device.Selection{Use: []string{"a", "c*"}}
	all := first.Match(s)
	if got := []bool{all.Has(0), all.Has(1), all.Has(2), all.Has(3)}; !slices.Equal(got, []bool{true, false, true, false}) {
		t.Errorf("a to d: %v", got)
	}
	for key := range first.matched.known {
		first.matched.known[key].devices = bitset.New(4).Set // a comparison would find a and c
	}
	failing := slices.Clone(first.Devices())
	failing[0].Healthy = false
	for _, l := range []*Listing{first, NewListing(failing, nil, Ordering{}, first), NewListing(failing, map[device.ID]device.Cordon{"b": {}}, Ordering{}, first)} {
		if again := l.Match(device.Selection{Use: []string{"a", "c*"}}); again.Common(bitset.Set{}) != 0 {
			t.Error("the IDs are compared again")
		}
	}
	if other := NewListing(failing[1:], nil, Ordering{}, first).Match(s); other.Common(bitset.Set{}) != 1 {
		t.Errorf("%d of b to d, want c", other.Common(bitset.Set{}))
	}
	if other := first.Match(device.Selection{Avoid: []string{"a", "c*"}}); other.Common(bitset.Set{}) != 2 {
		t.Errorf("%d others, want b and d", other.Common(bitset.Set{}))
	}
}

func TestMatching_ManySelections_AreForgotten(t *testing.T) {
	t.Parallel()
	l := listed("a7", "b7")
	for i := range 3 * maxSelections {
		if n := l.Match(device.Selection{Use: []string{fmt.Sprint("a", i)}}).Common(bitset.Set{}); n != map[bool]int{true: 1}[i == 7] {
			t.Fatalf("a%d: %d devices", i, n)
		}
		if n := len(l.matched.known); n > maxSelections {
			t.Fatalf("%d selections are remembered", n)
		}
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A pod's owner may change its annotation all the time, and name 64 resources of its choice.
func TestMatching_LongPatternsThatChange_KeepNoMemory(t *testing.T) {
	for name, l := range map[string]*Listing{"listed": listed("a7", "b7"), "made up": listed()} {
		t.Run(name, func(t *testing.T) {
			before := heap()
			for i := range 4 * maxSelections {
				l.Match(device.Selection{Use: []string{fmt.Sprint(i, strings.Repeat("x", 15_000))}})
			}
			if kept := int64(heap()-before) >> 10; kept > 64 {
				t.Errorf("%d KiB are kept", kept)
			}
			runtime.KeepAlive(l)
		})
	}
}

// A pod's own selections stay remembered between their comparison and the plan.
func TestMatching_LongSets_HaveALimit(t *testing.T) {
	var ids []device.ID
	for i := range 100_000 {
		ids = append(ids, device.ID(fmt.Sprint(i)))
	}
	l := listed(ids...)
	pod := func(i int) device.Selection { return device.Selection{Use: []string{fmt.Sprint("pod", i)}} }
	for i := range maxSelections / 2 {
		l.Match(pod(i))
	}
	before := heap()
	for i := range maxSelections {
		l.Match(device.Selection{Use: []string{fmt.Sprint("other", i)}})
		for i := range maxSelections / 2 {
			if _, known := l.matched.find(pod(i).Key()); !known {
				t.Fatalf("selection %d of a pod is forgotten", i)
			}
		}
	}
	if kept := int64(heap()-before) >> 10; kept > 1024 {
		t.Errorf("%d KiB are kept", kept)
	}
	runtime.KeepAlive(l)
}
