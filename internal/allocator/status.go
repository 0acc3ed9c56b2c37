package allocator

import (
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A view is one resource's devices at one moment: shared immutable values, and copies of the rest.
type view struct {
	resource    device.ResourceName
	cordons     map[device.ID]device.Cordon
	holders     map[device.ID]*device.Holder
	failures    map[device.ID]failure
	state       device.OfferState
	listing     *listing
	quarantined map[device.ID]bool
	withheld    bitset
}

// A failure is how often a device has failed recently, and when it last failed.
type failure struct {
	n    int
	last time.Time
}

// view returns a view without cordons, holders and failures, which the caller adds.
func (p *resource) view(r device.ResourceName) view {
	return view{resource: r, state: p.offer.State, listing: p.listing, quarantined: maps.Clone(p.quarantined), withheld: p.withheld}
}

// statuses returns each device, in the order of the names.
func (v view) statuses() []device.DeviceStatus {
	all := make([]device.DeviceStatus, 0, len(v.listing.devices))
	for _, d := range v.listing.devices {
		all = append(all, v.status(d, true))
	}
	unlisted := map[device.ID]bool{} // in use or cordoned
	for id := range v.holders {
		unlisted[id] = true
	}
	for id := range v.cordons {
		unlisted[id] = true
	}
	for id := range unlisted {
		if _, listed := v.listing.at[id]; !listed {
			all = append(all, v.status(device.Device{ID: id}, false))
		}
	}
	slices.SortFunc(all, func(x, y device.DeviceStatus) int { return device.CompareIDs(x.ID, y.ID) })
	return all
}

func (v view) status(d device.Device, listed bool) device.DeviceStatus {
	s := device.DeviceStatus{Resource: v.resource, Device: d, Listed: listed, Holder: v.holders[d.ID]}
	if c, cordoned := v.cordons[d.ID]; cordoned {
		s.Cordon = &c
	}
	s.Failures, s.Failed = v.failures[d.ID].n, v.failures[d.ID].last
	switch {
	case v.quarantined[d.ID]:
		s.State = device.Quarantined
	case s.Holder != nil:
		s.State = device.Assigned
	case s.Cordon != nil:
		s.State = device.Cordoned
	case !d.Healthy:
		s.State = device.Unhealthy
	case listed && v.withheld != nil && v.withheld.has(v.listing.at[d.ID]):
		s.State = device.Withheld
	case v.state != device.Serving:
		s.State = device.PluginAway
	default:
		s.State = device.Available
	}
	return s
}
