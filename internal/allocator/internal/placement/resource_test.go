package placement

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The counts of a pool equal a full count, whatever inventories, cordons and holders change.
func TestFiguresOfAPool(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		g := rand.New(rand.NewPCG(seed, 1))
		p := NewResource()
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
				l = NewListing(all, cordons, Ordering{}, l)
				p.Accept(device.Offer{State: device.Serving, Reported: true}, l)
			case 1:
				cordons = map[device.ID]device.Cordon{}
				for range g.IntN(6) {
					cordons[id()] = device.Cordon{}
				}
				l = NewListing(l.devices, cordons, Ordering{}, l)
				p.SetListing(l)
			case 2:
				p.Take([]device.ID{id()}, "u")
			case 3:
				p.Release([]device.ID{id()}, "u")
			}
			free, unusable, broken, out := 0, 0, 0, 0
			for _, d := range p.listing.devices {
				_, c := cordons[d.ID]
				_, taken := p.taken[d.ID]
				switch {
				case taken && (!d.Healthy || c):
					unusable++
				case taken:
				case c:
					out++
				case !d.Healthy:
					broken++
				default:
					free++
				}
			}
			if p.freeCount != free || p.takenUnusable != unusable || p.unhealthy() != broken || p.outCount() != out {
				t.Fatalf("seed %d: free %d %d, unusable %d %d, unhealthy %d %d, cordoned %d %d", seed, p.freeCount, free, p.takenUnusable, unusable, p.unhealthy(), broken, p.outCount(), out)
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
