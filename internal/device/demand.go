package device

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"
)

// Kind is how a container lives next to the others of its pod. It decides whether the container's devices can be handed on.
type Kind string

const (
	// App containers run side by side until the pod ends.
	App Kind = "app"
	// Init containers end before the next container starts: their devices go on to later containers.
	Init Kind = "init"
	// Sidecar containers are init containers that always restart, so they keep their devices.
	Sidecar Kind = "sidecar"
)

// A Demand is one container's request. Containers that request no device have none.
type Demand struct {
	Container Container            `json:"container"`
	Kind      Kind                 `json:"kind"`
	Wants     map[ResourceName]int `json:"wants"` // counts above zero
	// Env names the variables that the pod's specification sets in this container. They override a plugin's.
	Env []string `json:"env,omitempty"`
	// Refs names the variables that the container's command and arguments refer to as $(NAME) and that its specification
	// does not define, ascending. A plugin may define them.
	Refs []string `json:"refs,omitempty"`
	// Select limits the devices of a resource to some; a resource without an entry has no limit.
	Select map[ResourceName]Selection `json:"select,omitempty"`
	// Fixed are the devices that the scheduler has chosen, for resources that are offered through claims.
	Fixed map[ResourceName][]ID `json:"fixed,omitempty"`
	// Claimed are the Fixed ones of claims that the pod's author has written, with the claims' UIDs. The scheduler does not count them as the
	// pod's requests, and other pods may have them by the same claims.
	Claimed map[ResourceName]map[ID]ClaimUID `json:"claimed,omitempty"`
	// Requests are the requests of claims by which the container has its Fixed devices, ascending: the kubelet has the runtime give the container
	// their CDI devices.
	Requests map[ResourceName][]ClaimRequest `json:"requests,omitempty"`
	// Volumes are the paths of the pod's own volumes in a container with claims. They cover a plugin's mounts.
	Volumes []string `json:"volumes,omitempty"`
	// Mistake is why the request cannot be read or met as it is; the pod waits until it can. Blocked is its reason; empty: NoSuchDevice.
	Mistake string `json:"mistake,omitempty"`
	Blocked Reason `json:"blocked,omitempty"`
	// Claims are the claims that the container uses, of any driver. They are not part of the request: Fixed is what they lead to.
	Claims []ClaimUse `json:"-"`
}

// A ClaimUID identifies a ResourceClaim.
type ClaimUID string

// A ClaimRequest is a request of a ResourceClaim, without the name of the alternative that the scheduler has chosen.
type ClaimRequest struct {
	Claim   ClaimUID `json:"claim"`
	Request string   `json:"request"`
}

// Compare orders requests by claim and name.
func (r ClaimRequest) Compare(s ClaimRequest) int {
	return cmp.Or(cmp.Compare(r.Claim, s.Claim), cmp.Compare(r.Request, s.Request))
}

// A ClaimUse is a container's use of a ResourceClaim in the pod's namespace.
type ClaimUse struct {
	Claim   string // empty: it has no name yet
	Request string // of the claim; empty: all of them
	// Resource is the extended resource that the container requests, if the scheduler has made the claim for that; else it is empty.
	Resource ResourceName
}

// A PodDemand is a pod bound to this node and its containers' requests, in the order in which the containers start: init
// containers and sidecars as in the specification, then the others. A pod without Demands requests no device; the allocator
// still knows it, so that its containers can start at once.
type PodDemand struct {
	Pod     Pod       `json:"pod"`
	Created time.Time `json:"created"` // the oldest pod is served first; zero: not known
	Demands []Demand  `json:"demands,omitempty"`
	// Containers names all containers that run until the pod ends, whether they request devices or not: the Sidecars first, by
	// number, then the others. Empty: not known. It is for display and no part of the request.
	Containers []string `json:"containers,omitempty"`
	Sidecars   int      `json:"sidecars,omitempty"`
	// Group is the name of the PodGroup that the pod belongs to: claims may be reserved for that instead of the pod.
	Group string `json:"-"`
	// Local marks a static pod that the runtime reports, and not the API server: its requests are in an annotation of its own.
	Local bool `json:"local,omitempty"`
	// UserNamespace reports that the pod's containers run in a user namespace of their own.
	UserNamespace bool `json:"userNamespace,omitempty"`
	// Movable reports that the pod's controller creates another one, perhaps on another node, when this one is evicted.
	Movable bool `json:"movable,omitempty"`
	// Admitted reports that the kubelet has accepted the pod: the status has a start time and containers, or the scheduler has made a claim
	// for all its requests, which the kubelet then does not check. Until then the kubelet may reject a pod that was bound past the scheduler.
	Admitted bool `json:"-"`
	// Mirror marks a mirror pod in the API that represents a Local one, under its own UID. It does not run, but the scheduler
	// counts its requests.
	Mirror bool `json:"-"`
	// Leaving reports that the kubelet starts no further container of the pod, although its phase is not terminal.
	Leaving bool `json:"-"`
}

