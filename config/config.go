package config

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
)

// DefaultFile is the configuration file of the daemon. It need not exist.
const DefaultFile = "/etc/devmgrd/config.yaml"

// Config is the whole configuration. Each field's key is its path with dots, in the spelling of its tag.
type Config struct {
	NodeName   string     `key:"nodeName"` // the Node object that stands for this machine
	StateDir   string     `key:"stateDir"` // what must survive a reboot
	RunDir     string     `key:"runDir"`   // sockets and the like
	Node       Node       `key:"node"`
	Plugins    Plugins    `key:"plugins"`
	Kubernetes Kubernetes `key:"kubernetes"`
	NRI        NRI        `key:"nri"`
	Topology   Topology   `key:"topology"`
	Allocation Allocation `key:"allocation"`
	DRA        DRA        `key:"dra"`
	Wait       Wait       `key:"wait"`
	Release    Release    `key:"release"`
	Health     Health     `key:"health"`
	// PodResources reports which pods have which devices.
	PodResources PodResources `key:"podResources"`
	Admin        Admin        `key:"admin"`
	Metrics      Metrics      `key:"metrics"`
	Log          Log          `key:"log"`
}

// Node holds what is expected of this node.
type Node struct {
	// Expected is how many devices the plugins should list, by resource. The Node's condition DevicesHealthy is false while
	// they list fewer.
	Expected map[string]int `key:"expected"`
}

// Plugins holds the sockets and limits of device plugins.
type Plugins struct {
	SocketDir        string        `key:"socketDir"`        // devmgrd listens on kubelet.sock in it
	RegistryDir      string        `key:"registryDir"`      // watched for sockets of plugins that wait for a call
	Redirect         bool          `key:"redirect"`         // plugin pods that mount KubeletDir get SocketDir
	DirectoryPerPod  bool          `key:"directoryPerPod"`  // each of these pods gets a directory of its own
	KubeletDir       string        `key:"kubeletDir"`       // the directory of the kubelet's own device manager
	GracePeriod      time.Duration `key:"gracePeriod"`      // how long an absent plugin's devices stay on the Node
	AllocateTimeout  time.Duration `key:"allocateTimeout"`  // per Allocate call
	PreferredTimeout time.Duration `key:"preferredTimeout"` // per GetPreferredAllocation call
	PreStartTimeout  time.Duration `key:"preStartTimeout"`  // per PreStartContainer call
	OnDuplicate      string        `key:"onDuplicate"`      // a second plugin of a resource: replace or reject
	MaxMessageBytes  int           `key:"maxMessageBytes"`  // of one list from a plugin
	MaxDevices       int           `key:"maxDevices"`       // of one resource
	MaxResources     int           `key:"maxResources"`     // on this node
	MaxTotalBytes    int           `key:"maxTotalBytes"`    // of the lists of all plugins
	CheckpointMirror bool          `key:"checkpointMirror"` // keep a kubelet_internal_checkpoint in SocketDir
	// IgnoredResources are extended resources that no device plugin serves, such as licences counted by hand:
	// names, or "domain/*" for all of a domain. Nothing is allocated for them and no pod waits for them.
	IgnoredResources []string `key:"ignoredResources"`
	// AllowedAnnotations are annotations that a plugin may grant although they steer the container runtime: keys, or
	// beginnings of keys followed by an asterisk.
	AllowedAnnotations []string `key:"allowedAnnotations"`
	Rules              string   `key:"rules"`     // the handling of violations of RulesFile: off, report or enforce
	RulesFile          string   `key:"rulesFile"` // which plugins may serve which resources, and what they may grant
}

// Values of Plugins.Rules.
const (
	Off     = "off"     // RulesFile is not read
	Report  = "report"  // in the log, in a metric and as an event
	Enforce = "enforce" // refused as well
)

// KubeletRegistryDir is the kubelet's directory for plugins that wait for a call, next to its device plugin directory.
func (p Plugins) KubeletRegistryDir() string {
	return path.Join(path.Dir(p.KubeletDir), "plugins_registry")
}

// PluginPodsDir is where plugin pods have their own directories.
func (c *Config) PluginPodsDir() string { return path.Join(c.RunDir, "plugins") }

