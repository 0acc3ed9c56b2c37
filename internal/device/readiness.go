package device

import "time"

// A Reason is the keyword for why a container waits or was refused: the same in log, event, metric and command line.
type Reason string

const (
	PluginMissing     Reason = "PluginMissing"     // no plugin serves the resource, and none has recently
	PluginStale       Reason = "PluginStale"       // the plugin's stream has just ended; the plugin may return
	PluginSlow        Reason = "PluginSlow"        // the plugin did not answer in time
	PluginError       Reason = "PluginError"       // the plugin answered with an error, or invalidly
	PluginNotAllowed  Reason = "PluginNotAllowed"  // a rule of the node forbids the plugin's resource or grant
	NotEnoughDevices  Reason = "NotEnoughDevices"  // too few devices are free
	DeviceUnhealthy   Reason = "DeviceUnhealthy"   // enough devices are free, but too few of them are healthy
	TopologyMismatch  Reason = "TopologyMismatch"  // no choice of devices fits the topology policy
	Allocating        Reason = "Allocating"        // the allocation is in flight
	Preparing         Reason = "Preparing"         // PreStartContainer is in flight
	PreStartFailed    Reason = "PreStartFailed"    // PreStartContainer failed
	DevicesUnknown    Reason = "DevicesUnknown"    // a container runs with devices that only a lost state file named
	HostDeviceMissing Reason = "HostDeviceMissing" // the host lacks a file or device that the plugin granted
	Overruled         Reason = "Overruled"         // another NRI plugin removes or replaces what devmgrd injects
	ContainerTooLarge Reason = "ContainerTooLarge" // the container with its devices exceeds the runtime's message size
	UnknownPod        Reason = "UnknownPod"        // the pod is unknown, and the API server is unavailable
	StoreUnavailable  Reason = "StoreUnavailable"  // the assignment could not be made durable
	// PluginDirectoryMissing: the directory in which the device plugin pod registers could not be created.
	PluginDirectoryMissing Reason = "PluginDirectoryMissing"
	// AssignmentConflict: the state file assigns a device to two pods, and the runtime has not reported yet which one has it.
	AssignmentConflict Reason = "AssignmentConflict"
)

// A Wait is why a container or pod waits.
type Wait struct {
	Reason  Reason
	Message string // names the resource and the counts
}

// A ReadinessState is the kind of answer to the runtime's question about a container.
type ReadinessState int

const (
	// Unknown: the container's pod is unknown.
	Unknown ReadinessState = iota
	// NoDevices: the container requests no device.
	NoDevices
	// Ready: the assignment is durable and may be injected.
	Ready
	// Busy: an allocation or a preparation is in flight; Done is closed when it has ended, either way.
	Busy
	// Waiting: the container cannot have its devices now; Wait is the reason.
	Waiting
)

// A Readiness is the present state of a container's devices.
type Readiness struct {
	State      ReadinessState
	Wait       Wait            // of Busy and Waiting
	Assignment Assignment      // of Ready
	Env        []string        // of Ready: variables that the pod sets, see Demand.Env
	Refs       []string        // of Ready: variables that its arguments refer to, see Demand.Refs
	Fresh      bool            // of Ready: no container has been created with the plugin's answer yet
	Done       <-chan struct{} // of Busy
}

// A Running is a container as the runtime reports it.
type Running struct {
	ID        string // in the runtime
	Container Container
	Sandbox   string                  // the runtime's ID of the container's sandbox
	Stamp     map[ResourceName][]ID   // devmgrd's annotation at creation; nil: none
	Digests   map[ResourceName]string // Digest of lists too long for the stamp; an empty digest matches nothing
	Made      time.Time               // zero: not known
	Idle      bool                    // created and not started when the runtime listed it
}
