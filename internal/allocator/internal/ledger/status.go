package ledger

import (
	"iter"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A View is one resource's devices at one moment. The caller adds the exported fields.
type View struct {
	Cordons  map[device.ID]device.Cordon
	Failures map[device.ID]device.Failures
	Running  map[device.ID][]string        // the names of the containers that run with quarantined devices
	Claims   map[device.ID][]device.PodUID // the pods for which the scheduler has chosen devices
	Awaited  bool                          // a pod waits for devices that the scheduler has not chosen, and may be assigned any free one

	name device.ResourceName
	of   *Resource // a copy of what the states depend on
}

// View returns a view of what the Resource knows.
func (r *Resource) View(name device.ResourceName) *View {
	return &View{name: name, of: &Resource{
		offer: r.offer, listing: r.listing, holders: holders{maps.Clone(r.taken), maps.Clone(r.sharers), maps.Clone(r.quarantined), maps.Clone(r.releasing)},
		unclear: unclear{withheld: r.withheld, vanished: maps.Clone(r.vanished)}, answers: answers{refused: maps.Clone(r.refused)},
	}}
}

// Statuses yields each device, in the order of the names, with the pod that has it.
func (v *View) Statuses(pods *device.Snapshot) iter.Seq[device.DeviceStatus] {
	return func(yield func(device.DeviceStatus) bool) {
		holders := v.holders(pods)
		listed, unlisted := v.of.listing.devices, v.unlisted(holders)
		for len(listed)+len(unlisted) > 0 {
			var d device.Device
			isListed := len(unlisted) == 0 || len(listed) > 0 && device.CompareIDs(listed[0].ID, unlisted[0]) < 0
			if isListed {
				d, listed = listed[0], listed[1:]
			} else {
				d.ID, unlisted = unlisted[0], unlisted[1:]
			}
			if !yield(v.status(d, isListed, holders[d.ID])) {
				return
			}
		}
	}
}

// unlisted returns the devices in use or cordoned that the plugin does not list.
func (v *View) unlisted(holders map[device.ID][]device.Holder) []device.ID {
	all := map[device.ID]bool{}
	for id := range holders {
		all[id] = true
	}
	for id := range v.Cordons {
		all[id] = true
	}
	maps.DeleteFunc(all, func(id device.ID, _ bool) bool { return v.of.listing.Lists(id) })
	return slices.SortedFunc(maps.Keys(all), device.CompareIDs)
}

// holders returns the pods that have devices, with the containers that are assigned them, or run with them.
func (v *View) holders(pods *device.Snapshot) map[device.ID][]device.Holder {
	all := make(map[device.ID][]device.Holder, len(v.of.taken))
	for id := range v.of.taken {
		for uid := range v.of.Holders(id) {
			all[id] = append(all[id], device.Holder{Pod: device.Pod{UID: uid}})
		}
	}
	names := make(map[device.PodUID]device.Pod, len(pods.Pods))
	for _, p := range pods.Pods {
		names[p.Pod.UID] = p.Pod
		for c, s := range device.Shares(p.Assignments) {
			if s.Resource != v.name {
				continue
			}
			for _, id := range s.IDs {
				has := all[id]
				if at := slices.IndexFunc(has, func(h device.Holder) bool { return h.Pod.UID == p.Pod.UID }); at >= 0 {
					has[at].Containers = append(has[at].Containers, c.Name)
				}
			}
		}
	}
	for id, has := range all {
		for i, h := range has {
			if pod, known := names[h.Pod.UID]; known {
				has[i].Pod = pod
			}
		}
		if len(has[0].Containers) == 0 {
			has[0].Containers = v.Running[id]
		}
	}
	return all
}

func (v *View) status(d device.Device, listed bool, holders []device.Holder) device.DeviceStatus {
	s := device.DeviceStatus{Resource: v.name, Device: d, Listed: listed, Vanished: v.of.vanished[d.ID]}
	if len(holders) > 0 {
		s.Holder, s.Sharers = &holders[0], holders[1:]
	}
	if c, cordoned := v.Cordons[d.ID]; cordoned {
		s.Cordon = &c
	}
	s.Failures, s.Failed = v.Failures[d.ID].Count, v.Failures[d.ID].Last
	s.Release, s.Refusals = v.of.ReleaseOf(d.ID), device.Refusals{Times: v.of.refused[d.ID].times, Why: v.of.refused[d.ID].why}
	switch {
	case s.Release != nil && s.Release.Busy:
		s.State = device.StateBusy
	case s.Release != nil:
		s.State = device.StateReleasing
	case v.of.quarantined[d.ID]:
		s.State = device.StateQuarantined
	case s.Holder != nil:
		s.State = device.StateAssigned
	case s.Cordon != nil:
		s.State = s.Cordon.State()
	case !d.Healthy:
		s.State = device.StateUnhealthy
	case v.of.Withheld(d.ID):
		s.State = device.StateWithheld
	case v.of.offer.State != device.Serving:
		s.State = device.StateStale
	default:
		s.State = device.StateFree
	}
	s.Claimed = v.claimed(d.ID, holders)
	s.Claimable = listed && (s.Claimed || s.Holder == nil && !v.Awaited) && s.State != device.StateWithheld && s.State != device.StateQuarantined
	return s
}

// claimed reports whether one of the pods that have a device has it by a claim or, if there are none, whether some pod waits for it so.
func (v *View) claimed(id device.ID, holders []device.Holder) bool {
	by := v.Claims[id]
	return len(by) > 0 && (len(holders) == 0 || slices.ContainsFunc(holders, func(h device.Holder) bool { return slices.Contains(by, h.Pod.UID) }))
}
