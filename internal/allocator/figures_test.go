package allocator

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The counts of a pool equal a full count, whatever inventories, cordons and holders change.
func TestFiguresOfAPool(t *testing.T) {
	for seed := range uint64(300) {
		g := rand.New(rand.NewPCG(seed, 1))
		p := newResource()
		id := func() device.ID { return device.ID(fmt.Sprint(g.IntN(12))) }
		l := p.listing
		cordons := map[device.ID]device.Cordon{}
		for range 200 {
			switch g.IntN(4) {
			case 0:
				var all []device.Device
				for i := range 12 {
					if g.IntN(3) > 0 {
						d := device.Device{ID: device.ID(fmt.Sprint(i)), Healthy: g.IntN(2) > 0}
						if g.IntN(2) > 0 {
							d.NUMA = []int{g.IntN(2)}
						}
						all = append(all, d)
					}
				}
				l = makeListing(all, cordons, l)
				p.accept(device.Offer{State: device.Serving, Reported: true}, l)
			case 1:
				cordons = map[device.ID]device.Cordon{}
				for range g.IntN(6) {
					cordons[id()] = device.Cordon{}
				}
				l = makeListing(l.devices, cordons, l)
				p.setListing(l)
			case 2:
				p.take([]device.ID{id()}, "u")
			case 3:
				p.release([]device.ID{id()}, "u")
			}
			free, sick, broken, out := 0, 0, 0, 0
			for _, d := range p.listing.devices {
				_, c := cordons[d.ID]
				_, taken := p.taken[d.ID]
				switch {
				case taken && (!d.Healthy || c):
					sick++
				case taken:
				case c:
					out++
				case !d.Healthy:
					broken++
				default:
					free++
				}
			}
			if p.freeCount != free || p.takenUnusable != sick || p.unhealthy() != broken || p.cordoned() != out {
				t.Fatalf("seed %d: free %d %d, sick %d %d, unhealthy %d %d, cordoned %d %d", seed, p.freeCount, free, p.takenUnusable, sick, p.unhealthy(), broken, p.cordoned(), out)
			}
			for i, n := range p.freeAt {
				k := 0
				for at := range p.listing.devices {
					if p.listing.place(at) == i && p.free.has(at) {
						k++
					}
				}
				if k != n {
					t.Fatalf("seed %d: place %d", seed, i)
				}
			}
		}
	}
}

// The ring near its length.
func TestRing(t *testing.T) {
	a := &Allocator{feed: feed{updated: make(chan struct{})}, pods: map[device.PodUID]*pod{}}
	for i := range 3*maxChanges + 5 {
		p := &pod{demand: device.PodDemand{Pod: device.Pod{UID: device.PodUID(fmt.Sprint(i))}}}
		a.pods[p.demand.Pod.UID] = p
		a.publishLocked(p)
		now := uint64(i + 1)
		if i%97 != 0 && (i+1)%maxChanges > 2 {
			continue
		}
		for _, back := range []uint64{0, 1, 2, maxChanges - 1, maxChanges, maxChanges + 1} {
			if back > now {
				continue
			}
			all, known := a.ChangesSince(now-back, 1<<30)
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
	a := &Allocator{feed: feed{updated: make(chan struct{})}, pods: map[device.PodUID]*pod{}}
	turn := func(name string, devices, size int) {
		ids := make([]device.ID, devices)
		for i := range ids {
			ids[i] = device.ID(fmt.Sprintf("%s-%0*d", name, size, i))
		}
		p := &pod{demand: device.PodDemand{Pod: device.Pod{UID: device.PodUID(name)}}, active: true}
		a.pods[p.demand.Pod.UID] = p
		a.publishLocked(p)
		p.assigned = []device.Assignment{{Shares: []device.Share{{Resource: "vendor.com/gpu", IDs: ids, Grant: device.Grant{Env: map[string]string{"IDS": fmt.Sprint(ids)}}}}}}
		a.publishLocked(p)
		delete(a.pods, p.demand.Pod.UID)
		a.publishLocked(p)
	}
	holds := func() int {
		all, known := a.ChangesSince(a.feed.revision-uint64(len(a.feed.changes)), 1<<30)
		if _, more := a.ChangesSince(a.feed.revision-uint64(len(a.feed.changes))-1, 1); !known || more {
			t.Fatalf("of %d changes the oldest is known: %v, and one before it: %v", len(a.feed.changes), known, more)
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
	if _, known := a.ChangesSince(a.feed.revision-1, 1); !known || len(a.feed.changes) != 1 {
		t.Errorf("%d changes are kept, the newest: %v", len(a.feed.changes), known)
	}
	for i := range maxChanges {
		turn(fmt.Sprint("small", i), 1, 2)
	}
	if len(a.feed.changes) != maxChanges {
		t.Errorf("%d small changes are kept", len(a.feed.changes))
	}
}
