package device

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// steering are the prefixes of annotations by which a container's specification controls the runtime, the OCI runtime or the
// virtual machine around it: binaries and configuration files on the host, properties of systemd units, CRI's own records.
// containerd and CRI-O let a pod set them only where their configuration names them; annotations through NRI bypass that
// check.
var steering = []string{
	"com.github.containers.virtcontainers.", "dev.gvisor.", "devmgrd.io/", "io.containerd.", "io.katacontainers.", "io.kubernetes.cri",
	"org.criu.", "org.systemd.property.", "run.oci.",
}

// CheckSteering returns an error if the grant has an annotation that steers the runtime and is not allowed. allowed are keys,
// and prefixes of keys followed by an asterisk.
func (g Grant) CheckSteering(allowed []string) error {
	for _, key := range slices.Sorted(maps.Keys(g.Annotations)) {
		if begins(key, steering) && !slices.ContainsFunc(allowed, func(pattern string) bool { return matches(pattern, key) }) {
			return fmt.Errorf("annotations[%q]: it steers the container runtime; to allow it, add it to plugins.allowedAnnotations", clip(key))
		}
	}
	return nil
}

func begins(key string, all []string) bool {
	return slices.ContainsFunc(all, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

func matches(pattern, key string) bool {
	if prefix, open := strings.CutSuffix(pattern, "*"); open {
		return strings.HasPrefix(key, prefix)
	}
	return pattern == key
}
