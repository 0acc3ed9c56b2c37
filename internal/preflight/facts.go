package preflight

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Facts are what has been found on a node. An Err is why something could not be found.
type Facts struct {
	Root       bool   // who looks is root: others do not see enough
	ConfigFile string // what has been read; empty: there is none
	Evicts     bool   // the configuration has pods evicted

	State   State
	Daemon  *Daemon // nil: it does not run
	Sockets []Socket

	Runtime    Runtime
	NRI        NRI
	Containerd Containerd
	Host       Host

	API        *API // nil: there is none, by the configuration
	Kubelet    Kubelet
	Checkpoint Checkpoint
}

// State is the state file.
type State struct {
	Dir     string
	Version uint64 // of its schema; 0: there is none yet
	Pods    int    // that have devices, by it
	InUse   bool   // by the running daemon
	Damaged bool
	Err     error
}

// A Daemon is a devmgrd that runs.
type Daemon struct {
	Version  string
	Problems []string // of its parts, as /readyz has them
	Serves   map[device.ResourceName]bool
}

// A Socket is a place where devmgrd listens.
type Socket struct {
	Key  string // of the configuration
	At   string
	Init bool // process 1 has it, for devmgrd
	Err  error
}

// Runtime is what the container runtime says through the CRI.
type Runtime struct {
	Socket        string
	Name, Version string
	Started       time.Time // zero: not known
	CgroupDriver  string    // "systemd" or "cgroupfs"; empty: it does not tell
	OCI           string    // the program that makes containers, as far as is known
	Systemd       bool      // that has systemd make their cgroups
	Err           error

	// Containers and Sandboxes are those of the runtime, the largest first; SizesErr is why they are not known.
	Containers, Sandboxes []Size
	SizesErr              error
}

// A Size is how large the specification of a container or of a pod's sandbox is.
type Size struct {
	Name  string // of the pod, and of the container
	Bytes int
}

// NRI is what the runtime says to an NRI plugin.
type NRI struct {
	Socket                string
	Missing               bool // nobody listens there
	Runtime, Version      string
	RequestTimeout        time.Duration // 0: it does not tell
	CDI, Rules, Validates bool          // what it can do
	Err                   error
}

// Containerd is what stands in containerd's configuration; nil: nothing is said.
type Containerd struct {
	File                        string // the main one
	WithoutNRI, WithoutCRI      bool   // those plugins are disabled as a whole
	Changed                     time.Time
	Disable, DisableConnections *bool
	Socket, RequestTimeout      string
	Validator                   *bool
	Required                    []string
	Err                         error
}

// Host is the machine.
type Host struct {
	Systemd bool // is its init
	Unified bool // has cgroup v2
}

// API is the API server, with the configured credentials.
type API struct {
	NodeName string
	Node     bool // there is one of that name
	Rights   []Right
	Asking   int // pods on the node that ask for devices
	Unbound  int // those of them that do not name devmgrd in the annotation for NRI's validator
	Err      error
}

// A Right is something that devmgrd asks of the API server.
type Right struct {
	What string
	Err  error // nil: it may
}

// Kubelet is what the kubelet's files and its own device manager say.
type Kubelet struct {
	CgroupDriver string // by its file
	ConfigErr    error
	// Devices are those that its PodResources lists, by resource. It leaves out those with an empty topology.
	Devices map[device.ResourceName]int
	Plugins []string // sockets in its plugin directory where somebody listens
	Err     error    // why Devices is not known
}

// Checkpoint is the kubelet's own file.
type Checkpoint struct {
	Path      string
	Resources []device.ResourceName
	// Healthy are the devices of plugins that were registered when the file was written, by resource.
	Healthy map[device.ResourceName]int
	Current bool  // the kubelet that runs has written it
	Err     error // that it cannot be read; one that is not there names nothing
}

// A Finding is one line.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	Check   string  `json:"check"`
	Text    string  `json:"text"`
	Remedy  string  `json:"remedy,omitempty"` // unless it is ok
}

// A Verdict is how bad it is.
type Verdict string

// Verdicts.
const (
	OK   Verdict = "ok"
	Warn Verdict = "warn"
	Fail Verdict = "FAIL"
)
