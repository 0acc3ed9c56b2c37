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
			return fmt.Errorf("envs[%q]: %w", clip(name), err)
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
			return fmt.Errorf("cdi_devices[%d]: name %q is not of the form vendor.example/class=name", i, clip(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(g.Annotations)) {
		if name == "" || strings.ContainsRune(name+g.Annotations[name], 0) {
			return fmt.Errorf("annotations[%q]: the name is empty, or the name or value contains NUL", clip(name))
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
		return fmt.Errorf("permissions %q are not one or more of r, w and m", clip(n.Permissions))
	}
	return nil
}

func absolute(field, path string) error {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return fmt.Errorf("%s %q is not an absolute path", field, clip(path))
	}
	return nil
}

// qualified reports whether name has the parts of a CDI device name: vendor/class=name.
func qualified(name string) bool {
	kind, dev, ok := strings.Cut(name, "=")
	vendor, class, slash := strings.Cut(kind, "/")
	return ok && slash && vendor != "" && class != "" && dev != "" && !strings.ContainsRune(name, 0)
}
