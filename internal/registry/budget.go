package registry

import (
	"fmt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// deviceWeight is the memory of one device without its ID: in the inventory, in the allocator's index, and in answers.
const deviceWeight = 256

// weight returns the approximate memory of a list, in bytes.
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

// afford fails if the lists of all resources, with this one, would need more than plugins.maxTotalBytes. It forgets lost, unused
// resources to make room. An accepted list counts from then on.
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

// tryAfford returns the memory of the other resources, and counts the resource's own if the sum is within the limit.
func (r *Registry) tryAfford(l *registration, weight int) (others int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.resources {
		if s.registration != l && !(s.resource == l.resource && !s.reserves(l)) {
			others += s.weight
		}
		for _, other := range s.reserve {
			if other != l {
				others += other.weight
			}
		}
	}
	switch s := r.resources[l.resource]; {
	case s == nil || others+weight > r.cfg.MaxTotalBytes:
	case s.registration == l:
		s.weight = weight
	case s.reserves(l):
		l.weight = weight
	}
	return others
}

// A budgetError reports a list beyond plugins.maxTotalBytes.
type budgetError struct {
	resource             device.ResourceName
	bytes, others, limit int
}

func (e *budgetError) Error() string {
	return fmt.Sprintf("the list of %s needs %d bytes next to the %d of all other resources, and plugins.maxTotalBytes allows %d together; "+
		"raise it, with the service's memory limit, or forget resources with devmgrd forget", e.resource, e.bytes, e.others, e.limit)
}
