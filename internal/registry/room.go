package registry

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// An Allocator knows which resources are in use.
type Allocator interface {
	// Displace removes a lost resource with its records, through Registry.Forget. It fails with a *device.InUseError while the
	// resource is kept, or a plugin serves it.
	Displace(device.ResourceName) error
	// Uses returns what keeps each of these lost resources. It costs as much with many devices and pods as with few.
	Uses([]device.ResourceName) map[device.ResourceName]device.Use
}

// makesRoom reports whether lost resources may make room after a refusal: of one pod's plugins if they have used up their quota, or of any; empty.
func makesRoom(err error) (pod string, makes bool) {
	if quota := new(quotaError); errors.As(err, &quota) {
		return quota.client, true
	}
	return "", errors.As(err, new(*fullError)) || errors.As(err, new(*budgetError))
}

// makeRoom forgets a resource after a refusal: the one that has been Lost for the longest time, and reports whether it forgot one. Resources with suspended
// devices come later, since their suspensions would be forgotten too, and those that pods request come last: these pods wait either way (decision 0006), and
// would else keep a resource for as long as they like. A resource is kept while a pod has a device of it, since its list tells which devices are new (decision
// 0021), while a pod names devices of it by claims, and while a device is cordoned: an operator who cordons a device expects the plugin back.
func (r *Registry) makeRoom(forResource device.ResourceName, refusal error) bool {
	pod, makes := makesRoom(refusal)
	if !makes {
		return false
	}
	all, uses := r.lostResources(pod)
	slices.SortStableFunc(all, func(a, b lostResource) int { return cmp.Compare(uses[a.resource], uses[b.resource]) })
	for _, lost := range all {
		if uses[lost.resource] == device.Kept {
			break
		}
		err := r.neighbours.Allocator.Displace(lost.resource)
		switch {
		case err == nil:
			r.log.Warn("lost resource forgotten for another", "resource", lost.resource, "for", forResource,
				"away", time.Since(lost.since).Round(time.Second))
			return true
		case !errors.As(err, new(*device.InUseError)):
			r.log.Warn("cannot forget lost resource", "resource", lost.resource, "err", err)
			return false
		}
	}
	return false
}

// forgettable returns the lost resources that can be forgotten.
func (r *Registry) forgettable() map[device.ResourceName]bool {
	all := map[device.ResourceName]bool{}
	lost, uses := r.lostResources("")
	for _, l := range lost {
		all[l.resource] = uses[l.resource] != device.Kept
	}
	return all
}

// tryForgetting calls try, and again with the resources that can be forgotten if a quota lacks room.
func (r *Registry) tryForgetting(try func(forgettable map[device.ResourceName]bool) error) error {
	err := try(nil)
	if errors.As(err, new(*quotaError)) {
		err = try(r.forgettable())
	}
	return err
}

// A lostResource is a resource whose plugin has been away since then.
type lostResource struct {
	resource device.ResourceName
	since    time.Time
}

// lostResources returns the resources that are Lost and have no connected plugin, the longest lost first, with what keeps them: those that count in a pod's
// quota, or all.
func (r *Registry) lostResources(pod string) (all []lostResource, uses map[device.ResourceName]device.Use) {
	if r.neighbours.Allocator == nil {
		return nil, nil
	}
	r.mu.Lock()
	for name, s := range r.resources {
		if s.lost() && (pod == "" || s.registration.quota.Pod == pod) {
			all = append(all, lostResource{name, s.since})
		}
	}
	r.mu.Unlock()
	slices.SortFunc(all, func(a, b lostResource) int { return a.since.Compare(b.since) })
	return all, r.neighbours.Allocator.Uses(lists.Map(all, func(l lostResource) device.ResourceName { return l.resource }))
}

// hasLost reports whether a resource may make room for another.
func (r *Registry) hasLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.resources {
		if s.lost() {
			return r.neighbours.Allocator != nil
		}
	}
	return false
}
