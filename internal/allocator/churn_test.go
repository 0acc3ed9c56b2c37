package allocator_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// churn plays random steps: pods come, start, stop and go, plugins fail, offers change, the daemon restarts.
func churn(r *rig, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	pods := map[string]device.PodDemand{}
	live := map[string][]device.Running{}
	name := func() string { return fmt.Sprintf("%c%d", 'a'+random.IntN(26), random.IntN(100)) }
	some := func() string {
		names := slices.Sorted(maps.Keys(pods))
		if len(names) == 0 {
			return "none"
		}
		return names[random.IntN(len(names))]
	}
	var calls atomic.Int64
	r.shop.answers(func(context.Context, device.Pod, device.ResourceName) error {
		if calls.Add(1)%5 == 0 {
			return errPlugin
		}
		return nil
	})
	r.RuntimeSynced(nil, nil)
	if seed%2 == 0 {
		r.shop.prefers(gpu, func(ctx context.Context, available, must []device.ID, size int) ([]device.ID, error) {
			time.Sleep(time.Duration(calls.Add(1)%3) * time.Second)
			switch calls.Load() % 7 {
			case 0:
				return nil, errPlugin
			case 1:
				return available[:1], nil
			}
			return last(ctx, available, must, size)
		})
	}
	for range 300 {
		switch random.IntN(12) {
		case 0, 1, 2, 3:
			n := name()
			if _, there := pods[n]; there {
				break
			}
			var demands []device.Demand
			for i := range random.IntN(4) {
				kind := []device.Kind{device.Init, device.Sidecar, device.App}[random.IntN(3)]
				d := wants(fmt.Sprintf("%d", i), kind, gpu, 1+random.IntN(3))
				if random.IntN(2) == 0 {
					d.Wants[nic] = 1
				}
				demands = append(demands, d)
			}
			pods[n] = pod(n, demands...)
			r.Bind(pods[n])
		case 4, 5:
			n := some()
			delete(pods, n)
			r.Drop(device.PodUID(n))
		case 6:
			n := some()
			if strings.HasPrefix(r.stands(n, "0"), "ready") {
				c := running(fmt.Sprint(random.Uint64()), n, "0")
				live[n] = append(live[n], c)
				r.RuntimeStarted(c)
			}
		case 7:
			names := slices.Sorted(maps.Keys(live))
			if len(names) == 0 {
				break
			}
			n := names[random.IntN(len(names))]
			for _, c := range live[n] {
				r.RuntimeStopped(c)
			}
			delete(live, n)
		case 8:
			n := random.IntN(30)
			r.shop.stock(gpu, n+1, random.IntN(n+1))
			r.shop.places(gpu, 1+random.IntN(4))
		case 9:
			r.shop.stock(nic, 8)
			r.shop.places(nic, 2)
			r.shop.offer(nic, func(o *device.Offer) { o.State = device.OfferState(random.IntN(3)) })
		case 10:
			r.after(time.Duration(random.IntN(5)) * time.Second)
		case 11:
			if random.IntN(5) > 0 {
				break
			}
			r.restart()
			var all []device.PodDemand
			for _, p := range pods {
				all = append(all, p)
			}
			var cs []device.Running
			for _, l := range live {
				cs = append(cs, l...)
			}
			r.Replace(all)
			r.RuntimeSynced(cs, nil)
		}
		r.check()
	}
}
