package holdings

import (
	"github.com/devmgrd/devmgrd/internal/allocator/internal/failures"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
)

// A Resource is one resource as plans and the scheduler see it.
type Resource struct {
	*placement.Resource
	Requests int           // sum of the requests of the node's active pods in the API
	Failures *failures.Log // of devices in use

	claimed        map[device.ID]map[device.PodUID]bool // the active pods of the API that name devices by claims that the scheduler does not count as requests
	admitted       int                                  // the part of Requests from pods that the kubelet has admitted
	unlistedIdle   int                                  // the part of the unlisted devices in use that no container has used since the boot
	withheldLogged int                                  // number of withheld devices last logged
}

// Forget removes the offer and the record of failures, as if there had never been an offer.
func (p *Resource) Forget() {
	p.Failures = failures.New()
	p.Retract()
}

// Idle reports whether nothing depends on the resource: it is not offered, and no pod has or requests its devices.
func (p *Resource) Idle() bool {
	return !p.Offered() && p.TakenCount() == 0 && p.UnknownUsers == 0 && p.Requests == 0 && p.admitted == 0 && len(p.claimed) == 0
}

// HasBroken reports whether a pod has a device that is unhealthy or not listed.
func (p *Resource) HasBroken(id device.ID, pod device.PodUID) bool {
	return p.Has(id, pod) && p.Broken(id)
}

// Capacity returns the number that the Node shows: see placement. Unlisted devices that no container has used since the boot do not
// count: their pods are granted listed ones. The requests of admitted pods, and mirrored ones of static pods, count once the API server has listed the node's pods.
// Until then some pods are known only from the state file and may be gone, and the publisher lowers no capacity.
func (p *Resource) Capacity(hidden, mirrored int, podsListed bool) int {
	admitted := 0
	if podsListed {
		admitted = p.admitted + mirrored
	}
	claimed := 0
	for id, by := range p.claimed {
		if p.spoken(id, by) {
			claimed++
		}
	}
	return p.Resource.Capacity(p.unlistedIdle, max(0, hidden)+claimed, admitted)
}

// spoken reports whether a device of the capacity is one that these pods have or will have. They wait for a device that another pod has, or that
// no pod can be assigned now: the first counts for the other pod, the second not at all.
func (p *Resource) spoken(id device.ID, by map[device.PodUID]bool) bool {
	if _, taken := p.Holder(id); !taken {
		return p.Counted(id)
	}
	for pod := range by {
		if p.Has(id, pod) {
			return true
		}
	}
	return false
}

// Resources are all resources that have been offered or are in use.
type Resources map[device.ResourceName]*Resource

// Of returns a resource, creating an empty one if necessary.
func (rs Resources) Of(r device.ResourceName) *Resource {
	p := rs[r]
	if p == nil {
		p = &Resource{Resource: placement.NewResource(), Failures: failures.New(), claimed: map[device.ID]map[device.PodUID]bool{}}
		rs[r] = p
	}
	return p
}

// Request adds (sign 1) or subtracts (sign -1) the requests of an active pod of the API.
func (rs Resources) Request(d device.PodDemand, sign int) {
	if d.Local {
		return
	}
	for _, of := range d.Demands {
		for r, claimed := range of.Claimed {
			for id := range claimed {
				rs.Of(r).claim(id, d.Pod.UID, sign > 0)
			}
		}
	}
	for r, n := range d.Requests() {
		p := rs.Of(r)
		p.Requests += sign * n
		if d.Admitted {
			p.admitted += sign * n
		}
	}
}

// claim records whether a pod names a device by a claim.
func (p *Resource) claim(id device.ID, pod device.PodUID, does bool) {
	by := p.claimed[id]
	switch {
	case !does:
		delete(by, pod)
		if len(by) == 0 {
			delete(p.claimed, id)
		}
	case by == nil:
		p.claimed[id] = map[device.PodUID]bool{pod: true}
	default:
		by[pod] = true
	}
}
