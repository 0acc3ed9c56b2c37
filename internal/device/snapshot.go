package device

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// A Snapshot is all known pods at one moment. It never changes.
type Snapshot struct {
	Revision uint64 // of the newest change of an allocation
	Pods     []PodStatus
}

// Pod returns the pod of that name. Of several it prefers the active one.
func (s *Snapshot) Pod(namespace, name string) (found PodStatus, known bool) {
	for _, p := range s.Pods {
		if p.Pod.Name == name && p.Pod.Namespace == namespace && (!known || p.Active) {
			found, known = p, true
		}
	}
	return found, known
}

// Waiting returns the pods that wait for their devices, the longest wait first.
func (s *Snapshot) Waiting() []PodStatus {
	all := slices.DeleteFunc(slices.Clone(s.Pods), func(p PodStatus) bool { return p.State != Waiting })
	slices.SortFunc(all, func(x, y PodStatus) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Pod.String(), y.Pod.String()))
	})
	return all
}

// A PodStatus is one known pod, its devices and its state.
type PodStatus struct {
	*PodAllocation
	State   ReadinessState // Unknown: it has ended; NoDevices; Ready; Waiting: also while it is being allocated its devices
	Wait    Wait           // of Waiting
	Told    Wait           // of Waiting: as its event says; none: no event has been sent
	Since   time.Time      // start of the present state
	Retry   time.Time      // of Waiting: the next retry; zero: after the next change
	GivesUp time.Time      // of Waiting: when the pod is evicted if it still waits; zero: never
	Release *Release       // of a pod that has ended: why its devices are not free; nil: not checked yet
	Demands []Demand
	// Fault is what is wrong with the pod's devices, as the event DeviceFailed says, or has been; nil: nothing.
	Fault *Fault
	// HealthKnown reports that the plugins of all of the pod's devices are connected, and have listed their devices.
	HealthKnown bool
}

// A Fault is a failure of a pod's devices.
type Fault struct {
	Kind     FaultKind
	Resource ResourceName
	ID       ID        // the first of the failed devices; empty: PluginLost
	Others   int       // how many more have failed
	Ended    time.Time // zero: it lasts
}

// FaultKind is the kind of a Fault. The values are reasons of the pods' conditions.
type FaultKind string

const (
	FaultUnhealthy  FaultKind = "DeviceUnhealthy" // the plugin lists the device as unhealthy
	FaultUnlisted   FaultKind = "DeviceUnlisted"  // the plugin has stopped listing the device
	FaultPluginLost FaultKind = "PluginLost"      // the plugin has been away for longer than its grace period
)