// Values of Plugins.OnDuplicate.
const (
	Replace = "replace" // the newest plugin of a resource serves it, once it has listed its devices
	Reject  = "reject"  // the first plugin serves it until it goes
)

// Kubernetes holds the access to the API server.
type Kubernetes struct {
	Mode string `key:"mode"` // Cluster or NoCluster
	// Kubeconfig is a file; empty: the pod's service account, else the kubelet's, at the path of kubeadm, k3s or RKE2.
	Kubeconfig string `key:"kubeconfig"`
	// PodConditions writes conditions into the status of pods that request devices.
	PodConditions bool `key:"podConditions"`
}

// Values of Kubernetes.Mode.
const (
	Cluster   = "cluster" // the API server has pods, the Node and events
	NoCluster = "none"    // no API server: containers' requests are in annotations of their pods
)

// NRI holds the connection to the container runtime.
type NRI struct {
	Socket  string        `key:"socket"`
	Index   string        `key:"index"`   // two digits: the order among NRI plugins, lowest first
	MaxWait time.Duration `key:"maxWait"` // how long a container's creation is held up for an allocation in flight
}

// Topology controls the alignment of devices on NUMA nodes. The words are the kubelet's.
type Topology struct {
	Policy string `key:"policy"` // none, best-effort, restricted or single-numa-node
	Scope  string `key:"scope"`  // container or pod
}

// Allocation controls the choice among equal devices. Its keys are names of resources, "domain/*" for all of a domain, or "*" for
// all; the most exact one counts.
type Allocation struct {
	Order map[string]string `key:"order"` // lowest, pack, spread or oldest
	// Groups are what pack and spread count: NUMAGroups, or a regular expression that finds the group in a device's ID.
	Groups map[string]string `key:"groups"`
	// Selectors lets pods use or avoid devices by their annotation devmgrd.io/devices.
	Selectors bool `key:"selectors"`
}

// Values of Allocation.Order.
const (
	Lowest = "lowest" // the lowest IDs
	Pack   = "pack"   // from the smallest group of devices that suffices
	Spread = "spread" // from as many groups as possible, the one with the most free devices first
	Oldest = "oldest" // those that have been free for the longest time
)

// DRA offers resources through Dynamic Resource Allocation.
type DRA struct {
	// Resources are the resources that are offered so, and not as numbers in the Node's capacity: names, "domain/*", or "*".
	Resources  []string      `key:"resources"`
	MaxDevices int           `key:"maxDevices"` // of one resource; a resource with more is not offered
	Hold       time.Duration `key:"hold"`       // how long the kubelet's request waits for the devices of a claim
	CDIDir     string        `key:"cdiDir"`     // for the CDI files of claims: one of the directories that the runtime reads, in memory
}

// Offers reports whether a resource is offered through Dynamic Resource Allocation.
func (d DRA) Offers(resource string) bool {
	domain, _, _ := strings.Cut(resource, "/")
	return slices.ContainsFunc([]string{resource, domain + "/*", "*"}, func(p string) bool { return slices.Contains(d.Resources, p) })
}

// NUMAGroups is the value of Allocation.Groups for devices near the same NUMA nodes.
const NUMAGroups = "numa"

// ByResource returns the value of a map whose keys are patterns of resource names, or "" if none matches.
func ByResource(values map[string]string, resource string) string {
	domain, _, _ := strings.Cut(resource, "/")
	for _, pattern := range []string{resource, domain + "/*", "*"} {
		if v, ok := values[pattern]; ok {
			return v
		}
	}
	return ""
}

// Wait controls for how long pods wait for devices.
type Wait struct {
	// GiveUpAfter is after which time a pod is evicted, by reason or by resource: the keys are reasons, such as PluginMissing, or
	// like those of Allocation. The shortest time that applies counts.
	GiveUpAfter map[string]string `key:"giveUpAfter"`
}

