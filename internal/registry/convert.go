package registry

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// This file turns what we are asked into requests and plugins' answers into grants. What a plugin grants is checked
// here, where its error can still be told to somebody: the kubelet passes it on as it is, and the runtime then fails
// the container with words that no longer name the plugin.

func allocateRequest(ids []device.ID) *pluginapi.AllocateRequest {
	return &pluginapi.AllocateRequest{
		ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: wireIDs(ids)}},
	}
}

func preStartRequest(ids []device.ID) *pluginapi.PreStartContainerRequest {
	return &pluginapi.PreStartContainerRequest{DevicesIds: wireIDs(ids)}
}

func preferredRequest(available, must []device.ID, size int) *pluginapi.PreferredAllocationRequest {
	return &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: wireIDs(available), MustIncludeDeviceIDs: wireIDs(must), AllocationSize: int32(min(size, math.MaxInt32)),
		}},
	}
}

func wireIDs(ids []device.ID) []string {
	wire := make([]string, len(ids))
	for i, id := range ids {
		wire[i] = string(id)
	}
	return wire
}

// grant takes a plugin's answer for one container. An answer with nothing in it is good: the container has the
// devices and needs nothing in order to use them. The error names the field that is wrong.
func grant(answer *pluginapi.AllocateResponse) (device.Grant, error) {
	if n := len(answer.GetContainerResponses()); n != 1 {
		return device.Grant{}, fmt.Errorf("it answers for %d containers and was asked for 1", n)
	}
	c := answer.ContainerResponses[0]
	var g device.Grant
	for _, name := range slices.Sorted(maps.Keys(c.GetEnvs())) {
		if err := env(name, c.Envs[name]); err != nil {
			return device.Grant{}, fmt.Errorf("envs[%q]: %w", clip(name), err)
		}
	}
	g.Env = c.GetEnvs()
	for i, m := range c.GetMounts() {
		if err := cmp.Or(absolute("container_path", m.GetContainerPath()), absolute("host_path", m.GetHostPath())); err != nil {
			return device.Grant{}, fmt.Errorf("mounts[%d]: %w", i, err)
		}
		g.Mounts = append(g.Mounts, device.Mount{ContainerPath: m.ContainerPath, HostPath: m.HostPath, ReadOnly: m.ReadOnly})
	}
	for i, d := range c.GetDevices() {
		n, err := node(d)
		if err != nil {
			return device.Grant{}, fmt.Errorf("devices[%d]: %w", i, err)
		}
		g.Nodes = append(g.Nodes, n)
	}
	for i, d := range c.GetCdiDevices() {
		if !qualified(d.GetName()) {
			return device.Grant{}, fmt.Errorf("cdi_devices[%d]: name %q is not of the form vendor.example/class=name", i, clip(d.GetName()))
		}
		g.CDI = append(g.CDI, d.Name)
	}
	for name, value := range c.GetAnnotations() {
		if name == "" || strings.ContainsRune(name+value, 0) {
			return device.Grant{}, fmt.Errorf("annotations[%q]: the name is empty, or name or value has a NUL in it", clip(name))
		}
	}
	g.Annotations = c.GetAnnotations()
	return g, nil
}

// preferred takes a plugin's advice for one container. It is not judged, only kept small: an answer may have none of the
// devices that were available, and all of them twice.
func preferred(answer *pluginapi.PreferredAllocationResponse, most int) ([]device.ID, error) {
	if n := len(answer.GetContainerResponses()); n != 1 {
		return nil, fmt.Errorf("it answers for %d containers and was asked for 1", n)
	}
	wire := answer.ContainerResponses[0].GetDeviceIDs()
	if n := len(wire); n > most {
		return nil, fmt.Errorf("it names %d devices, and plugins.maxDevices allows %d", n, most)
	}
	ids := make([]device.ID, len(wire))
	for i, id := range wire {
		if len(id) > maxID {
			return nil, fmt.Errorf("deviceIDs[%d]: an ID of %d bytes; no device has one of more than %d", i, len(id), maxID)
		}
		ids[i] = device.ID(id)
	}
	return ids, nil
}

func env(name, value string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case strings.ContainsAny(name, "=\x00"):
		return errors.New("the name has '=' or NUL in it")
	case strings.ContainsRune(value, 0):
		return errors.New("the value has a NUL in it")
	}
	return nil
}

// node takes a device node. A plugin may leave out the container's path if it is the host's.
func node(d *pluginapi.DeviceSpec) (device.Node, error) {
	n := device.Node{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()}
	if err := absolute("host_path", n.HostPath); err != nil {
		return device.Node{}, err
	}
	if n.ContainerPath != "" {
		if err := absolute("container_path", n.ContainerPath); err != nil {
			return device.Node{}, err
		}
	}
	// Without permissions the container would have the node and be refused by it.
	if n.Permissions == "" || strings.Trim(n.Permissions, "rwm") != "" {
		return device.Node{}, fmt.Errorf("permissions %q are not one or more of r, w and m", clip(n.Permissions))
	}
	return n, nil
}

func absolute(field, path string) error {
	if !strings.HasPrefix(path, "/") || strings.ContainsRune(path, 0) {
		return fmt.Errorf("%s %q is not an absolute path", field, clip(path))
	}
	return nil
}

// qualified tells whether name has the parts of a CDI device name: vendor/class=name.
func qualified(name string) bool {
	kind, dev, ok := strings.Cut(name, "=")
	vendor, class, slash := strings.Cut(kind, "/")
	return ok && slash && vendor != "" && class != "" && dev != "" && !strings.ContainsRune(name, 0)
}

// clip keeps a plugin's text short enough for a message.
func clip(s string) string {
	const limit = 500
	if len(s) > limit {
		return strings.ToValidUTF8(s[:limit], "") + "..."
	}
	return s
}
