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
		devices := encoder{in: func(d *v1.ContainerDevices) proto.Message {
			return &v1.ContainerResources{Devices: []*v1.ContainerDevices{d}}
		}}
		devices.addAll(as)
		e.Containers[i] = &v1.ContainerResources{Name: name}
		addRaw(e.Containers[i], devices.raw)
	}
	return e
}

// An encoder has devices as they are sent, with one entry for each device and NUMA node as the kubelet does: it never groups devices.
// Messages with all these entries would take many times the memory that plugins.maxTotalBytes counts.
type encoder struct {
	in  func(*v1.ContainerDevices) proto.Message // returns a message with one entry
	raw []byte                                   // such messages, encoded one after the other: the encoding of one with all entries
}

// addAll adds a container's devices.
func (e *encoder) addAll(as device.Assignment) {
	for _, s := range as.Shares {
		for i, id := range s.IDs {
			var near []int
			if s.Near != nil {
				near = s.Near[i]
			}
			e.add(s.Resource, id, near)
		}
	}
}

// add adds one device. A device without a NUMA node has no topology, since some readers take an empty topology for node 0.
func (e *encoder) add(r device.ResourceName, id device.ID, near []int) {
	d := &v1.ContainerDevices{ResourceName: string(r), DeviceIds: []string{string(id)}}
	message := e.in(d)
	if len(near) == 0 {
		e.append(message)
		return
	}
	node := &v1.NUMANode{}
	d.Topology = &v1.TopologyInfo{Nodes: []*v1.NUMANode{node}}
	for _, n := range near {
		node.ID = int64(n)
		e.append(message)
	}
}

// append appends a message. One with an ID that is no UTF-8 cannot be sent, and no plugin can have listed it.
func (e *encoder) append(m proto.Message) {
	if raw, err := (proto.MarshalOptions{}).MarshalAppend(e.raw, m); err == nil {
		e.raw = raw
	}
}

// alphaEntry returns a pod in v1alpha1: without sidecars and topology.
func alphaEntry(p *device.PodAllocation) *v1alpha1.PodResources {
	e := &v1alpha1.PodResources{Name: p.Pod.Name, Namespace: p.Pod.Namespace}
	for _, name := range p.Containers[p.Sidecars:] {
		as, _ := p.Of(name)
		devices := encoder{in: func(d *v1.ContainerDevices) proto.Message {
			old := &v1alpha1.ContainerDevices{ResourceName: d.ResourceName, DeviceIds: d.DeviceIds}
			return &v1alpha1.ContainerResources{Devices: []*v1alpha1.ContainerDevices{old}}
		}}
		devices.addAll(as)
		c := &v1alpha1.ContainerResources{Name: name}
		addRaw(c, devices.raw)
		e.Containers = append(e.Containers, c)
	}
	return e
}

// allocatable returns the devices that a container may be assigned now or later, encoded for an AllocatableResourcesResponse: healthy, not
// cordoned unless in use, and of a plugin that is not lost.
func allocatable(resources device.Resources) []byte {
	all := encoder{in: func(d *v1.ContainerDevices) proto.Message {
		return &v1.AllocatableResourcesResponse{Devices: []*v1.ContainerDevices{d}}
	}}
	for _, r := range slices.Sorted(maps.Keys(resources.ByName)) {
		status := resources.ByName[r]
		if status.Offer == nil || status.Offer.State == device.Lost {
			continue
		}
		for _, d := range status.Offer.Inventory.Devices {
			if d.Healthy && !status.OutOfService[d.ID] {
				all.add(r, d.ID, d.NUMA)
			}
		}
	}
	return all.raw
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
