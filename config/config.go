package config

import (
	"path"
	"time"
)

// DefaultFile is the configuration file of the daemon. It need not exist.
const DefaultFile = "/etc/devmgrd/config.yaml"

// Config is everything that can be configured. Each field's key is its path with dots, in the spelling of its tag.
type Config struct {
	NodeName   string     `key:"nodeName"` // the Node object that stands for this machine
	StateDir   string     `key:"stateDir"` // what must survive a reboot
	RunDir     string     `key:"runDir"`   // sockets and the like
	Plugins    Plugins    `key:"plugins"`
	Kubernetes Kubernetes `key:"kubernetes"`
	NRI        NRI        `key:"nri"`
	Metrics    Metrics    `key:"metrics"`
	Log        Log        `key:"log"`
}

// Plugins says where device plugins are met and how much of them is taken.
type Plugins struct {
	SocketDir       string        `key:"socketDir"`       // devmgrd listens on kubelet.sock in it
	Redirect        bool          `key:"redirect"`        // plugin pods that mount KubeletDir get SocketDir
	KubeletDir      string        `key:"kubeletDir"`      // the directory of the kubelet's own device manager
	GracePeriod     time.Duration `key:"gracePeriod"`     // how long a plugin may be away unnoticed
	AllocateTimeout time.Duration `key:"allocateTimeout"` // per Allocate call
	PreStartTimeout time.Duration `key:"preStartTimeout"` // per PreStartContainer call
	MaxMessageBytes int           `key:"maxMessageBytes"` // of one message from a plugin
	MaxDevices      int           `key:"maxDevices"`      // of one resource
	MaxResources    int           `key:"maxResources"`    // on this node
	// IgnoredResources are extended resources that no device plugin serves, such as licences counted by hand:
	// names, or "domain/*" for all of a domain. Nothing is allocated for them and nobody waits for them.
	IgnoredResources []string `key:"ignoredResources"`
}

// Kubernetes says how the API server is reached.
type Kubernetes struct {
	// Kubeconfig is a file; empty: the pod's service account, else /etc/kubernetes/kubelet.conf.
	Kubeconfig string `key:"kubeconfig"`
}

// NRI says how the container runtime is met.
type NRI struct {
	Socket  string        `key:"socket"`
	Index   string        `key:"index"`   // two digits: the order among NRI plugins, lowest first
	MaxWait time.Duration `key:"maxWait"` // how long a container's creation is held up for an allocation in flight
}

// Metrics says where Prometheus and health checks are served.
type Metrics struct {
	Listen string `key:"listen"` // host:port; empty: nowhere
}

// Log says how the daemon speaks.
type Log struct {
	Level  string `key:"level"`  // debug, info, warn or error
	Format string `key:"format"` // text or json
}

// defaults gives the values of keys that nobody has set. nodeName and plugins.socketDir depend on others: see derive.
func defaults() Config {
	return Config{
		StateDir: "/var/lib/devmgrd",
		RunDir:   "/run/devmgrd",
		Plugins: Plugins{
			Redirect:         true,
			KubeletDir:       "/var/lib/kubelet/device-plugins",
			GracePeriod:      time.Minute,
			AllocateTimeout:  30 * time.Second,
			PreStartTimeout:  30 * time.Second,
			MaxMessageBytes:  64 << 20,
			MaxDevices:       250_000,
			MaxResources:     256,
			IgnoredResources: []string{},
		},
		NRI:     NRI{Socket: "/var/run/nri/nri.sock", Index: "05", MaxWait: 100 * time.Millisecond},
		Metrics: Metrics{Listen: "127.0.0.1:9464"},
		Log:     Log{Level: "info", Format: "text"},
	}
}

// derive fills in what is empty and follows from something else.
func (c *Config) derive(m machine, from Sources) {
	if c.NodeName == "" {
		c.NodeName, from["nodeName"] = m.nodeName()
	}
	if c.Plugins.SocketDir == "" {
		c.Plugins.SocketDir, from["plugins.socketDir"] = path.Join(c.RunDir, "device-plugins"), Default
	}
}
