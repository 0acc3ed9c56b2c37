package preflight

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/cri"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/pods"
)

// Facts are the facts about a node. An Err is the reason why a fact is missing.
type Facts struct {
	Root       bool   // the caller is root, which the checks need
	ConfigFile string // empty: there is none
	Evicts     bool   // the configuration evicts pods
	Conditions bool   // the configuration writes conditions of pods
	Takeover   bool   // the configuration has devmgrd serve at the kubelet's PodResources path

	State   State
	Daemon  *Daemon // nil: it does not run
	Sockets []Socket

	Runtime    Runtime
	NRI        NRI
	Containerd Containerd
	CRIO       *CRIO // nil: the runtime is another one
	Host       Host

	Openers    *Openers // nil: the configuration does not need them
	Commands   []Command
	API        *API    // nil: there is none, by the configuration
	Claims     *Claims // nil: dra.resources is empty, or there is no API server
	Kubelet    Kubelet
	Checkpoint Checkpoint
}

// State is the state file.
type State struct {
	Dir     string
	Version uint64 // of its schema; 0: there is none yet
	Pods    int    // with devices
	InUse   bool   // by the running daemon
	Damaged bool
	Err     error
}

// Openers is the search for processes that use devices of ended pods.
type Openers struct {
	Socket    string
	Processes int           // that it has looked at
	CPU       time.Duration // of one search
	Err       error
}

// A Command is a release.command or a health.command.
type Command struct {
	Key  string // of the configuration
	Path string
	Err  error // why it cannot be executed
}

// A Daemon is a running devmgrd.
type Daemon struct {
	Version  string
	Problems []string // of its components, as in /readyz
	Serves   map[device.ResourceName]bool
	Devices  map[device.ResourceName]int // how many each resource has
}

// A Socket is a place where devmgrd listens.
type Socket struct {
	Key  string // of the configuration
	At   string
	Init bool // process 1 listens there, for devmgrd
	Err  error
}

// Runtime is the container runtime's description of itself through the CRI.
type Runtime struct {
	Socket        string
	Name, Version string
	Started       time.Time // zero: not known
	CgroupDriver  string    // "systemd" or "cgroupfs"; empty: not reported
	OCI           string    // the program that creates containers, if known
	Systemd       bool      // systemd creates their cgroups
	// UserNamespaces: the runtime reports that its default handler runs pods with a user namespace of their own, and maps mounts into it.
	UserNamespaces bool
	CDI            cri.CDI
	args           []string // of its process
	Err            error

	// Containers and Sandboxes are the runtime's, the largest first; SizesErr is the reason why they are not known.
	Containers, Sandboxes []Size
	SizesErr              error
}

// A Size is the size of the specification of a container or of a pod's sandbox, as the runtime passes it to NRI plugins.
type Size struct {
	Name  string // namespace/pod of a sandbox, namespace/pod:container of a container
	Bytes int    // of arguments, variables, annotations and labels
}

// NRI is the runtime's description of itself to an NRI plugin.
type NRI struct {
	Socket  string
	Missing bool // no process listens there
	nri.Greeting
	Err error
}

// Containerd is containerd's configuration of NRI. Values that are not set are nil, or empty.
type Containerd struct {
	File                        string    // the main one
	files                       []string  // all, in the order of reading
	Changed                     time.Time // the newest modification time of a file
	Disabled                    []string  // plugins that are disabled as a whole
	Disable, DisableConnections *bool
	Socket, RequestTimeout      string
	Validator                   *bool
	CDI                         *bool    // of containerd 1, whose default is off
	Required                    []string // plugins without which no container starts
	Err                         error
}

// Host is the machine.
type Host struct {
	Systemd   bool // is the init process
	Unified   bool // has cgroup v2
	NUMANodes int
}

// API is the API server, with the configured credentials.
type API struct {
	NodeName string
	Node     bool   // the Node of that name exists
	Policy   string // as in kube.Access
	Rights   []kube.Right
	Asking   int // pods on the node that request devices
	Unbound  int // pods among them that do not name devmgrd in the annotation for NRI's validator
	// Neighbours are pods on the node that depend on the device manager in other ways.
	Neighbours pods.Neighbours
	Err        error
}

// Kubelet is the state of the kubelet's files and of its own device manager.
type Kubelet struct {
	CgroupDriver string // in its file
	ConfigErr    error
	// Devices counts the devices that its PodResources lists, by resource. It omits devices with an empty topology.
	Devices map[device.ResourceName]int
	Plugins []string // sockets in its plugin directory on which a process listens
	Err     error    // the reason why Devices is not known
}

// Checkpoint is the kubelet's own checkpoint file.
type Checkpoint struct {
	Path      string
	Resources []device.ResourceName
	// Healthy are the devices of plugins that were registered when the file was written, by resource.
	Healthy map[device.ResourceName]int
	Current bool  // written by the running kubelet
	Err     error // of reading it; nil for a missing file, which names no resource
}

// A Finding is one line.
type Finding struct {
	Verdict Verdict `json:"verdict"`
	Check   string  `json:"check"`
	Text    string  `json:"text"`
	Remedy  string  `json:"remedy,omitempty"` // empty if Verdict is OK
}

// A Verdict is the severity of a finding.
type Verdict string

// Verdicts.
const (
	OK   Verdict = "ok"
	Warn Verdict = "warn"
	Fail Verdict = "FAIL"
)
