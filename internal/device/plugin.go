package device

// A PluginPod is the pod in which a device plugin runs. It is zero where that is not known: the plugin runs on the host, or its
// container has the common directory.
type PluginPod struct {
	Pod
	ServiceAccount string // empty: not known
}

// Known reports whether the pod is known.
func (p PluginPod) Known() bool { return p.UID != "" }

// A Registration says where a resource's plugin listens and whose it is.
type Registration struct {
	Endpoint string // its socket: a name in the directory in which it registered, or a path; empty: it has none any longer
	Pod      PluginPod
}

// A PluginDir is a directory in which device plugins register: a plugin pod's own, or the common one, which has no owner.
type PluginDir struct {
	Owner    Pod
	Sockets  string // the path of what a plugin has in the place of the kubelet's device plugin directory
	Registry string // likewise of plugins_registry; empty: there is none
	// Resources are those of the owner's plugins.
	Resources []ResourceName
}

// PluginGrants is what the plugins of a resource have granted: names and paths, without values.
type PluginGrants struct {
	Resource    ResourceName
	Env         []GrantName
	Mounts      []GrantName // paths on the host
	Devices     []GrantName // likewise
	Annotations []GrantName // keys
	CDIKinds    []GrantName
	Full        bool // they have granted more than is remembered
}

// A GrantName is a name or path that a plugin has granted.
type GrantName struct {
	Text    string
	Pattern string // it matches names that differ in device IDs and numbers only
}

// A HostNode is a device node of the host.
type HostNode struct {
	Path  string // without links
	Kind  string // "c" or "b"
	Major int64
}
