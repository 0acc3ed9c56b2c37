package checkpoint

import (
	"fmt"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Grant decodes the plugin's answer and checks it like a plugin's present answer.
func (e Entry) Grant() (device.Grant, error) {
	var answer pluginapi.ContainerAllocateResponse
	if err := proto.Unmarshal(e.Answer, &answer); err != nil {
		return device.Grant{}, fmt.Errorf("the plugin's answer cannot be read: %w", err)
	}
	g := device.Grant{Env: answer.Envs, Annotations: answer.Annotations}
	for _, m := range answer.Mounts {
		g.Mounts = append(g.Mounts, device.Mount{ContainerPath: m.GetContainerPath(), HostPath: m.GetHostPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, d := range answer.Devices {
		g.Nodes = append(g.Nodes, device.Node{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	for _, d := range answer.CdiDevices {
		g.CDI = append(g.CDI, d.GetName())
	}
	if err := g.Check(); err != nil {
		return device.Grant{}, fmt.Errorf("the plugin's answer cannot be used: %w", err)
	}
	return g, nil
}

// answer is the inverse of Grant.
func answer(g device.Grant) ([]byte, error) {
	a := pluginapi.ContainerAllocateResponse{Envs: g.Env, Annotations: g.Annotations}
	for _, m := range g.Mounts {
		a.Mounts = append(a.Mounts, &pluginapi.Mount{ContainerPath: m.ContainerPath, HostPath: m.HostPath, ReadOnly: m.ReadOnly})
	}
	for _, n := range g.Nodes {
		a.Devices = append(a.Devices, &pluginapi.DeviceSpec{ContainerPath: n.ContainerPath, HostPath: n.HostPath, Permissions: n.Permissions})
	}
	for _, name := range g.CDI {
		a.CdiDevices = append(a.CdiDevices, &pluginapi.CDIDevice{Name: name})
	}
	return proto.MarshalOptions{Deterministic: true}.Marshal(&a)
}
