package preflight

import (
	"fmt"
	"os"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/internal/cri"
)

// DefaultKubeletConfig is kubeadm's path for the kubelet's configuration.
const DefaultKubeletConfig = "/var/lib/kubelet/config.yaml"

// A kubeletConfig holds the kubelet's settings for the runtime; unset values are empty.
type kubeletConfig struct {
	CgroupDriver    string `json:"cgroupDriver"`
	RuntimeEndpoint string `json:"containerRuntimeEndpoint"`
}

// readKubeletConfig reads the kubelet's configuration file.
func readKubeletConfig(path string) (kubeletConfig, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return kubeletConfig{}, err
	}
	var c kubeletConfig
	if err := yaml.Unmarshal(text, &c); err != nil {
		return kubeletConfig{}, fmt.Errorf("the kubelet's configuration %s: %w", path, err)
	}
	return c, nil
}

// runtimeSocket returns the path of the runtime's socket: the configured one, else an existing one, else containerd's.
func (c kubeletConfig) runtimeSocket() string {
	if c.RuntimeEndpoint != "" {
		return strings.TrimPrefix(c.RuntimeEndpoint, "unix://")
	}
	for _, path := range cri.Sockets {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	return cri.Sockets[0]
}
