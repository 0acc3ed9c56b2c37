package checkpoint

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/utils/dump"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The kubelet's types. Their names, their fields and the fields' order are part of the checksum.
type (
	// DevicesPerNUMA are IDs by NUMA node.
	DevicesPerNUMA map[int64][]string

	// PodDevicesEntry is one Entry.
	PodDevicesEntry struct {
		PodUID        string
		ContainerName string
		ResourceName  string
		DeviceIDs     DevicesPerNUMA
		AllocResp     []byte
	}

	checkpointData struct {
		PodDeviceEntries  []PodDevicesEntry
		RegisteredDevices map[string][]string
	}
)

// nowhere is the NUMA node of devices without one.
const nowhere = -1

// wire is the file in JSON.
type wire struct {
	Data     checkpointData
	Checksum uint64
}

// A CorruptError reports that a file is not as its kubelet wrote it.
type CorruptError struct {
	Err error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("the file is corrupt: %v; a kubelet would load no assignments from it", e.Err)
}

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

func unmarshal(data []byte) (checkpointData, error) {
	var w wire
	if err := json.Unmarshal(data, &w); err != nil {
		return checkpointData{}, &CorruptError{err}
	}
	if sum := checksum(w.Data); sum != w.Checksum {
		return checkpointData{}, &CorruptError{fmt.Errorf("its checksum is %d, and its content has %d", w.Checksum, sum)}
	}
	return w.Data, nil
}

func marshal(d checkpointData) ([]byte, error) { return json.Marshal(wire{d, checksum(d)}) }

// checksum is pkg/kubelet/checkpointmanager/checksum.New in Kubernetes.
func checksum(d checkpointData) uint64 {
	h := fnv.New32a()
	fmt.Fprintf(h, "%v", dump.ForHash(d))
	return uint64(h.Sum32())
}

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
