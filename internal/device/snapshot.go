package device

import "time"

// A Snapshot is all pods' allocations at one moment. It never changes.
type Snapshot struct {
	Revision uint64 // of the newest change included
	Pods     []*PodAllocation
}

// A PodAllocation is one known pod and its devices.
type PodAllocation struct {
	Pod Pod
	// Active: the pod is bound to this node and has not ended. Otherwise it has ended or is gone, but keeps its devices
	// because the runtime may still have a container of it.
	Active bool
	// Containers are those that run until the pod ends, whether they request devices or not: the Sidecars first, by number,
	// then the others, each in the order of the pod's specification.
	Containers []string
	Sidecars   int
	// Incomplete: the pod requests devices, and does not have all of them yet.
	Incomplete  bool
	Assignments []Assignment // of all containers, init containers too, in starting order
}

// Of returns the assignment of the container of that name, if any.
func (h *PodAllocation) Of(container string) (Assignment, bool) {
	for _, as := range h.Assignments {
		if as.Container.Name == container {
			return as, true
		}
	}
	return Assignment{}, false
}

// A Change is the difference for one pod between a Snapshot and the next.
type Change struct {
	Revision uint64 // one more than that of the change before
	At       time.Time
	Before   *PodAllocation // nil: the pod is new
	After    *PodAllocation // nil: the pod is gone
}
