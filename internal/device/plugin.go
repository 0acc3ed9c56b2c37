package device

// A PluginPod is the pod in which a device plugin runs. It is zero where the pod is not known: the plugin runs on the host,
// or its container mounts the common directory.
type PluginPod struct {
	Pod
	ServiceAccount string // empty: not known
}

// Known reports whether the pod is known.
func (p PluginPod) Known() bool { return p.UID != "" }

// A Registration is a resource's plugin socket and the plugin's pod.
type Registration struct {
	Endpoint string // the plugin's socket: a name in the directory of its registration, or a path; empty: none left
	Pod      PluginPod
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
	Resource    ResourceName
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
}
