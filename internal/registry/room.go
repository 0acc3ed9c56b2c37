package registry

import (
	"errors"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An Allocator knows which resources are in use.
type Allocator interface {
	// Devices returns a resource's devices, with their cordons.
	Devices(device.ResourceName) (all []device.DeviceStatus, known bool)
	// Forget removes a resource with its records, through Registry.Forget. It fails with a *device.InUseError while a pod
	// has or requests its devices, or a plugin serves it.
	Forget(device.ResourceName) (lifted []device.Cordon, err error)
	// Needed reports whether a pod has or requests a resource's devices, or an operator has cordoned one.
	Needed(device.ResourceName) bool
}

// makesRoom reports whether lost resources may make room after a refusal: of one pod's plugins if they have used up their share, or of any; empty.
func makesRoom(err error) (pod string, makes bool) {
	if share := new(shareError); errors.As(err, &share) {
		return share.client, true
	}
	return "", errors.As(err, new(*fullError)) || errors.As(err, new(*budgetError))
}

// makeRoom forgets a resource after a refusal: the one that has been Lost for the longest time, among those that no pod has or requests and that have
// no cordoned device: an operator who cordons a device expects the plugin back. A busy device is its ended pod's, and keeps the resource.
// Resources with suspended devices come last: their suspensions would be forgotten too. It reports whether it forgot one.
func (r *Registry) makeRoom(forResource device.ResourceName, refusal error) bool {
	pod, makes := makesRoom(refusal)
	if !makes {
		return false
	}
	var candidates, suspended []lostResource
	for _, lost := range r.lostResources(pod) {
		switch cordoned, some := r.outOfService(lost.resource); {
		case cordoned:
		case some:
			suspended = append(suspended, lost)
		default:
			candidates = append(candidates, lost)
		}
	}
	for _, lost := range append(candidates, suspended...) {
		_, err := r.neighbours.Allocator.Forget(lost.resource)
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
	for _, lost := range r.lostResources("") {
		all[lost.resource] = !r.neighbours.Allocator.Needed(lost.resource)
	}
	return all
}

// outOfService reports whether an operator has cordoned a device of a resource, and whether one is suspended.
func (r *Registry) outOfService(resource device.ResourceName) (cordoned, suspended bool) {
	devices, _ := r.neighbours.Allocator.Devices(resource)
	for _, d := range devices {
		if d.Cordon != nil {
			cordoned, suspended = cordoned || !d.Cordon.Suspended, suspended || d.Cordon.Suspended
		}
	}
	return cordoned, suspended
}

// A lostResource is a resource whose plugin has been away since then.
type lostResource struct {
	resource device.ResourceName
	since    time.Time
}

// lostResources returns the resources that are Lost and have no connected plugin, the longest lost first: those that count in a pod's share, or all.
func (r *Registry) lostResources(pod string) (all []lostResource) {
	if r.neighbours.Allocator == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, s := range r.resources {
		if s.lost() && (pod == "" || s.registration.pod == pod) {
			all = append(all, lostResource{name, s.since})
		}
	}
	slices.SortFunc(all, func(a, b lostResource) int { return a.since.Compare(b.since) })
	return all
}
