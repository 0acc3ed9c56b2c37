package registry

import (
	"fmt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// deviceWeight is what one device costs next to its ID: in the inventory, in the allocator's index, and in what is shown.
const deviceWeight = 256

// weight returns about how many bytes a roster costs.
func (r *deviceList) weight() int {
	n := (len(r.devices) + len(r.absent)) * deviceWeight
	for i := range r.devices {
		n += len(r.devices[i].ID) + 8*len(r.devices[i].NUMA)
	}
	for id := range r.absent {
		n += len(id)
	}
	return n
}

// afford fails if the rosters of all resources together would cost more than plugins.maxTotalBytes with this one. Those of lost
// resources that are not in use make room. What is afforded counts from then on.
func (r *Registry) afford(l *registration, list deviceList) error {
	weight := list.weight()
	for {
		others := r.tryAfford(l, weight)
		if others+weight <= r.cfg.MaxTotalBytes {
			return nil
		}
		if !r.makeRoom(l.resource) {
			return &budgetError{resource: l.resource, bytes: weight, others: others, limit: r.cfg.MaxTotalBytes}
		}
	}
}

// tryAfford returns what the other resources cost, and counts the resource's own if that is within the limit.
func (r *Registry) tryAfford(l *registration, weight int) (others int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.resources {
		if s.resource != l.resource {
			others += s.weight
		}
	}
	if s := r.resources[l.resource]; s != nil && s.registration == l && others+weight <= r.cfg.MaxTotalBytes {
		s.weight = weight
	}
	return others
}

// A budgetError reports a list for which there is no room.
type budgetError struct {
	resource             device.ResourceName
	bytes, others, limit int
}

func (e *budgetError) Error() string {
	return fmt.Sprintf("the list of %s would cost %d bytes next to the %d of all other resources, and plugins.maxTotalBytes allows %d together; "+
		"raise it, with the service's limit of memory, or forget resources with devmgrd forget", e.resource, e.bytes, e.others, e.limit)
}
