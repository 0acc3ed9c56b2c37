package registry

import (
	"fmt"

	"github.com/devmgrd/devmgrd/internal/device"
)

// weight returns the approximate memory of a list, in bytes.
func (r *deviceList) weight() int {
	n := 0
	for i := range r.devices {
		n += r.devices[i].Weight()
	}
	for id := range r.absent {
		n += (&device.Device{ID: id}).Weight()
	}
	return n
}

// A use is what one plugin of a resource uses of plugins.maxTotalBytes.
type use struct {
	of     *registration
	weight int
	rests  bool // it counts as far as it is more than what the others use: its plugin lists again when these have ended
}

// uses returns the uses of a resource's plugins.
func (s *resourceState) uses() []use {
	all := []use{{of: s.registration, weight: s.weight}}
	for _, l := range s.reserve {
		all = append(all, use{l, l.weight, !l.listed})
	}
	return all
}

// afford fails if the lists of all resources, with this one, would need more than plugins.maxTotalBytes, or those of one pod's plugins more than its quota
// (quota.go). It forgets lost resources to make room, but not for more than that. An accepted list counts from then on. If there is no room for the lists of
// all plugins of the resource, there may be room for one: its plugin is alone, and the others rest. The error is errRests if this one does.
func (r *Registry) afford(l *registration, list deviceList) (alone bool, err error) {
	weight := list.weight()
	for {
		err = r.tryForgetting(func(forgettable map[device.ResourceName]bool) (err error) {
			alone, err = r.tryAfford(l, weight, forgettable)
			return err
		})
		if !r.makeRoom(l.resource, err) {
			return alone, err
		}
	}
}

// tryAfford counts a list if it is within the limits, or does not weigh more than the one that it replaces or rests for.
func (r *Registry) tryAfford(l *registration, weight int, forgettable map[device.ResourceName]bool) (alone bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[l.resource]
	if s == nil || s.registration != l && !s.reserves(l) {
		return false, nil // its list is ignored
	}
	counts := &l.weight
	if s.registration == l {
		counts = &s.weight
	}
	if weight <= *counts && (s.registration == l || l.listed || s.state != device.Serving) {
		*counts = weight
		return false, nil
	}
	uses := s.uses()
	for i := range uses {
		if uses[i].of == l {
			uses[i].weight, uses[i].rests = weight, false
		}
	}
	switch err = r.fitsLocked(l, uses, forgettable); {
	case err == nil:
		*counts = weight
		return false, nil
	case len(uses) == 1:
		return false, err
	}
	serves, room := s.succeeds(l), 0
	for i := range uses {
		uses[i].rests = uses[i].rests || (uses[i].of == l) != serves
		if of := uses[i].of; of != l && (l.quota.Pod == "" || related(of.quota, l.quota)) {
			room = max(room, uses[i].weight)
		}
	}
	if weight > room { // else a list of the resource has this room already, in its quota
		if err = r.fitsLocked(l, uses, forgettable); err != nil {
			return false, err
		}
	}
	*counts = weight
	if !serves {
		return false, errRests
	}
	return true, nil
}

// fitsLocked returns an error if these uses of l's resource are too much next to those of all others.
func (r *Registry) fitsLocked(l *registration, of []use, forgettable map[device.ResourceName]bool) error {
	var sum part
	var weight int
	for _, s := range r.resources {
		uses, most := s.uses(), 0
		if s.resource == l.resource {
			uses = of
		}
		count := func(u use, n int) {
			sum.add(n, u.of == l || l.owns(s, u.of, forgettable), s.lost() && forgettable[s.resource])
			if u.of == l {
				weight = n
			}
		}
		for _, u := range uses {
			if !u.rests {
				count(u, u.weight)
				most = max(most, u.weight)
			}
		}
		for _, u := range uses {
			if u.rests && u.weight > most {
				count(u, u.weight-most)
				most = u.weight
			}
		}
	}
	switch limit := r.cfg.MaxTotalBytes; {
	case l.quota.Pod != "" && sum.exceeds(limit):
		return l.exceeds(sum, limit, "plugins.maxTotalBytes")
	case sum.all+sum.lost > limit:
		return &budgetError{resource: l.resource, bytes: weight, others: sum.all + sum.lost - weight, limit: limit}
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
