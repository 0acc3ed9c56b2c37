package device

import "time"

// A Reason is the one word for why a container waits or was refused: the same in log, event, metric and command line.
type Reason string

const (
	PluginMissing     Reason = "PluginMissing"     // no plugin serves the resource, and none has been heard of lately
	PluginStale       Reason = "PluginStale"       // the plugin's stream has ended; it may be back in a moment
	PluginSlow        Reason = "PluginSlow"        // the plugin did not answer in time
	PluginError       Reason = "PluginError"       // the plugin answered with an error, or with nonsense
	PluginNotAllowed  Reason = "PluginNotAllowed"  // a rule of the node does not allow what the plugin serves or grants
	NotEnoughDevices  Reason = "NotEnoughDevices"  // too few devices are free
	DeviceUnhealthy   Reason = "DeviceUnhealthy"   // enough devices are there, but too few of them are healthy
	TopologyMismatch  Reason = "TopologyMismatch"  // no choice of devices fits the topology policy
	Allocating        Reason = "Allocating"        // the allocation is in flight
	Preparing         Reason = "Preparing"         // PreStartContainer is in flight
	PreStartFailed    Reason = "PreStartFailed"    // PreStartContainer failed
	DevicesUnknown    Reason = "DevicesUnknown"    // a container runs with devices that only a lost state file named
	HostDeviceMissing Reason = "HostDeviceMissing" // what the plugin granted is not there on the host
	Overruled         Reason = "Overruled"         // another NRI plugin takes away or replaces what devmgrd gives
	ContainerTooLarge Reason = "ContainerTooLarge" // the container with its devices does not fit into the runtime's messages
	UnknownPod        Reason = "UnknownPod"        // the pod has not been heard of, and the API server cannot be asked
	StoreUnavailable  Reason = "StoreUnavailable"  // the assignment could not be made durable
	// PluginDirectoryMissing: the pod is a device plugin's, and the directory in which it registers could not be made.
	PluginDirectoryMissing Reason = "PluginDirectoryMissing"
	// AssignmentConflict: the state file assigns a device to two pods, and the runtime has not told yet which one has it.
	AssignmentConflict Reason = "AssignmentConflict"
)

// A Wait is why a container or pod has to wait.
type Wait struct {
	Reason  Reason
	Message string // for people: names the resource and figures
}

// State says which of the runtime's questions about a container has which answer.
type ReadinessState int

const (
	// Unknown: nothing is known of the container's pod.
	Unknown ReadinessState = iota
	// NoDevices: the container asks for no device.
	NoDevices
	// Ready: the assignment is durable and may be injected.
	Ready
	// Busy: an allocation or a preparation is in flight; Done is closed when it has ended, either way.
	Busy
	// Waiting: the container cannot have its devices now; Wait says why.
	Waiting
)

// A Readiness is what can be said at this moment of a container's devices.
type Readiness struct {
	State      ReadinessState
	Wait       Wait            // of Busy and Waiting
	Assignment Assignment      // of Ready
	Env        []string        // of Ready: variables that the pod sets itself, see Demand.Env
	Refs       []string        // of Ready: variables that its arguments refer to, see Demand.Refs
	Fresh      bool            // of Ready: no container has been created with the plugin's answer yet
	Done       <-chan struct{} // of Busy
}

// A Running is a container that the runtime has, as it tells of it.
type Running struct {
	ID        string // the runtime's
	Container Container
	Sandbox   string                  // the runtime's ID of the container's sandbox
	Stamp     map[ResourceName][]ID   // what devmgrd wrote on it when it was made; nil: nothing
	Digests   map[ResourceName]string // of lists that are too long for the stamp: Digest; an empty one matches nothing
	Made      time.Time               // zero: not known
	Idle      bool                    // created and not started when the runtime listed it
}
