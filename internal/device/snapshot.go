package device

import "time"

// A Snapshot is who has which devices at one moment. It is never changed: the next moment has another.
type Snapshot struct {
	Revision uint64 // of the newest change that is in it
	Pods     []*PodAllocation
}

// A Allocation is one pod that is known here, and the devices that it has.
type PodAllocation struct {
	Pod Pod
	// Active: the pod is bound to this node and has not ended. Else it has ended, or is gone, and the runtime may still have a
	// container of it, so the devices are its own.
	Active bool
	// Containers are those that run until the pod ends, whether they ask for devices or not: so many Sidecars, then the
	// others, each in the order of the pod's specification.
	Containers []string
	Sidecars   int
	// Incomplete: the pod asks for devices, and does not have them yet.
	Incomplete  bool
	Assignments []Assignment // of all containers, init containers too, in the order in which they start
}

// Of returns what the container of that name has, if anything.
func (h *PodAllocation) Of(container string) (Assignment, bool) {
	for _, as := range h.Assignments {
		if as.Container.Name == container {
			return as, true
		}
	}
	return Assignment{}, false
}

// A Change is one step from a Board to the next: what has become of one pod.
type Change struct {
	Revision uint64 // one more than that of the change before
	At       time.Time
	Before   *PodAllocation // nil: the pod is new
	After    *PodAllocation // nil: it is gone
}