// GiveUp returns after which time a pod that requests a resource and waits for a reason is evicted; 0: never. The resource "" stands
// for none in particular.
func (w Wait) GiveUp(reason, resource string) time.Duration {
	texts := []string{w.GiveUpAfter[reason]}
	if resource != "" {
		texts = append(texts, ByResource(w.GiveUpAfter, resource))
	}
	least := time.Duration(0)
	for _, text := range texts {
		if d, err := time.ParseDuration(text); err == nil && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

// Release controls when the devices of a pod that has ended are free for others.
type Release struct {
	// Check is what has to be proved, by resource: NoCheck, Cgroup or Openers. The keys are those of Allocation; Cgroup where none
	// matches.
	Check map[string]string `key:"check"`
	// Command makes a resource's devices free for the next pod, by resource: words separated by spaces, the first an absolute path.
	Command map[string]string `key:"command"`
	Timeout time.Duration     `key:"timeout"` // of one run of a command
	// NetworkTimeout is for how long devices wait until the network of their pod is torn down; 0: not at all.
	NetworkTimeout time.Duration `key:"networkTimeout"`
	// Ignore are processes that may keep devices open: executables of the host, system services, and patterns of pods, namespace/name.
	Ignore      []string `key:"ignore"`
	SharedNodes []string `key:"sharedNodes"` // patterns of device nodes that several devices share
	Socket      string   `key:"socket"`      // of devmgrd openers
}

// Values of Release.Check.
const (
	NoCheck = "off"     // processes are not looked for
	Cgroup  = "cgroup"  // the pod's cgroup has no process
	Openers = "openers" // and no other process has a device open or mapped
)

// Level returns what has to be proved for a resource.
func (r Release) Level(resource string) string { return cmp.Or(ByResource(r.Check, resource), Cgroup) }

// Argv returns the words of the command for a resource; empty: there is none.
func (r Release) Argv(resource string) []string {
	return strings.Fields(ByResource(r.Command, resource))
}

// Looks reports whether openers are looked for, for any resource.
func (r Release) Looks() bool { return slices.Contains(slices.Collect(maps.Values(r.Check)), Openers) }

// Health controls the handling of pods with missing or failed devices.
type Health struct {
	// OnMissingDevices is for pods that started while devmgrd was away: without their devices, or with a device plugin
	// that has registered with the kubelet.
	OnMissingDevices string `key:"onMissingDevices"` // Ignore, Event or Evict
	// OnDeviceFailure is for pods with a device that has become unhealthy or is no longer listed.
	OnDeviceFailure string `key:"onDeviceFailure"` // the same
	// OnUnlisted is for devices in use that a plugin has not listed since it restarted: Ignore or Failure.
	OnUnlisted string `key:"onUnlisted"`
	// OnFlapping is for devices that become unhealthy again and again, by resource: Suspend or Ignore. The keys are those of
	// Allocation; Suspend where none matches.
	OnFlapping map[string]string `key:"onFlapping"`
	// SuspendFor is how long the first suspension of a device lasts. Each further one is twice as long, up to a day.
	SuspendFor time.Duration `key:"suspendFor"`
	// Command examines devices that no pod has, by resource: words separated by spaces, the first an absolute path.
	Command  map[string]string `key:"command"`
	Interval time.Duration     `key:"interval"` // from one round of Command through a resource's devices to the next
	Timeout  time.Duration     `key:"timeout"`  // of one run of Command
}

// Argv returns the words of the command for a resource; empty: there is none.
func (h Health) Argv(resource string) []string {
	return strings.Fields(ByResource(h.Command, resource))
}

// Suspends reports whether a device of a resource is suspended when it becomes unhealthy again and again.
func (h Health) Suspends(resource string) bool { return ByResource(h.OnFlapping, resource) != Ignore }

// Failure is a value of Health.OnUnlisted.
const Failure = "failure" // as a device that has failed

// Suspend is a value of Health.OnFlapping.
const Suspend = "suspend" // no pod is assigned the device for a while

// Values of Health's fields. With each the log and metrics report the pods, too.
const (
	Ignore = "none"
	Event  = "event" // publish an event on the pod
	Evict  = "evict" // publish an event, and evict the pod
)

// PodResources holds the sockets of the PodResources API.
type PodResources struct {
	Socket        string `key:"socket"`
	KubeletSocket string `key:"kubeletSocket"` // the kubelet's answers are part of devmgrd's; empty: no kubelet
	Takeover      bool   `key:"takeover"`      // serve at KubeletSocket, too, with the kubelet's socket moved aside
}

// Admin holds the socket of the commands.
type Admin struct {
	Socket string `key:"socket"`
}

// Metrics holds the address of metrics and health checks.
type Metrics struct {
	Listen    string   `key:"listen"`    // host:port, or unix:/path; empty: nowhere
	HostNames []string `key:"hostNames"` // names of this host in requests, besides the node's and the host's own
	Devices   bool     `key:"devices"`   // a metric with a series for each device
}

// UnixPrefix stands before the path of a unix socket in Metrics.Listen.
const UnixPrefix = "unix:"

// Log controls the daemon's log.
type Log struct {
	Level  string `key:"level"`  // debug, info, warn or error
	Format string `key:"format"` // text or json
}

// defaults returns the defaults of all keys. nodeName, the plugins' two directories and devmgrd's own sockets depend on
// other values: see derive.
func defaults() Config {
	return Config{
		StateDir: "/var/lib/devmgrd",
		RunDir:   "/run/devmgrd",
		Node:     Node{Expected: map[string]int{}},
		Plugins: Plugins{
			Redirect:           true,
			DirectoryPerPod:    true,
			KubeletDir:         "/var/lib/kubelet/device-plugins",
			GracePeriod:        time.Minute,
			AllocateTimeout:    30 * time.Second,
			PreferredTimeout:   5 * time.Second,
			PreStartTimeout:    30 * time.Second,
			OnDuplicate:        Replace,
			MaxMessageBytes:    64 << 20,
			MaxDevices:         250_000,
			MaxResources:       256,
			MaxTotalBytes:      256 << 20,
			CheckpointMirror:   true,
			IgnoredResources:   []string{},
			AllowedAnnotations: []string{},
			Rules:              Off,
			RulesFile:          "/etc/devmgrd/rules.yaml",
		},
		Kubernetes: Kubernetes{Mode: Cluster, PodConditions: true},
		NRI:        NRI{Socket: "/var/run/nri/nri.sock", Index: "05", MaxWait: 100 * time.Millisecond},
		Topology:   Topology{Policy: "best-effort", Scope: "container"},
		Allocation: Allocation{Order: map[string]string{}, Groups: map[string]string{}},
		DRA:        DRA{Resources: []string{}, MaxDevices: 2048, Hold: 30 * time.Second, CDIDir: "/var/run/cdi"},
		Wait:       Wait{GiveUpAfter: map[string]string{}},
		Release: Release{Check: map[string]string{}, Command: map[string]string{}, Timeout: time.Minute, NetworkTimeout: 30 * time.Second, SharedNodes: []string{},
			Ignore: []string{"/usr/bin/nvidia-persistenced", "/usr/bin/nv-hostengine", "nvidia-persistenced.service"}},
		Health:       Health{OnMissingDevices: Event, OnDeviceFailure: Event, OnUnlisted: Ignore, OnFlapping: map[string]string{}, SuspendFor: time.Hour, Command: map[string]string{}, Interval: time.Minute, Timeout: 30 * time.Second},
		PodResources: PodResources{KubeletSocket: "/var/lib/kubelet/pod-resources/kubelet.sock"},
		Metrics:      Metrics{Listen: "127.0.0.1:9464", HostNames: []string{}},
		Log:          Log{Level: "info", Format: "text"},
	}
}

// derive fills in empty values that depend on other values.
func (c *Config) derive(m machine, from Sources) {
	if c.NodeName == "" {
		c.NodeName, from["nodeName"] = m.nodeName()
	}
	if c.Plugins.SocketDir == "" {
		c.Plugins.SocketDir, from["plugins.socketDir"] = path.Join(c.RunDir, "device-plugins"), Default
	}
	if c.Admin.Socket == "" {
		c.Admin.Socket, from["admin.socket"] = path.Join(c.RunDir, "admin.sock"), Default
	}
	if c.Release.Socket == "" {
		c.Release.Socket, from["release.socket"] = path.Join(c.RunDir, "openers.sock"), Default
	}
	if c.PodResources.Socket == "" {
		c.PodResources.Socket, from["podResources.socket"] = path.Join(c.RunDir, "pod-resources", "kubelet.sock"), Default
	}
	if c.Plugins.RegistryDir == "" {
		c.Plugins.RegistryDir, from["plugins.registryDir"] = path.Join(c.RunDir, "plugins_registry"), Default
	}
}
