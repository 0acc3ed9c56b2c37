package podresources

import (
	"slices"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A podKey is what both sides know a pod by: the protocol has no UID.
type podKey struct{ namespace, name string }

// ours are resources whose devices are ours to tell.
type ours map[device.ResourceName]bool

// resourcesOf returns the resources that plugins have offered us or that pods have from us.
func resourcesOf(b *device.Snapshot, offers map[device.ResourceName]device.Offer) ours {
	o := ours{}
	for r := range offers {
		o[r] = true
	}
	for _, h := range b.Pods {
		for _, as := range h.Assignments {
			for _, s := range as.Shares {
				o[s.Resource] = true
			}
		}
	}
	return o
}

func (o ours) has(resource string) bool { return o[device.ResourceName(resource)] }

// merge puts our devices into the kubelet's list. Pods that it does not list are ours alone: it has not heard of them yet, or
// does not answer. Neither side's messages are changed, since others read them, too.
func merge(mine, theirs []*v1.PodResources, o ours) []*v1.PodResources {
	if len(theirs) == 0 {
		return mine
	}
	left := make(map[podKey]*v1.PodResources, len(theirs))
	for _, p := range theirs {
		left[podKey{p.Namespace, p.Name}] = p
	}
	all := make([]*v1.PodResources, 0, max(len(mine), len(theirs)))
	for _, p := range mine {
		key := podKey{p.Namespace, p.Name}
		all = append(all, mergePod(p, left[key], o))
		delete(left, key)
	}
	if len(left) > 0 {
		for _, p := range theirs {
			if left[podKey{p.Namespace, p.Name}] != nil {
				all = append(all, mergePod(nil, p, o))
			}
		}
	}
	return all
}

// mergePod merges one pod; one side may be nil.
func mergePod(mine, theirs *v1.PodResources, o ours) *v1.PodResources {
	if theirs == nil || mine != nil && plain(mine, theirs) {
		return mine
	}
	p := &v1.PodResources{Name: theirs.Name, Namespace: theirs.Namespace, Containers: make([]*v1.ContainerResources, 0, len(theirs.Containers))}
	for _, c := range theirs.Containers {
		merged := &v1.ContainerResources{Name: c.Name, CpuIds: c.CpuIds, Memory: c.Memory, DynamicResources: c.DynamicResources}
		merged.Devices = foreign(c.Devices, o)
		if own := containerOf(mine, c.Name); own != nil {
			merged.Devices = append(merged.Devices, own.Devices...)
			merged.ProtoReflect().SetUnknown(own.ProtoReflect().GetUnknown())
		}
		p.Containers = append(p.Containers, merged)
	}
	for _, own := range mine.GetContainers() {
		if containerOf(theirs, own.Name) == nil {
			p.Containers = append(p.Containers, own)
		}
	}
	return p
}

// plain reports whether the kubelet has nothing to add to the pod, as with most pods.
func plain(mine, theirs *v1.PodResources) bool {
	return slices.EqualFunc(mine.Containers, theirs.Containers, func(own, c *v1.ContainerResources) bool {
		return own.Name == c.Name && len(c.Devices)+len(c.CpuIds)+len(c.Memory)+len(c.DynamicResources) == 0
	})
}

// foreign returns the devices that are not ours to tell.
func foreign(devices []*v1.ContainerDevices, o ours) []*v1.ContainerDevices {
	var all []*v1.ContainerDevices
	for _, d := range devices {
		if !o.has(d.ResourceName) {
			all = append(all, d)
		}
	}
	return all
}

func containerOf(p *v1.PodResources, name string) *v1.ContainerResources {
	for _, c := range p.GetContainers() {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// mergeAlpha is merge for v1alpha1, in which the kubelet lists pods that have ended, too.
func mergeAlpha(mine, theirs []*v1alpha1.PodResources, o ours) []*v1alpha1.PodResources {
	if len(theirs) == 0 {
		return mine
	}
	own := make(map[podKey]*v1alpha1.PodResources, len(mine))
	for _, p := range mine {
		own[podKey{p.Namespace, p.Name}] = p
	}
	all := make([]*v1alpha1.PodResources, 0, max(len(mine), len(theirs)))
	for _, p := range theirs {
		key := podKey{p.Namespace, p.Name}
		all = append(all, mergeAlphaPod(own[key], p, o))
		delete(own, key)
	}
	for _, p := range mine {
		if own[podKey{p.Namespace, p.Name}] != nil {
			all = append(all, p)
		}
	}
	return all
}

func mergeAlphaPod(mine, theirs *v1alpha1.PodResources, o ours) *v1alpha1.PodResources {
	p := &v1alpha1.PodResources{Name: theirs.Name, Namespace: theirs.Namespace}
	for _, c := range theirs.Containers {
		merged := &v1alpha1.ContainerResources{Name: c.Name}
		for _, d := range c.Devices {
			if !o.has(d.ResourceName) {
				merged.Devices = append(merged.Devices, d)
			}
		}
		for _, own := range mine.GetContainers() {
			if own.Name == c.Name {
				merged.Devices = append(merged.Devices, own.Devices...)
			}
		}
		p.Containers = append(p.Containers, merged)
	}
	return p
}
