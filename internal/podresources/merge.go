package podresources

import (
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A podName identifies a pod in the protocol, which has no UIDs.
type podName struct{ namespace, name string }

// managedResources are the resources whose devices devmgrd assigns.
type managedResources map[device.ResourceName]bool

// managed returns the resources that plugins offer to devmgrd, or that pods have from it.
func managed(s *device.Snapshot, resources device.Resources) managedResources {
	all := managedResources{}
	for r, status := range resources.ByName {
		if status.Offer != nil {
			all[r] = true
		}
	}
	for _, p := range s.Pods {
		for _, as := range p.Assignments {
			for _, share := range as.Shares {
				all[share.Resource] = true
			}
		}
	}
	return all
}

func (m managedResources) has(resource string) bool { return m[device.ResourceName(resource)] }

// A podEntry is a pod's entry in either version.
type podEntry interface {
	comparable
	GetName() string
	GetNamespace() string
}

// merge adds devmgrd's own entries to the kubelet's; both merges the entries of one pod, one of which may be nil. Pods that the kubelet
// does not list are in the result too: it has not heard of them yet, or does not answer. merge changes no entry, since other requests
// share them.
func merge[P podEntry](own, kubelets []P, both func(own, kubelets P) P) []P {
	if len(kubelets) == 0 {
		return own
	}
	var none P
	rest := make(map[podName]P, len(kubelets))
	for _, p := range kubelets {
		rest[podName{p.GetNamespace(), p.GetName()}] = p
	}
	all := make([]P, 0, max(len(own), len(kubelets)))
	for _, p := range own {
		name := podName{p.GetNamespace(), p.GetName()}
		all = append(all, both(p, rest[name]))
		delete(rest, name)
	}
	if len(rest) == 0 {
		return all
	}
	for _, p := range kubelets {
		if rest[podName{p.GetNamespace(), p.GetName()}] != none {
			all = append(all, both(none, p))
		}
	}
	return all
}

// pod merges the entries of one pod: a copy of the kubelet's, with the fields of newer kubelets too, and devmgrd's devices in it.
func (m managedResources) pod(own, kubelets *v1.PodResources) *v1.PodResources {
	if kubelets == nil || own != nil && addsNothing(own, kubelets) {
		return own
	}
	p := proto.CloneOf(kubelets)
	for _, c := range p.Containers {
		c.Devices, c.DynamicResources = m.without(c.Devices), ofOthers(c.DynamicResources)
		if o := containerOf(own, c.Name); o != nil {
			addUnknown(c, o)
		}
	}
	for _, c := range own.GetContainers() {
		if containerOf(kubelets, c.Name) == nil {
			p.Containers = append(p.Containers, c)
		}
	}
	return p
}

// addUnknown appends the fields of from that this version does not know.
func addUnknown(to, from proto.Message) { addRaw(to, from.ProtoReflect().GetUnknown()) }

// addRaw appends encoded fields to a message. To protobuf they are unknown fields, which it sends unchanged.
func addRaw(to proto.Message, fields []byte) {
	t := to.ProtoReflect()
	t.SetUnknown(append(t.GetUnknown(), fields...))
}

// addsNothing reports whether the kubelet's entry only names the pod and its containers, as for most pods. Any other field, known or
// not, would add to its size.
func addsNothing(own, kubelets *v1.PodResources) bool {
	if len(own.Containers) != len(kubelets.Containers) {
		return false
	}
	size := field(len(kubelets.Name)) + field(len(kubelets.Namespace))
	for i, c := range kubelets.Containers {
		if c.Name != own.Containers[i].Name {
			return false
		}
		size += field(field(len(c.Name)))
	}
	return proto.Size(kubelets) == size
}

// field returns the encoded size of a message's field with this many bytes. Each number of a field fits into one byte.
func field(bytes int) int { return protowire.SizeTag(1) + protowire.SizeBytes(bytes) }

// without removes the devices that devmgrd assigns.
func (m managedResources) without(devices []*v1.ContainerDevices) []*v1.ContainerDevices {
	return slices.DeleteFunc(devices, func(d *v1.ContainerDevices) bool { return m.has(d.ResourceName) })
}

// ofOthers removes the claims' devices of the driver devmgrd.io, and claims without others. They are among the container's devices: the
// kubelet lists all devices of a pod's claim for each container that uses a part of it.
func ofOthers(claims []*v1.DynamicResource) []*v1.DynamicResource {
	return slices.DeleteFunc(claims, func(claim *v1.DynamicResource) bool {
		before := len(claim.ClaimResources)
		claim.ClaimResources = slices.DeleteFunc(claim.ClaimResources, func(r *v1.ClaimResource) bool { return r.DriverName == device.DRADriver })
		return before > 0 && len(claim.ClaimResources) == 0
	})
}

func containerOf(p *v1.PodResources, name string) *v1.ContainerResources {
	for _, c := range p.GetContainers() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// alphaPod merges the entries of one pod in v1alpha1.
func (m managedResources) alphaPod(own, kubelets *v1alpha1.PodResources) *v1alpha1.PodResources {
	if kubelets == nil {
		return own
	}
	p := proto.CloneOf(kubelets)
	for _, c := range p.Containers {
		c.Devices = slices.DeleteFunc(c.Devices, func(d *v1alpha1.ContainerDevices) bool { return m.has(d.ResourceName) })
		for _, o := range own.GetContainers() {
			if o.Name == c.Name {
				addUnknown(c, o)
			}
		}
	}
	return p
}
