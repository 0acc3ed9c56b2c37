package device

import "time"

// A DeviceState is what has to be said of a device first. The words are those of the metric devmgrd_devices.
type DeviceState string

const (
	Available   DeviceState = "free"        // it can be given to anybody
	Assigned    DeviceState = "assigned"    // a pod has it, or is about to
	Unhealthy   DeviceState = "unhealthy"   // nobody has it, and it is broken
	PluginAway  DeviceState = "stale"       // it would be free if its plugin were there
	Cordoned    DeviceState = "cordoned"    // nobody has it, and nobody is to have it
	Withheld    DeviceState = "withheld"    // it may be a device that a pod uses under an ID that is no longer listed
	Quarantined DeviceState = "quarantined" // a container has it, and the state file does not know why
)

// A DeviceStatus is one device and what has become of it.
type DeviceStatus struct {
	Resource ResourceName
	Device
	State  DeviceState
	Listed bool    // the plugin lists it
	Holder *Holder // nil: nobody has it
	Cordon *Cordon // nil: there is none
	// Failures is how often it has failed in the last hour while somebody had it, Failed when it last did.
	Failures int
	Failed   time.Time
}

// A Holder is a pod that has a device.
type Holder struct {
	Pod        Pod      // only the UID, of a pod that nobody has told us of
	Containers []string // none: the device is held for the pod while its plugins are asked
}

// A PodContainer is a container of a pod, for people.
type PodContainer struct {
	Pod  Pod
	Name string
}

// An EndedPod is how a pod ended, as the API server has it.
type EndedPod struct {
	Pod     Pod
	Failed  bool      // it has failed; else it has succeeded
	Refused bool      // the kubelet failed it before any of its containers was created
	At      time.Time // when the kubelet refused it; zero: not known, or not refused
	Reason  string    // one word, such as OutOfvendor.example/gpu; may be empty
	Message string    // may be empty
}

// An PodStatus is how a pod as a whole stands, for people.
type PodStatus struct {
	Allocation *PodAllocation
	Readiness
	Since time.Time // when it began to stand so
	Retry time.Time // of Waiting: when it is tried again whatever happens; zero: when something changes
	Wants []ResourceName
}
