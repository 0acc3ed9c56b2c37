package registry

import (
	"fmt"
	"math"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// This file converts requests, and plugins' answers into grants. It checks a grant while
// its error can still reach the pod's owner: the kubelet passes it on as it is, and the runtime then fails
// the container with words that no longer name the plugin.

// maxError bounds a plugin's error in a message, in bytes.
const maxError = 500

func preferredRequest(available, must []device.ID, size int) *pluginapi.PreferredAllocationRequest {
	return &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: lists.Strings(available), MustIncludeDeviceIDs: lists.Strings(must), AllocationSize: int32(min(size, math.MaxInt32)),
		}},
	}
}

// grant takes a plugin's answer for one container. The error names the field that is wrong. allowed are the annotations that may steer
// the runtime.
func grant(answer *pluginapi.AllocateResponse, allowed []string) (device.Grant, error) {
	if n := len(answer.GetContainerResponses()); n != 1 {
		return device.Grant{}, fmt.Errorf("it answers for %d containers and was asked for 1", n)
	}
	c := answer.ContainerResponses[0]
	g := device.Grant{Env: c.GetEnvs(), Annotations: c.GetAnnotations()}
	for _, m := range c.GetMounts() {
		g.Mounts = append(g.Mounts, device.Mount{ContainerPath: m.GetContainerPath(), HostPath: m.GetHostPath(), ReadOnly: m.GetReadOnly()})
	}
	for _, d := range c.GetDevices() {
		g.Nodes = append(g.Nodes, device.Node{ContainerPath: d.GetContainerPath(), HostPath: d.GetHostPath(), Permissions: d.GetPermissions()})
	}
	for _, d := range c.GetCdiDevices() {
		g.CDI = append(g.CDI, d.GetName())
	}
	if err := g.Check(); err != nil {
		return device.Grant{}, err
	}
	return g, g.CheckSteering(allowed)
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
