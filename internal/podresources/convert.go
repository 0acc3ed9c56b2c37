package podresources

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// entry returns a pod in v1: all containers that run until the pod ends, with or without devices.
func entry(p *device.PodAllocation) *v1.PodResources {
	e := &v1.PodResources{Name: p.Pod.Name, Namespace: p.Pod.Namespace, Containers: make([]*v1.ContainerResources, len(p.Containers))}
	for i, name := range p.Containers {
		as, _ := p.Of(name)
		e.Containers[i] = encoded(name, devicesOf(as))
	}
	return e
}

// encoded returns a container with its devices already encoded, as unknown fields, which protobuf sends unchanged.
func encoded(name string, devices []*v1.ContainerDevices) *v1.ContainerResources {
	raw, err := proto.Marshal(&v1.ContainerResources{Devices: devices})
	if err != nil {
		return &v1.ContainerResources{Name: name, Devices: devices} // encoding the response fails with the same error
	}
	c := &v1.ContainerResources{Name: name}
	c.ProtoReflect().SetUnknown(raw)
	return c
}

// devicesOf returns one entry for each device and NUMA node, as the kubelet does. It never groups devices.
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

// appendDevice appends the entries of one device. A device without a NUMA node has no topology, since some readers take an empty
// topology for node 0.
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

// alphaEntry returns a pod in v1alpha1: without sidecars and topology.
func alphaEntry(p *device.PodAllocation) *v1alpha1.PodResources {
	e := &v1alpha1.PodResources{Name: p.Pod.Name, Namespace: p.Pod.Namespace}
	for _, name := range p.Containers[p.Sidecars:] {
		as, _ := p.Of(name)
		e.Containers = append(e.Containers, &v1alpha1.ContainerResources{Name: name, Devices: alphaDevices(devicesOf(as))})
	}
	return e
}

func alphaDevices(devices []*v1.ContainerDevices) []*v1alpha1.ContainerDevices {
	return lists.Map(devices, func(d *v1.ContainerDevices) *v1alpha1.ContainerDevices {
		return &v1alpha1.ContainerDevices{ResourceName: d.ResourceName, DeviceIds: d.DeviceIds}
	})
}

// allocatable returns the devices that a container may be assigned now or later: healthy, not cordoned unless in use, and of a
// plugin that is not lost.
func allocatable(resources device.Resources) []*v1.ContainerDevices {
	var all []*v1.ContainerDevices
	for _, r := range slices.Sorted(maps.Keys(resources.ByName)) {
		status := resources.ByName[r]
		if status.Offer == nil || status.Offer.State == device.Lost {
			continue
		}
		for _, d := range status.Offer.Inventory.Devices {
			if d.Healthy && !status.Withdrawn[d.ID] {
				all = appendDevice(all, r, d.ID, d.NUMA)
			}
		}
	}
	return all
}

// listed returns all devices that plugins list, healthy or not, by resource.
func listed(resources device.Resources) []*v1alpha1.ContainerDevices {
	var all []*v1alpha1.ContainerDevices
	offers := resources.Offers()
	for _, r := range slices.Sorted(maps.Keys(offers)) {
		if ids := lists.Map(offers[r].Inventory.Devices, func(d device.Device) string { return string(d.ID) }); len(ids) > 0 {
			all = append(all, &v1alpha1.ContainerDevices{ResourceName: string(r), DeviceIds: ids})
		}
	}
	return all
}
