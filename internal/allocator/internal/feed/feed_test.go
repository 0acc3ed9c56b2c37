package feed

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The ring near its length.
func TestRing(t *testing.T) {
	f := New()
	for i := range 3*maxChanges + 5 {
		f.Publish(nil, &device.PodAllocation{Pod: device.Pod{UID: device.PodUID(fmt.Sprint(i))}}, time.Time{})
		now := uint64(i + 1)
		if i%97 != 0 && (i+1)%maxChanges > 2 {
			continue
		}
		for _, back := range []uint64{0, 1, 2, maxChanges - 1, maxChanges, maxChanges + 1} {
			if back > now {
				continue
			}
			all, known := f.Since(now-back, 1<<30)
			if known != (back <= maxChanges) || known && len(all) != int(back) {
				t.Fatalf("at %d, %d back: %d, %v", now, back, len(all), known)
			}
			for k, c := range all {
				if c.Revision != now-back+uint64(k)+1 {
					t.Fatalf("at %d, %d back: change %d is %d", now, back, k, c.Revision)
				}
			}
		}
	}
}

// Pods with thousands of devices come and go: the changes stay within their memory bound, and the newest is always known.
func TestRing_BoundedByBytes(t *testing.T) {
	f := New()
	turn := func(name string, devices, size int) {
		ids := make([]device.ID, devices)
		id := device.ID(fmt.Sprintf("%s-%0*d", name, size, 0))
		for i := range ids {
			ids[i] = id
		}
		bound := &device.PodAllocation{Pod: device.Pod{UID: device.PodUID(name)}, Active: true}
		f.Publish(nil, bound, time.Time{})
		assigned := *bound
		assigned.Assignments = []device.Assignment{{Shares: []device.Share{{Resource: "vendor.com/gpu", IDs: ids, Grant: device.Grant{Env: map[string]string{"IDS": strings.Repeat(" "+string(id), devices)}}}}}}
		f.Publish(bound, &assigned, time.Time{})
		f.Publish(&assigned, nil, time.Time{})
	}
	holds := func() int {
		all, known := f.Since(f.revision-uint64(len(f.changes)), 1<<30)
		if _, more := f.Since(f.revision-uint64(len(f.changes))-1, 1); !known || more {
			t.Fatalf("of %d changes the oldest is known: %v, and one before it: %v", len(f.changes), known, more)
		}
		sum := 0
		for _, c := range all {
			for _, h := range []*device.PodAllocation{c.Before, c.After} {
				if h != nil && len(h.Assignments) > 0 {
					for _, id := range h.Assignments[0].Shares[0].IDs {
						sum += len(id)
					}
				}
			}
		}
		return sum
	}
	for i := range 60 {
		turn(fmt.Sprint("large", i), 8000, 40)
		if sum := holds(); sum > maxChangesBytes {
			t.Fatalf("after %d pods the changes name devices of %d bytes", i+1, sum)
		}
	}
	turn("larger than all", 80_000, 400)
	if _, known := f.Since(f.revision-1, 1); !known || len(f.changes) != 1 {
		t.Errorf("%d changes are kept, the newest: %v", len(f.changes), known)
	}
	for i := range maxChanges {
		turn(fmt.Sprint("small", i), 1, 2)
	}
	if len(f.changes) != maxChanges {
		t.Errorf("%d small changes are kept", len(f.changes))
	}
}
