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
		err := r.tryAfford(l, weight)
		if full := new(budgetError); err == nil || !errors.As(err, &full) || !r.makeRoom(l.resource) {
			return err
		}
	}
}

// tryAfford counts a list if it is within the limits.
func (r *Registry) tryAfford(l *registration, weight int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, uses := 0, part{weight, weight} // kept: of the other lists, lost resources' too
	count := func(of *registration, bytes int, lost bool) {
		kept += bytes
		if lost {
			return
		}
		if uses.all += bytes; of.pod == l.pod {
			uses.own += bytes
		}
	}
	for _, s := range r.resources {
		if s.registration != l && !(s.resource == l.resource && !s.reserves(l)) {
			count(s.registration, s.weight, s.lost())
		}
		for _, other := range s.reserve {
			if other != l {
				count(other, other.weight, false)
			}
		}
	}
	switch limit := r.cfg.MaxTotalBytes; {
	case l.pod != "" && uses.exceeds(limit):
		return &shareError{resource: l.resource, pod: l.whose(), has: uses.own - weight, more: weight, free: limit - uses.all + weight, of: "plugins.maxTotalBytes"}
	case kept+weight > limit:
		return &budgetError{resource: l.resource, bytes: weight, others: kept, limit: limit}
	}
	switch s := r.resources[l.resource]; {
	case s == nil:
	case s.registration == l:
		s.weight = weight
	case s.reserves(l):
		l.weight = weight
	}
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
