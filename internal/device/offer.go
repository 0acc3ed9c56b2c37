package device

import "time"

// A Device is one device as its plugin lists it.
type Device struct {
	ID      ID    `json:"id"`
	Healthy bool  `json:"healthy"`
	NUMA    []int `json:"numa,omitempty"` // nearby NUMA nodes; empty: none
	// Added is when the plugin began to list the device, in Unix nanoseconds: higher than for each device listed earlier. 0:
	// the device was in the plugin's first list, or the time is not known.
	Added int64 `json:"added,omitempty"`
}

// An Inventory is a plugin's latest full list of devices: replaced, never patched. Devices are in the order of CompareIDs and
// no ID appears twice.
type Inventory struct {
	Resource ResourceName
	Devices  []Device
}

// SameList reports whether two lists of devices are the same slice, not just equal. Lists are replaced and never edited, so
// this detects an unchanged list of any length at once.
func SameList(a, b []Device) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// An Offer is the current state of one resource in devmgrd.
type Offer struct {
	Inventory Inventory
	State     OfferState
	Since     time.Time // start of the present Status, or of devmgrd's knowledge of it
	Connected bool      // the connection to the plugin is up, though it may not have listed its devices yet
	Reported  bool      // the plugin, or the state file, has listed the devices at least once
	PreStart  bool      // PreStartContainer must run before each start of a container
	Session   uint64    // changes when a registration is accepted, and when a plugin that was away lists its devices again
	Listed    uint64    // changes with the connection that has sent the list; 0: the list is from the state file
	Newest    int64     // as in PluginRecord
	Prefers   bool      // the plugin supports GetPreferredAllocation
	// LastError is the latest failure to reach, register or follow the plugin, and LastErrorAt its time. Empty: none since
	// devmgrd started.
	LastError   string
	LastErrorAt time.Time
}

// StatusConnected is the Status of an Offer whose plugin is connected and has not listed its devices yet.
const StatusConnected = "connected"

// Status returns the state of the Offer's plugin: "serving", "connected", "stale" or "lost".
func (o Offer) Status() string {
	if o.Connected && (o.State != Serving || !o.Reported) {
		return StatusConnected
	}
	return o.State.String()
}

// OfferState is how far an Offer may be trusted.
type OfferState int

const (
	// Serving: the plugin's stream is open.
	Serving OfferState = iota
	// Stale: the plugin has been away for less than the grace period. Its devices still count in the published capacity, so
	// that a rollout of the plugin does not change the Node; devmgrd assigns none of them.
	Stale
	// Lost: the plugin has been away for longer, or is back and has not listed its devices in time. Only devices in use count.
	Lost
)

func (s OfferState) String() string {
	return [...]string{"serving", "stale", "lost"}[s]
}

// A Use is what keeps a lost resource from being forgotten, from the least to the most.
type Use int

const (
	Unused       Use = iota
	HasSuspended     // unused, and devices are suspended, which would be forgotten too
	Requested        // pods request it, have none of its devices, and wait
	Kept             // pods have its devices or name them by claims, or an operator has cordoned one
)

// A PluginRecord is the store's record of a resource. With it devmgrd reconnects to a serving plugin without a new
// registration, and the published capacity does not change while the plugin is away.
type PluginRecord struct {
	Resource ResourceName    `json:"-"`
	Endpoint string          `json:"endpoint"` // the plugin's socket: a name in the directory of its registration, or a path
	Pod      PluginPod       `json:"pod,omitzero"`
	Quota    Quota           `json:"quota,omitzero"`    // if Pod is not known
	Account  string          `json:"account,omitempty"` // as in Quota: in whose pods' quotas the resource counts, since one had it from another; empty: none
	Reserve  []ReservePlugin `json:"reserve,omitempty"` // in the order of their registrations
	Reported bool            `json:"reported"`          // the plugin has listed Devices, even if empty
	Devices  []Device        `json:"-"`                 // as in Inventory
	// Away is when the plugin went away, and Lost reports that the grace period has passed since. Zero: the plugin served when
	// the record was written, or an older version wrote the record.
	Away time.Time `json:"away,omitzero"`
	Lost bool      `json:"lost,omitempty"`
	// Newest is the highest Added of any device so far, listed or not, and at least 1. 0: no list is known, or an older version wrote the record.
	Newest int64 `json:"newest,omitempty"`
}

// A ReservePlugin is another plugin of a resource, which takes over when the current one ends.
type ReservePlugin struct {
	Endpoint string    `json:"endpoint"`
	Pod      PluginPod `json:"pod,omitzero"`
	Quota    Quota     `json:"quota,omitzero"`  // if Pod is not known
	Newer    bool      `json:"newer,omitempty"` // registered after the current one, and has not listed its devices yet
}

// A Quota names in whose part of the limits of names and list bytes a plugin counts. Zero: in none, since it runs outside of pods.
type Quota struct {
	Pod     string `json:"pod"`               // as connlimit names the pod
	Account string `json:"account,omitempty"` // its namespace and service account, which outlive it; empty: not known
}

// A PluginPod is the pod in which a device plugin runs. It is zero where the pod is not known: the plugin runs on the host,
// or its container mounts the common directory.
type PluginPod struct {
	Pod
	ServiceAccount string `json:"serviceAccount,omitempty"` // empty: not known
}

// Known reports whether the pod is known.
func (p PluginPod) Known() bool { return p.UID != "" }

// A Registration is a resource's plugin socket and the plugin's pod.
type Registration struct {
	Endpoint string // the plugin's socket: a name in the directory of its registration, or a path; empty: none left
	Pod      PluginPod
	Reserve  []Registration // further plugins of the resource, which take over when this one ends
}

// A PluginDir is a directory in which device plugins register: a plugin pod's own, or the common one, which has no owner.
type PluginDir struct {
	Owner    Pod
	Sockets  string // the host path mounted in place of the kubelet's device plugin directory
	Registry string // likewise for plugins_registry; empty: none
	// Resources are those that the owner's plugins serve.
	Resources []ResourceName
}

// PluginGrants are the names and paths, without values, that the plugins of a resource have granted.
type PluginGrants struct {
	Resource    ResourceName // empty: all others
	Env         []GrantName
	Mounts      []GrantName // paths on the host
	Devices     []GrantName // likewise
	Annotations []GrantName // keys
	CDIKinds    []GrantName
	Full        bool // the record is full: the plugins have granted more
}

// A GrantName is a name or path that a plugin has granted.
type GrantName struct {
	Text    string
	Pattern string // matches names that differ only in device IDs and numbers
}

// A HostNode is a device node of the host.
type HostNode struct {
	Path  string // links resolved
	Kind  string // "c" or "b"
	Major int64
	Minor int64
}
