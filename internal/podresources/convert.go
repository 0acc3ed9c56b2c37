package podresources

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// entry draws a pod as v1 has it: all containers that run until the pod ends, also those without devices.
func entry(h *device.PodAllocation) *v1.PodResources {
	e := &v1.PodResources{Name: h.Pod.Name, Namespace: h.Pod.Namespace, Containers: make([]*v1.ContainerResources, len(h.Containers))}
	for i, name := range h.Containers {
		as, _ := h.Of(name)
		e.Containers[i] = sealed(name, devicesOf(as))
	}
	return e
}

// sealed draws a container whose devices are encoded already. To protobuf they are fields that it does not know, and those it
// sends as they are.
func sealed(name string, devices []*v1.ContainerDevices) *v1.ContainerResources {
	raw, err := proto.Marshal(&v1.ContainerResources{Devices: devices})
	if err != nil {
		return &v1.ContainerResources{Name: name, Devices: devices} // whoever encodes the answer gets the same error
	}
	c := &v1.ContainerResources{Name: name}
	c.ProtoReflect().SetUnknown(raw)
	return c
}

// devicesOf has, as the kubelet does, one entry for each device and NUMA node, and never groups devices.
func devicesOf(as device.Assignment) []*v1.ContainerDevices {
	var all []*v1.ContainerDevices
	for _, s := range as.Shares {
		for i, id := range s.IDs {
			var near []int
			if s.Near != nil {
				near = s.Near[i]
			}
			all = appendDevice(all, s.Resource, id, near)
		}
	}
	return all
}

// appendDevice appends the entries of one device. One that is near no node has no topology, rather than an empty one: some
// readers take a topology without nodes for node 0.
func appendDevice(to []*v1.ContainerDevices, r device.ResourceName, id device.ID, near []int) []*v1.ContainerDevices {
	ids := []string{string(id)}
	if len(near) == 0 {
		return append(to, &v1.ContainerDevices{ResourceName: string(r), DeviceIds: ids})
	}
	for _, node := range near {
		to = append(to, &v1.ContainerDevices{ResourceName: string(r), DeviceIds: ids,
			Topology: &v1.TopologyInfo{Nodes: []*v1.NUMANode{{ID: int64(node)}}}})
	}
	return to
}

// alphaEntry draws a pod as v1alpha1 has it: without sidecars and topology.
func alphaEntry(h *device.PodAllocation) *v1alpha1.PodResources {
	e := &v1alpha1.PodResources{Name: h.Pod.Name, Namespace: h.Pod.Namespace}
	for _, name := range h.Containers[h.Sidecars:] {
		as, _ := h.Of(name)
		e.Containers = append(e.Containers, &v1alpha1.ContainerResources{Name: name, Devices: alphaDevices(devicesOf(as))})
	}
	return e
}

func alphaDevices(devices []*v1.ContainerDevices) []*v1alpha1.ContainerDevices {
	var all []*v1alpha1.ContainerDevices
	for _, d := range devices {
		all = append(all, &v1alpha1.ContainerDevices{ResourceName: d.ResourceName, DeviceIds: d.DeviceIds})
	}
	return all
}

// allocatable has the devices that can be given to a container, in use or not: those that are healthy, of plugins that are
// there or have been a moment ago, and in service.
func allocatable(offers map[device.ResourceName]device.Offer, out map[device.ResourceName]map[device.ID]bool) []*v1.ContainerDevices {
	var all []*v1.ContainerDevices
	for _, r := range slices.Sorted(maps.Keys(offers)) {
		if offers[r].State == device.Lost {
			continue
		}
		for _, d := range offers[r].Inventory.Devices {
			if d.Healthy && !out[r][d.ID] {
				all = appendDevice(all, r, d.ID, d.NUMA)
			}
		}
	}
	return all
}

// listed has all devices that plugins have listed, healthy or not, by resource.
func listed(offers map[device.ResourceName]device.Offer) []*v1alpha1.ContainerDevices {
	var all []*v1alpha1.ContainerDevices
	for _, r := range slices.Sorted(maps.Keys(offers)) {
		devices := offers[r].Inventory.Devices
		if len(devices) == 0 {
			continue
		}
		ids := make([]string, len(devices))
		for i, d := range devices {
			ids[i] = string(d.ID)
		}
		all = append(all, &v1alpha1.ContainerDevices{ResourceName: string(r), DeviceIds: ids})
	}
	return all
}
