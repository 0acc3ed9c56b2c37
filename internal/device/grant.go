package device

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Check returns an error if a plugin's answer is invalid, with the field's name in the device plugin API. An empty answer is
// valid: the container has the devices and needs nothing else to use them.
func (g Grant) Check() error {
	if err := g.checkSize(); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(g.Env)) {
		if err := checkVariable(name, g.Env[name]); err != nil {
			return fmt.Errorf("envs[%q]: %w", Clip(name), err)
		}
	}
	for i, m := range g.Mounts {
		if err := cmp.Or(absolute("container_path", m.ContainerPath), absolute("host_path", m.HostPath)); err != nil {
			return fmt.Errorf("mounts[%d]: %w", i, err)
		}
	}
	for i, n := range g.Nodes {
		if err := n.check(); err != nil {
			return fmt.Errorf("devices[%d]: %w", i, err)
		}
	}
	for i, name := range g.CDI {
		if !qualified(name) {
			return fmt.Errorf("cdi_devices[%d]: name %q is not of the form vendor.example/class=name", i, Clip(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.Annotations)) {
		if name == "" || strings.ContainsRune(name+g.Annotations[name], 0) {
			return fmt.Errorf("annotations[%q]: the name is empty, or the name or value contains NUL", Clip(name))
		}
	}
	return nil
}

func checkVariable(name, value string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case strings.ContainsAny(name, "=\x00"):
		return errors.New("the name contains '=' or NUL")
	case strings.ContainsRune(value, 0):
		return errors.New("the value contains NUL")
	}
	return nil
}

func (n Node) check() error {
	if err := absolute("host_path", n.HostPath); err != nil {
		return err
	}
	if n.ContainerPath != "" {
		if err := absolute("container_path", n.ContainerPath); err != nil {
			return err
		}
	}
	// Without permissions the container would have the node, but the kernel would refuse access.
	if n.Permissions == "" || strings.Trim(n.Permissions, "rwm") != "" {
		return fmt.Errorf("permissions %q are not one or more of r, w and m", Clip(n.Permissions))
	}
	return nil
}

func absolute(field, path string) error {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return fmt.Errorf("%s %q is not an absolute path", field, Clip(path))
	}
	return nil
}

// CDIAnnotations is how annotations begin whose values are CDI device names, separated by commas.
const CDIAnnotations = "cdi.k8s.io/"

// CDINames returns the CDI devices of the grant, those of its annotations included.
func (g Grant) CDINames() []string {
	names := slices.Clone(g.CDI)
	for _, key := range slices.Sorted(maps.Keys(g.Annotations)) {
		if strings.HasPrefix(key, CDIAnnotations) {
			names = append(names, strings.Split(g.Annotations[key], ",")...)
		}
	}
	return names
}

// qualified reports whether name has the parts of a CDI device name: vendor/class=name.
func qualified(name string) bool {
	kind, dev, ok := strings.Cut(name, "=")
	vendor, class, slash := strings.Cut(kind, "/")
	return ok && slash && vendor != "" && class != "" && dev != "" && !strings.ContainsRune(name, 0)
}

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
		steers := slices.ContainsFunc(steering, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
		if steers && !matchesAny(allowed, key) {
			return fmt.Errorf("annotations[%q]: it steers the container runtime; to allow it, add it to plugins.allowedAnnotations", Clip(key))
		}
	}
	return nil
}
