package podresources

import (
	"slices"

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

// pod merges the entries of one pod.
func (m managedResources) pod(own, kubelets *v1.PodResources) *v1.PodResources {
	if kubelets == nil || own != nil && addsNothing(own, kubelets) {
		return own
	}
	p := &v1.PodResources{Name: kubelets.Name, Namespace: kubelets.Namespace, Containers: make([]*v1.ContainerResources, 0, len(kubelets.Containers))}
	for _, c := range kubelets.Containers {
		merged := &v1.ContainerResources{Name: c.Name, CpuIds: c.CpuIds, Memory: c.Memory, DynamicResources: ofOthers(c.DynamicResources)}
		merged.Devices = m.without(c.Devices)
		if o := containerOf(own, c.Name); o != nil {
			merged.Devices = append(merged.Devices, o.Devices...)
			merged.ProtoReflect().SetUnknown(o.ProtoReflect().GetUnknown())
		}
		p.Containers = append(p.Containers, merged)
	}
	for _, c := range own.GetContainers() {
		if containerOf(kubelets, c.Name) == nil {
			p.Containers = append(p.Containers, c)
		}
	}
	return p
}

// addsNothing reports whether the kubelet's entry only lists the pod's containers, as for most pods.
func addsNothing(own, kubelets *v1.PodResources) bool {
	return slices.EqualFunc(own.Containers, kubelets.Containers, func(o, c *v1.ContainerResources) bool {
		return o.Name == c.Name && len(c.Devices)+len(c.CpuIds)+len(c.Memory)+len(c.DynamicResources) == 0
	})
}

// without returns the devices of other resources.
func (m managedResources) without(devices []*v1.ContainerDevices) []*v1.ContainerDevices {
	return slices.DeleteFunc(slices.Clone(devices), func(d *v1.ContainerDevices) bool { return m.has(d.ResourceName) })
}

// ofOthers returns the claims' devices of other drivers than devmgrd. Those of devmgrd are among the container's devices: the kubelet lists
// all devices of a pod's claim for each container that uses a part of it.
func ofOthers(all []*v1.DynamicResource) (others []*v1.DynamicResource) {
	for _, claim := range all {
		kept := slices.DeleteFunc(slices.Clone(claim.ClaimResources), func(r *v1.ClaimResource) bool { return r.DriverName == device.DRADriver })
		switch {
		case len(kept) == len(claim.ClaimResources):
			others = append(others, claim)
		case len(kept) > 0:
			others = append(others, &v1.DynamicResource{ClaimName: claim.ClaimName, ClaimNamespace: claim.ClaimNamespace, ClaimResources: kept})
		}
	}
	return others
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
	p := &v1alpha1.PodResources{Name: kubelets.Name, Namespace: kubelets.Namespace}
	for _, c := range kubelets.Containers {
		merged := &v1alpha1.ContainerResources{Name: c.Name}
		for _, d := range c.Devices {
			if !m.has(d.ResourceName) {
				merged.Devices = append(merged.Devices, d)
			}
		}
		for _, o := range own.GetContainers() {
			if o.Name == c.Name {
				merged.Devices = append(merged.Devices, o.Devices...)
			}
		}
		p.Containers = append(p.Containers, merged)
	}
	return p
}
