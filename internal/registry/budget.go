package registry

import (
	"errors"
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

// afford fails if the lists of all resources, with this one, would need more than plugins.maxTotalBytes, or those of one pod's plugins more than their share
// (share.go). It forgets lost, unused resources to make room, but not for more than that. An accepted list counts from then on.
func (r *Registry) afford(l *registration, list deviceList) error {
	weight := list.weight()
	for {
		err := r.tryAfford(l, weight, nil)
		if errors.As(err, new(*shareError)) {
			err = r.tryAfford(l, weight, r.forgettable())
		}
		if !r.makeRoom(l.resource, err) {
			return err
		}
	}
}

// tryAfford counts a list if it is within the limits, or does not weigh more than the one that it replaces.
func (r *Registry) tryAfford(l *registration, weight int, forgettable map[device.ResourceName]bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := new(int) // what is counted of this list
	switch s := r.resources[l.resource]; {
	case s == nil:
	case s.registration == l:
		counts = &s.weight
	case s.reserves(l):
		counts = &l.weight
	}
	if weight <= *counts {
		*counts = weight
		return nil
	}
	uses := part{own: weight, all: weight}
	count := func(of *registration, bytes int, makesRoom bool) { uses.add(bytes, of.pod == l.pod, makesRoom) }
	for _, s := range r.resources {
		if s.registration != l && !(s.resource == l.resource && !s.reserves(l)) {
			count(s.registration, s.weight, s.lost() && forgettable[s.resource])
		}
		for _, other := range s.reserve {
			if other != l {
				count(other, other.weight, false)
			}
		}
	}
	switch limit := r.cfg.MaxTotalBytes; {
	case l.pod != "" && uses.exceeds(limit):
		return l.exceeds(uses, limit, "plugins.maxTotalBytes")
	case uses.all+uses.lost > limit:
		return &budgetError{resource: l.resource, bytes: weight, others: uses.all + uses.lost - weight, limit: limit}
	}
	*counts = weight
	return nil
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
