package device

import "time"

// A DeviceState is a device's main state. The values are those of the metric devmgrd_devices.
type DeviceState string

const (
	Available   DeviceState = "free"        // any pod may be assigned it
	Assigned    DeviceState = "assigned"    // a pod has it, or it is held for one
	Unhealthy   DeviceState = "unhealthy"   // no pod has it, and it is unhealthy
	PluginAway  DeviceState = "stale"       // it would be free if its plugin were connected
	Cordoned    DeviceState = "cordoned"    // no pod has it, and no pod may be assigned it
	Withheld    DeviceState = "withheld"    // it may be in use under an ID that is no longer listed
	Quarantined DeviceState = "quarantined" // a container has it that the state file does not record
)

// A DeviceStatus is one device and its state.
type DeviceStatus struct {
	Resource ResourceName
	Device
	State  DeviceState
	Listed bool    // the plugin lists it
	Holder *Holder // nil: no pod has it
	Cordon *Cordon // nil: none
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
	Failed  bool      // the pod failed; otherwise it succeeded
	Refused bool      // the kubelet failed it before any of its containers was created
	At      time.Time // when the kubelet refused it; zero: not known, or not refused
	Reason  string    // one word, such as OutOfvendor.example/gpu; may be empty
	Message string    // may be empty
}
