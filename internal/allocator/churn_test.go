package allocator_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
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
		switch random.IntN(13) {
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
		case 12:
			c := []device.Cordon{{Resource: []device.ResourceName{gpu, nic}[random.IntN(2)], ID: device.ID(fmt.Sprint("d", random.IntN(30)))}}
			change := r.Cordon
			if random.IntN(2) == 0 {
				change = r.Uncordon
			}
			if _, err := change(c); err != nil && !errors.As(err, new(*device.UnknownDeviceError)) {
				r.t.Error(err)
			}
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

// unrest changes the offers of two resources, of a thousand devices each, without a pause while pods come and go.
func unrest(r *rig) {
	var ids [1000]device.ID
	for i := range ids {
		ids[i] = device.ID(fmt.Sprintf("d%03d", i))
	}
	changes := 0
	change := func() { // in turn whether there are preferences, and health; now and then also places, and how many there are
		list := changes / 2
		for _, res := range []device.ResourceName{gpu, nic} {
			r.shop.offer(res, func(o *device.Offer) {
				o.Reported, o.State, o.Prefers = true, device.Serving, changes%2 > 0
				if changes%2 > 0 {
					return
				}
				o.Inventory.Devices = make([]device.Device, len(ids)-list/9%50)
				for i := range o.Inventory.Devices {
					o.Inventory.Devices[i] = device.Device{ID: ids[i], Healthy: (i+list)%3 > 0, NUMA: []int{(i + list/3) % 4}}
				}
			})
		}
		changes++
	}
	change()
	r.shop.prefers(nic, last)
	r.RuntimeSynced(nil, nil)
	synctest.Wait()
	over, changed := make(chan struct{}), make(chan struct{})
	var plugin sync.WaitGroup
	plugin.Go(func() {
		for {
			change()
			select {
			case <-over:
				return
			case changed <- struct{}{}: // somebody waits for it
			default:
			}
		}
	})
	for i := range 60 {
		both := wants("main", device.App, gpu, 3)
		both.Wants[nic] = 2
		p := pod(fmt.Sprint(i), wants("init", device.Init, gpu, 2), both)
		r.Bind(p)
		<-changed
		s := r.Standing(p.Demands[1].Container)
		for ; s.Stand == device.Busy; s = r.Standing(p.Demands[1].Container) {
			<-s.Done
		}
		if s.Stand != device.Ready {
			r.t.Errorf("pod %d stands %+v", i, s)
		}
		if n := r.Published()[gpu]; n < 600 {
			r.t.Errorf("%d are published", n)
		}
		r.Drop(device.PodUID(fmt.Sprint(i - 3)))
	}
	close(over)
	plugin.Wait()
	for range 12 { // a change of each sort by itself
		r.check()
		change()
	}
	r.check()
	r.Replace(nil)
}