// Requests returns the number of devices that the scheduler and the kubelet charge to the pod, per resource. It is the larger
// of two: the sum over the long-running containers (apps and sidecars), and the need of any init container together with the
// sidecars started before it.
func (p PodDemand) Requests() map[ResourceName]int {
	if len(p.Demands) == 0 {
		return nil
	}
	running, peak := map[ResourceName]int{}, map[ResourceName]int{}
	for _, d := range p.Demands {
		for r, n := range d.Wants {
			n -= len(d.Claimed[r])
			if d.Kind != Init {
				running[r] += n
				n = 0
			}
			peak[r] = max(peak[r], running[r]+n)
		}
	}
	return peak
}

// Open returns the part of the demand for which devices have to be chosen: without the resources whose devices are Fixed.
func (p PodDemand) Open() PodDemand {
	if !slices.ContainsFunc(p.Demands, func(d Demand) bool { return len(d.Fixed) > 0 }) {
		return p
	}
	p.Demands = slices.Clone(p.Demands)
	for i, d := range p.Demands {
		p.Demands[i].Wants = maps.Clone(d.Wants)
		maps.DeleteFunc(p.Demands[i].Wants, func(r ResourceName, _ int) bool { return d.Fixed[r] != nil })
	}
	return p
}

// Claim returns the claim by which the pod has a device that other pods may have by the same claim; empty: there is none.
func (p PodDemand) Claim(r ResourceName, id ID) ClaimUID {
	for _, d := range p.Demands {
		if claim, has := d.Claimed[r][id]; has {
			return claim
		}
	}
	return ""
}

// Claims returns the claims of devices that other pods may have by the same claims, once for each use.
func (p PodDemand) Claims() iter.Seq[ClaimUID] {
	return func(yield func(ClaimUID) bool) {
		for _, d := range p.Demands {
			for _, claimed := range d.Claimed {
				for _, claim := range claimed {
					if !yield(claim) {
						return
					}
				}
			}
		}
	}
}

// Shares reports whether the pod has devices that other pods may have by the same claims.
func (p PodDemand) Shares() bool {
	return slices.ContainsFunc(p.Demands, func(d Demand) bool { return len(d.Claimed) > 0 })
}

// ClaimRequests returns all Requests of a container, ascending.
func (d Demand) ClaimRequests() []ClaimRequest {
	var all []ClaimRequest
	for _, of := range d.Requests {
		all = append(all, of...)
	}
	slices.SortFunc(all, ClaimRequest.Compare)
	return slices.Compact(all)
}

// Of returns the demand of the container of that name, if it has one.
func (p PodDemand) Of(container string) (Demand, bool) {
	for _, d := range p.Demands {
		if d.Container.Name == container {
			return d, true
		}
	}
	return Demand{}, false
}

// Equal reports whether two demands are the same requests of the same pod.
func (p PodDemand) Equal(q PodDemand) bool {
	if p.Pod != q.Pod || p.UserNamespace != q.UserNamespace || !p.Created.Equal(q.Created) || len(p.Demands) != len(q.Demands) {
		return false
	}
	for i, d := range p.Demands {
		e := q.Demands[i]
		if d.Container != e.Container || d.Kind != e.Kind || !maps.Equal(d.Wants, e.Wants) ||
			!slices.Equal(d.Env, e.Env) || !slices.Equal(d.Refs, e.Refs) ||
			d.Mistake != e.Mistake || d.Blocked != e.Blocked || !maps.EqualFunc(d.Fixed, e.Fixed, slices.Equal) || !maps.EqualFunc(d.Claimed, e.Claimed, maps.Equal) ||
			!maps.EqualFunc(d.Requests, e.Requests, slices.Equal) || !slices.Equal(d.Volumes, e.Volumes) || !maps.EqualFunc(d.Select, e.Select, Selection.equal) {
			return false
		}
	}
	return true
}
