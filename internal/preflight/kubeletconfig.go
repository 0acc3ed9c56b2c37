package cri

import (
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"
)

// DefaultKubeletConfig is kubeadm's path for the kubelet's configuration.
const DefaultKubeletConfig = "/var/lib/kubelet/config.yaml"

// A KubeletConfig holds the kubelet's settings for the runtime; unset values are empty.
type KubeletConfig struct {
	CgroupDriver    string `json:"cgroupDriver"`
	RuntimeEndpoint string `json:"containerRuntimeEndpoint"`
}

// ReadKubelet reads the kubelet's configuration file.
func ReadKubelet(path string) (KubeletConfig, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return KubeletConfig{}, err
	}
	var c KubeletConfig
	if err := yaml.Unmarshal(text, &c); err != nil {
		return KubeletConfig{}, fmt.Errorf("the kubelet's configuration %s: %w", path, err)
	}
	return c, nil
}

// runtimeSockets are the default sockets of runtimes, in the order in which the kubelet and crictl try them.
var runtimeSockets = []string{"/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/k3s/containerd/containerd.sock"}

// RuntimeSocket returns the path of the runtime's socket: the configured one, else an existing one, else containerd's.
func (c KubeletConfig) RuntimeSocket() string {
	if c.RuntimeEndpoint != "" {
		return strings.TrimPrefix(c.RuntimeEndpoint, "unix://")
	}
	for _, path := range runtimeSockets {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return runtimeSockets[0]
}