// Wants returns the resources that the pod requests, sorted.
func (p PodStatus) Wants() []ResourceName {
	all := map[ResourceName]bool{}
	for _, d := range p.Demands {
		for r := range d.Wants {
			all[r] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// A PodAllocation is one known pod and its devices.
type PodAllocation struct {
	Pod Pod
	// Active: the pod is bound to this node and has not ended. Otherwise it has ended or is gone, but keeps its devices
	// until they are proved free.
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
	return AssignmentOf(h.Assignments, container)
}

// A Change is the difference for one pod between a Snapshot and the next.
type Change struct {
	Revision uint64 // one more than that of the change before
	At       time.Time
	Before   *PodAllocation // nil: the pod is new
	After    *PodAllocation // nil: the pod is gone
}

// Resources are all resources at one moment. They never change.
type Resources struct {
	ByName     map[ResourceName]ResourceStatus // those that are offered, in use or cordoned, and forgotten ones that pods request while the Node shows them
	PodsListed bool                            // every pod bound to the node counts; once true it stays true
	Retired    []ResourceName                  // forgotten resources that the Node should no longer show
}

// A ResourceStatus is one resource and its devices, counted.
type ResourceStatus struct {
	Offer        *Offer              // of its plugin; nil: there is none
	States       map[DeviceState]int // number of devices by state; nil: only cordons are known
	Unlisted     int                 // devices in use that the plugin does not list
	Disputed     int                 // devices of pods that containers of other pods run with
	Awaited      Pod                 // the oldest pod that waits and may be assigned any free device, so that none is claimable; empty: there is none
	Refused      []ID                // devices that the plugin refuses, in or out of service; ascending
	OutOfService map[ID]bool         // those of Cordoned that no pod has
	Cordoned     map[ID]Cordon       // by operators and by devmgrd (suspended, refused); shared, never changed
	Capacity     int                 // as the allocator counts it; package nodestatus decides what the Node shows, and when
	Requested    int                 // by pods bound to the node, including those that the kubelet has not admitted yet
}

// Counted reports whether a number counts for the resource: its plugin has reported devices, in this or an earlier process. The Node does not
// show that of a resource in ResourceSlices.
func (s ResourceStatus) Counted() bool { return s.Offer != nil && s.Offer.Reported }

// Offers returns the offers of all resources that have one.
func (rs Resources) Offers() map[ResourceName]Offer {
	all := make(map[ResourceName]Offer, len(rs.ByName))
	for r, s := range rs.ByName {
		if s.Offer != nil {
			all[r] = *s.Offer
		}
	}
	return all
}

// Capacity returns the capacity of all Counted resources.
func (rs Resources) Capacity() map[ResourceName]int {
	return rs.numbers(func(s ResourceStatus) int { return s.Capacity })
}

// Requested returns the requests of all Counted resources.
func (rs Resources) Requested() map[ResourceName]int {
	return rs.numbers(func(s ResourceStatus) int { return s.Requested })
}

func (rs Resources) numbers(of func(ResourceStatus) int) map[ResourceName]int {
	all := make(map[ResourceName]int, len(rs.ByName))
	for r, s := range rs.ByName {
		if s.Counted() {
			all[r] = of(s)
		}
	}
	return all
}

// A DeviceState is a device's main state. The values are those of the metric devmgrd_devices.
type DeviceState string

const (
	StateFree        DeviceState = "free"        // any pod may be assigned it
	StateAssigned    DeviceState = "assigned"    // a pod has it, or it is held for one
	StateUnhealthy   DeviceState = "unhealthy"   // no pod has it, and it is unhealthy
	StateStale       DeviceState = "stale"       // it would be free if its plugin were connected
	StateCordoned    DeviceState = "cordoned"    // no pod has it, and an operator has it assigned to none
	StateSuspended   DeviceState = "suspended"   // likewise, by devmgrd itself: it became unhealthy again and again, or health.command objects
	StateRefused     DeviceState = "refused"     // likewise, because its plugin refuses it
	StateWithheld    DeviceState = "withheld"    // it may be in use under an ID that is no longer listed
	StateQuarantined DeviceState = "quarantined" // a container has it that the state file does not record
	StateReleasing   DeviceState = "releasing"   // its pod has ended, and it is not proved free yet
	StateBusy        DeviceState = "busy"        // likewise, and its proof has failed, or has not begun after 2 s
)

// A DeviceStatus is one device and its state.
type DeviceStatus struct {
	Resource ResourceName
	Device
	State  DeviceState
	Listed bool // the plugin lists it
	// Vanished reports that the device is in use and that its plugin has stopped listing it; false also if the plugin has restarted since.
	Vanished bool
	Holder   *Holder // nil: no pod has it
	// Sharers are further pods that have it, by the same claim as the Holder.
	Sharers []Holder
	Cordon  *Cordon // nil: none
	// Claimed reports that the scheduler has chosen the device for the pods that have it or, if there are none, for one that waits.
	Claimed bool
	// Claimable reports that ResourceSlices have the device, tainted or not: it is listed, neither withheld nor quarantined, and either Claimed, or with no
	// pod while no pod waits for any device of the resource.
	Claimable bool
	// Release is why the device is releasing or busy.
	Release  *Release
	Refusals Refusals
	// Failures is how often the device has failed in the last hour while in use, Failed when it last did.
	Failures int
	Failed   time.Time
}

// Failures are how often a device has failed in the last hour while in use, and when it last did.
type Failures struct {
	Count int
	Last  time.Time
}

// A Holder is a pod that has a device.
type Holder struct {
	Pod        Pod      // only the UID, if the pod is not known
	Containers []string // empty: the device is held for the pod while its plugins are asked
}

// A PodContainer is a container of a pod, for display.
type PodContainer struct {
	Pod  Pod
	Name string
}

// An EndedPod is how a pod ended, by the API server.
type EndedPod struct {
	Pod     Pod
	Leaving bool      // its phase is not terminal, but the kubelet starts no further container of it; Message is why
	Failed  bool      // the pod failed; if it does not leave either, it succeeded
	Refused bool      // the kubelet failed it before any of its containers was created
	At      time.Time // when the kubelet refused it; zero: not known, or not refused
	Reason  string    // one word, such as OutOfvendor.example/gpu; may be empty
	Message string    // may be empty
}

// The conditions of a pod that devmgrd writes.
const (
	DevicesAssigned = "devmgrd.io/DevicesAssigned"
	DevicesHealthy  = "devmgrd.io/DevicesHealthy"
)

// MaxPodCondition bounds the message of a pod's condition, in bytes: as that of an event.
const MaxPodCondition = 1024

// A PodCondition is one of devmgrd's conditions of a pod.
type PodCondition struct {
	Type    string
	Status  string // True, False, or what another writer has written
	Reason  string
	Message string
	Since   time.Time // of the Status
}

// A ShownPod is what the API server shows of a pod that requests devices.
type ShownPod struct {
	Pod        Pod
	Object     string // the UID at the API server: that of a static pod's mirror, not of the static pod
	Version    uint64 // the resourceVersion; 0: not comparable
	Leaving    bool   // it is being deleted
	Conditions []PodCondition
}

// Condition returns the condition of that type; the zero value: there is none.
func (p ShownPod) Condition(of string) PodCondition {
	for _, c := range p.Conditions {
		if c.Type == of {
			return c
		}
	}
	return PodCondition{}
}
