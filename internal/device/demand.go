package device

import (
	"maps"
	"slices"
	"time"
)

// Kind says how a container lives next to the others of its pod, which decides whether its devices can be handed on.
type Kind string

const (
	// App containers run side by side until the pod ends.
	App Kind = "app"
	// Init containers end before the next container starts: their devices go on to later containers.
	Init Kind = "init"
	// Sidecar containers are init containers that restart always, so they keep what they have.
	Sidecar Kind = "sidecar"
)

// A Demand is what one container asks for. Containers that ask for no device have none.
type Demand struct {
	Container Container            `json:"container"`
	Kind      Kind                 `json:"kind"`
	Wants     map[ResourceName]int `json:"wants"` // counts above zero
	// Env names the variables that the pod's own specification sets in this container. They win over a plugin's.
	Env []string `json:"env,omitempty"`
	// Refs names the variables that the container's command and arguments refer to as $(NAME) and that its specification
	// does not define, ascending. A plugin may define them.
	Refs []string `json:"refs,omitempty"`
}

// A PodDemand is a pod bound to this node and what its containers ask for, in the order in which they start
// (init containers and sidecars as they stand in the specification, then the others). A pod without Demands asks
// for no device; it is known all the same, so that its containers can pass at once.
type PodDemand struct {
	Pod     Pod       `json:"pod"`
	Created time.Time `json:"created"` // who waits longest is served first; zero: not known
	Demands []Demand  `json:"demands,omitempty"`
	// Containers names all containers that run until the pod ends, whether they ask for devices or not: first so many Sidecars,
	// then the others. Empty: not known. It is for those who show the pod, and no part of what it asks for.
	Containers []string `json:"containers,omitempty"`
	Sidecars   int      `json:"sidecars,omitempty"`
	// Local says that the runtime tells of the pod, and not the API server: what it asks for stands in an annotation of
	// its own.
	Local bool `json:"local,omitempty"`
	// Admitted says that the kubelet has accepted the pod: its status has a start time and its containers. Until then the
	// kubelet may still reject a pod that was bound past the scheduler.
	Admitted bool `json:"-"`
	// Mirror says that the pod does not run, but stands in the API for one that is Local, under a UID of its own: the
	// scheduler counts what it asks for.
	Mirror bool `json:"-"`
}

// Requests returns the number of devices that the scheduler and the kubelet charge to the pod, per resource: the sum
// over its long-running containers (apps and sidecars), or what an init container needs while it runs, with the
// sidecars started before it, whichever is more.
func (p PodDemand) Requests() map[ResourceName]int {
	if len(p.Demands) == 0 {
		return nil
	}
	running, peak := map[ResourceName]int{}, map[ResourceName]int{}
	for _, d := range p.Demands {
		for r, n := range d.Wants {
			if d.Kind != Init {
				running[r] += n
				n = 0
			}
			peak[r] = max(peak[r], running[r]+n)
		}
	}
	return peak
}

// Of returns the demand of the container of that name, if it has any.
func (p PodDemand) Of(container string) (Demand, bool) {
	for _, d := range p.Demands {
		if d.Container.Name == container {
			return d, true
		}
	}
	return Demand{}, false
}

// Equal reports whether two demands ask for the same on behalf of the same pod.
func (p PodDemand) Equal(q PodDemand) bool {
	if p.Pod != q.Pod || !p.Created.Equal(q.Created) || len(p.Demands) != len(q.Demands) {
		return false
	}
	for i, d := range p.Demands {
		e := q.Demands[i]
		if d.Container != e.Container || d.Kind != e.Kind || !maps.Equal(d.Wants, e.Wants) ||
			!slices.Equal(d.Env, e.Env) || !slices.Equal(d.Refs, e.Refs) {
			return false
		}
	}
	return true
}
