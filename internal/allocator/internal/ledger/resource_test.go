package ledger

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The counts of a resource equal a full count, whatever inventories, cordons and holders change.
func TestFiguresOfAResource(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		g := rand.New(rand.NewPCG(seed, 1))
		r := newResource(false)
		id := func() device.ID { return device.ID(fmt.Sprint(g.IntN(12))) }
		l := r.listing
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
				r.accept(device.Offer{State: device.Serving, Reported: true}, l, l.Changed(r.listing))
			case 1:
				cordons = map[device.ID]device.Cordon{}
				for range g.IntN(6) {
					cordons[id()] = device.Cordon{}
				}
				l = NewListing(l.devices, cordons, Ordering{}, l)
				r.setListing(l)
			case 2:
				r.take(id(), "u")
			case 3:
				r.leave([]device.ID{id()}, "u")
			}
			free, unusable, broken, out := 0, 0, 0, 0
			for _, d := range r.listing.devices {
				_, c := cordons[d.ID]
				_, taken := r.taken[d.ID]
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
			if r.freeCount != free || r.takenUnusable != unusable || r.Unhealthy() != broken || outCount(r) != out {
				t.Fatalf("seed %d: free %d %d, unusable %d %d, unhealthy %d %d, cordoned %d %d", seed, r.freeCount, free, r.takenUnusable, unusable, r.Unhealthy(), broken, outCount(r), out)
			}
			for i, n := range r.freeAt {
				k := 0
				for at := range r.listing.devices {
					if r.listing.Place(at) == i && r.free.Has(at) {
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

// outCount returns the number of devices that are out of service.
func outCount(r *Resource) (n int) {
	for range r.OutOfService {
		n++
	}
	return n
}

func TestUnavailable_EachState_SaysWhy(t *testing.T) {
	t.Parallel()
	for want, offer := range map[string]*device.Offer{
		"PluginMissing: no device plugin has registered vendor.com/gpu":                                          nil,
		"PluginMissing: the device plugin of vendor.com/gpu has not listed its devices yet":                      {State: device.Serving, Connected: true},
		"PluginMissing: the device plugin of vendor.com/gpu is disconnected":                                     {State: device.Lost, Reported: true},
		"PluginStale: the device plugin of vendor.com/gpu has just disconnected and may return":                  {State: device.Stale, Reported: true},
		"PluginStale: the device plugin of vendor.com/gpu is connected again and has not listed its devices yet": {State: device.Stale, Reported: true, Connected: true},
		"": {State: device.Serving, Reported: true, Connected: true},
	} {
		r := newResource(false)
		if offer != nil {
			r.accept(*offer, r.listing, nil)
		}
		got := ""
		if no := r.Unavailable("vendor.com/gpu"); no != nil {
			got = string(no.Wait.Reason) + ": " + no.Wait.Message
		}
		if got != want {
			t.Errorf("%+v: %q, want %q", offer, got, want)
		}
	}
}

// The releases of devices that are not listed are remembered up to a bound.
func TestOldest_UnlistedDevicesAreForgotten(t *testing.T) {
	t.Parallel()
	r := newResource(false)
	use := func(from, n int) {
		devices, ids := make([]device.Device, n), make([]device.ID, n)
		for i := range n {
			ids[i] = device.ID(fmt.Sprintf("random-%04d", from+i))
			devices[i] = device.Device{ID: ids[i], Healthy: true}
		}
		r.setListing(NewListing(devices, nil, Ordering{Order: Oldest}, r.listing))
		for _, id := range ids {
			r.take(id, "pod")
		}
		r.used(ids)
		r.leave(ids, "pod")
	}
	use(0, maxUnlistedReleases)
	if n := len(r.released); n != maxUnlistedReleases {
		t.Errorf("%d devices are remembered of as many as may be", n)
	}
	for i := range 100 {
		use(maxUnlistedReleases+i, 1)
	}
	if n := len(r.released); n > maxUnlistedReleases+2 {
		t.Errorf("%d devices are remembered", n)
	}
}
