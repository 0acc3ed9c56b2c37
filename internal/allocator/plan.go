package allocator

import (
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// plan chooses devices for every container of a pod that has none yet, or says why it cannot: all or nothing. It is
// pure: the same demand, assignments and pools give the same answer, and nothing is changed.
//
// For each resource of a container, in this order: what it runs with already, by a stamp of books that are gone (runs, by
// container); devices of the pod's init containers that are still healthy, since
// those containers have ended when later ones start; then free devices, lowest ID first. App containers and sidecars
// keep what they take from an init container, so no other can have it too (the rules of the kubelet's device manager,
// which the scheduler's arithmetic expects).
func plan(want device.PodDemand, has []device.Assignment, runs map[string]device.Choice, from pools) (map[string]device.Choice, *device.Refusal) {
	choices := map[string]device.Choice{}
	shelves := map[device.ResourceName]*shelf{}
	for _, d := range want.Demands {
		held := sharesOf(has, d.Container.Name)
		choice := device.Choice{}
		for _, r := range slices.Sorted(maps.Keys(d.Wants)) {
			s := shelves[r]
			if s == nil {
				s = &shelf{pool: from[r]}
				for _, choice := range runs {
					s.running = append(s.running, choice[r]...)
				}
				slices.Sort(s.running)
				shelves[r] = s
			}
			ids, known := held[r]
			if !known {
				var no *device.Refusal
				if ids, no = s.pick(r, d, runs[d.Container.Name][r]); no != nil {
					return nil, no
				}
				choice[r] = ids
			}
			if d.Kind == device.Init {
				s.handOn(ids)
			} else {
				s.keep(ids)
			}
		}
		if len(choice) > 0 {
			choices[d.Container.Name] = choice
		}
	}
	return choices, nil
}

func sharesOf(has []device.Assignment, container string) map[device.ResourceName][]device.ID {
	for _, a := range has {
		if a.Container.Name == container {
			held := map[device.ResourceName][]device.ID{}
			for _, s := range a.Shares {
				held[s.Resource] = s.IDs
			}
			return held
		}
	}
	return nil
}

// A shelf is one resource during one plan: what the plan has used up of the pool, and what init containers hand on.
type shelf struct {
	pool     *pool
	next     int         // free devices below this position have been chosen
	used     int         // how many those are
	reusable []device.ID // ascending
	running  []device.ID // what the pod's containers run with by stamps of lost books; ascending
}

func (s *shelf) runs(id device.ID) bool {
	_, found := slices.BinarySearch(s.running, id)
	return found
}

func (s *shelf) pick(r device.ResourceName, d device.Demand, runs []device.ID) ([]device.ID, *device.Refusal) {
	if no := s.closed(r); no != nil {
		return nil, no
	}
	n := d.Wants[r]
	if len(runs) == n {
		return slices.Sorted(slices.Values(runs)), nil
	}
	hand := s.reusable
	if d.Kind == device.Init {
		hand = slices.Concat(hand, s.running) // what later containers run with they may have had from this one
		slices.Sort(hand)
		hand = slices.Compact(hand)
	} else {
		hand = slices.DeleteFunc(slices.Clone(hand), s.runs)
	}
	var ids []device.ID
	for _, id := range hand {
		if len(ids) < n && s.pool.listing.usable(id) {
			ids = append(ids, id)
		}
	}
	if free := s.pool.frees - s.used; free < n-len(ids) {
		return nil, s.short(r, n, free+len(ids))
	}
	for len(ids) < n {
		i := s.pool.free.next(s.next)
		s.next, s.used = i+1, s.used+1
		ids = append(ids, s.pool.listing.devices[i].ID)
	}
	slices.Sort(ids)
	return ids, nil
}

// closed says why nothing at all can be had of the resource, if so.
func (s *shelf) closed(r device.ResourceName) *device.Refusal {
	switch {
	case s.pool == nil || !s.pool.offered:
		return device.Refuse(device.PluginMissing, nil, "no device plugin has registered %s", r)
	case s.pool.offer.State == device.Lost:
		return device.Refuse(device.PluginMissing, nil, "the device plugin of %s is away", r)
	case s.pool.offer.State == device.Stale:
		return device.Refuse(device.PluginStale, nil, "the device plugin of %s has gone and may be back in a moment", r)
	case !s.pool.offer.Reported:
		return device.Refuse(device.PluginMissing, nil, "the device plugin of %s has not listed its devices yet", r)
	}
	return nil
}

func (s *shelf) short(r device.ResourceName, want, got int) *device.Refusal {
	listed, sick := len(s.pool.listing.devices), s.pool.unhealthy()
	if sick > 0 && got+sick >= want {
		return device.Refuse(device.DeviceUnhealthy, nil, "%s: %d wanted, %d of %d free and healthy, %d free but unhealthy", r, want, got, listed, sick)
	}
	return device.Refuse(device.NotEnoughDevices, nil, "%s: %d wanted, %d of %d free", r, want, got, listed)
}

// handOn makes an init container's devices available to later containers.
func (s *shelf) handOn(ids []device.ID) {
	s.reusable = append(s.reusable, ids...)
	slices.Sort(s.reusable)
	s.reusable = slices.Compact(s.reusable)
}

// keep takes devices from the shelf for good.
func (s *shelf) keep(ids []device.ID) {
	s.reusable = slices.DeleteFunc(s.reusable, func(id device.ID) bool { return slices.Contains(ids, id) })
}
