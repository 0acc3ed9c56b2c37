package allocator

import (
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/failures"
	"github.com/devmgrd/devmgrd/internal/placement"
)

// A pool is one resource as plans and the scheduler see it.
type pool struct {
	*placement.Resource
	requests       int           // sum of the requests of the node's active pods in the API
	admitted       int           // the part of requests from pods that the kubelet has admitted
	unlistedLapsed int           // the part of unlisted granted in another boot, so not in use
	withheldLogged int           // number of withheld devices last logged
	failures       *failures.Log // of devices in use
}

func newPool() *pool {
	return &pool{Resource: placement.NewResource(), failures: failures.New()}
}

// retract removes the offer and the record of failures, as if there had never been an offer.
func (p *pool) retract() {
	p.failures = failures.New()
	p.Resource.Retract()
}

// pools are all resources that have been offered or are in use.
type pools map[device.ResourceName]*pool

// of returns the pool of a resource, creating an empty one if necessary.
func (ps pools) of(r device.ResourceName) *pool {
	p := ps[r]
	if p == nil {
		p = newPool()
		ps[r] = p
	}
	return p
}

// request adds (sign 1) or subtracts (sign -1) the requests of an active pod of the API.
func (ps pools) request(d device.PodDemand, sign int) {
	if d.Local {
		return
	}
	for r, n := range d.Requests() {
		p := ps.of(r)
		p.requests += sign * n
		if d.Admitted {
			p.admitted += sign * n
		}
	}
}
