package device

import "time"

// A Grant is a plugin's answer to an allocation: what a container needs in order to use its devices.
type Grant struct {
	Env         map[string]string `json:"env,omitempty"`
	Mounts      []Mount           `json:"mounts,omitempty"`
	Nodes       []Node            `json:"nodes,omitempty"`
	CDI         []string          `json:"cdi,omitempty"` // fully qualified CDI device names: vendor/class=name
	Annotations map[string]string `json:"annotations,omitempty"`
}

// A Mount shows a host path inside the container.
type Mount struct {
	ContainerPath string `json:"containerPath"`
	HostPath      string `json:"hostPath"`
	ReadOnly      bool   `json:"readOnly,omitempty"`
}

// A Node shows a device node of the host inside the container.
type Node struct {
	ContainerPath string `json:"containerPath"` // empty: where it is on the host, links resolved
	HostPath      string `json:"hostPath"`
	Permissions   string `json:"permissions"` // letters of "rwm": read, write, make a node
}

// A Share is one plugin's part of an assignment.
type Share struct {
	Resource ResourceName `json:"resource"`
	IDs      []ID         `json:"ids"` // ascending
	// Near are the NUMA nodes of each of the IDs when they were assigned; nil: none of them has a place.
	Near     [][]int `json:"near,omitempty"`
	Grant    Grant   `json:"grant"`
	PreStart bool    `json:"preStart,omitempty"` // the plugin wants PreStartContainer before each start
	Why      Why     `json:"why,omitzero"`
	// At is the highest Device.Added of the plugin's list when the devices were chosen, and 1 at least: a device that was
	// added later was not in that list. 0: not known.
	At int64 `json:"at,omitempty"`
	// Boot identifies the boot of the machine in which the plugin gave the Grant; empty: not known.
	Boot string `json:"boot,omitempty"`
}

// Why is what led to the choice of a share's devices.
type Why struct {
	Kept      int   `json:"kept,omitempty"`      // by init containers, which have ended when this container starts
	Stamped   int   `json:"stamped,omitempty"`   // the container ran with them, and the state file had been lost
	Preferred int   `json:"preferred,omitempty"` // as the plugin prefers
	Near      []int `json:"near,omitempty"`      // the NUMA nodes that devices were looked for at first
	Avoided   int   `json:"avoided,omitempty"`   // free devices that were left out since the plugin had refused them lately
}

// An Assignment is all of a container's devices. A container has all that it asked for, or no assignment.
type Assignment struct {
	Container Container `json:"container"`
	Shares    []Share   `json:"shares"` // ascending by resource
	// Imported is when it was taken over from a kubelet's device manager; zero: it was not. Containers that were made
	// before then have their devices from the kubelet, and no stamp.
	Imported time.Time `json:"imported,omitzero"`
}

// Choice is a proposal of devices for one container: nothing is promised by it.
type Choice map[ResourceName][]ID

// A PodRecord is what the store keeps of a pod: what it asked for and, once that is settled, what it holds.
type PodRecord struct {
	Demand      PodDemand    `json:"demand"`
	Assignments []Assignment `json:"assignments,omitempty"`
}
