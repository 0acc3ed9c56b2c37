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

// afford fails if the lists of all resources, with this one, would need more than plugins.maxTotalBytes, or those of one pod's plugins more than their share.
// It forgets lost, unused resources to make room, but not for more than that. An accepted list counts from then on.
func (r *Registry) afford(l *registration, list deviceList) error {
	weight := list.weight()
	for {
		others, own := r.tryAfford(l, weight)
		switch limit := share(r.cfg.MaxTotalBytes); {
		case own+weight > limit:
			return &budgetError{resource: l.resource, bytes: weight, others: own, limit: limit, pod: l.location.pod}
		case others+weight <= r.cfg.MaxTotalBytes:
			return nil
		case !r.makeRoom(l.resource):
			return &budgetError{resource: l.resource, bytes: weight, others: others, limit: r.cfg.MaxTotalBytes}
		}
	}
}

// tryAfford returns the memory of the other resources, and that of those of the same pod, and counts the resource's own if the sums are within the limits.
// own is too small for a limit where the pod is not known.
func (r *Registry) tryAfford(l *registration, weight int) (others, own int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := func(of *registration, bytes int) {
		if others += bytes; of.location.pod.UID == l.location.pod.UID {
			own += bytes
		}
	}
	for _, s := range r.resources {
		if s.registration != l && !(s.resource == l.resource && !s.reserves(l)) {
			count(s.registration, s.weight)
		}
		for _, other := range s.reserve {
			if other != l {
				count(other, other.weight)
			}
		}
	}
	if !l.location.pod.Known() {
		own = -weight
	}
	switch s := r.resources[l.resource]; {
	case s == nil || others+weight > r.cfg.MaxTotalBytes || own+weight > share(r.cfg.MaxTotalBytes):
	case s.registration == l:
		s.weight = weight
	case s.reserves(l):
		l.weight = weight
	}
	return others, own
}

// A budgetError reports a list beyond plugins.maxTotalBytes.
type budgetError struct {
	resource             device.ResourceName
	bytes, others, limit int
	pod                  device.PluginPod // if its share is the limit
}

func (e *budgetError) Error() string {
	if e.pod.Known() {
		return fmt.Sprintf("the list of %s needs %d bytes next to the %d of the other resources of pod %s, and %d, half of plugins.maxTotalBytes, are allowed together; "+
			"raise it, with the service's memory limit", e.resource, e.bytes, e.others, e.pod, e.limit)
	}
	return fmt.Sprintf("the list of %s needs %d bytes next to the %d of all other resources, and plugins.maxTotalBytes allows %d together; "+
		"raise it, with the service's memory limit, or forget resources with devmgrd forget", e.resource, e.bytes, e.others, e.limit)
}
