package placement

import (
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A View is one resource's devices at one moment: shared immutable values, and copies of the rest.
type View struct {
	resource    device.ResourceName
	Cordons     map[device.ID]device.Cordon
	Holders     map[device.ID]*device.Holder
	Failures    map[device.ID]device.Failures
	state       device.OfferState
	listing     *Listing
	quarantined map[device.ID]bool
	withheld    bitset
}

// View returns a view without cordons, holders and failures, which the caller adds.
func (p *Resource) View(r device.ResourceName) View {
	return View{resource: r, state: p.offer.State, listing: p.listing, quarantined: maps.Clone(p.quarantined), withheld: p.withheld}
}

// Statuses returns each device, in the order of the names.
func (v View) Statuses() []device.DeviceStatus {
	all := make([]device.DeviceStatus, 0, len(v.listing.devices))
	for _, d := range v.listing.devices {
		all = append(all, v.status(d, true))
	}
	unlisted := map[device.ID]bool{} // in use or cordoned
	for id := range v.Holders {
		unlisted[id] = true
	}
	for id := range v.Cordons {
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

func (v View) status(d device.Device, listed bool) device.DeviceStatus {
	s := device.DeviceStatus{Resource: v.resource, Device: d, Listed: listed, Holder: v.Holders[d.ID]}
	if c, cordoned := v.Cordons[d.ID]; cordoned {
		s.Cordon = &c
	}
	s.Failures, s.Failed = v.Failures[d.ID].Count, v.Failures[d.ID].Last
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
