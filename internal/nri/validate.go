package nri

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/protobuf/proto"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// ValidateContainerAdjustment is the runtime's last call about a container, with the adjustment of all NRI plugins. It fails if a
// later plugin has removed or replaced an entry of devmgrd's answer. It looks up nothing: the answer was right when it was given,
// and the container has counted as running since then. A runtime that has dropped devmgrd during CreateContainer, because it was
// killed or late, calls this handler too, gets no answer, and does not create the container without its devices.
func (p *plugin) ValidateContainerAdjustment(_ context.Context, req *api.ValidateContainerAdjustmentRequest) (err error) {
	defer p.hook("ValidateContainerAdjustment")()
	defer p.survive("ValidateContainerAdjustment", &err)
	ours, asked := p.answers.take(req.GetContainer().GetId())
	var why string
	if lost := altered(ours, req); len(lost) > 0 {
		why = "other NRI plugins have removed or replaced entries of devmgrd: " + strings.Join(lists.First(lost, maxNamed), ", ") +
			"; remove these plugins, or let them answer before devmgrd (nri.index)"
	} else if !asked {
		why = "the container runtime did not call devmgrd for the container's devices; it will when it creates the container again"
	} else {
		p.attempts.passed(running(req.GetPod(), req.GetContainer()).Container, req.GetContainer().GetId())
		return nil
	}
	p.attempts.explain(running(req.GetPod(), req.GetContainer()).Container) // this reason replaces an earlier one
	pod, name := identity(req.GetPod()), nameOf(req.GetContainer())
	p.metrics.refused(device.Overruled)
	p.Allocator.Refused(device.Container{Pod: pod.UID, Name: name}, device.Wait{Reason: device.Overruled, Message: why}, false)
	p.Log.Warn("container refused", "pod", pod.String(), "container", name, "reason", device.Overruled, "err", why)
	return fmt.Errorf("devmgrd: container %s of pod %s cannot start yet: %s: %s", name, pod, device.Overruled, why)
}

// altered names the entries of devmgrd's answer that other plugins have changed, and these plugins. It leaves out the command line,
// since wrappers do not change devices. NRI names changed variables without their values.
func altered(ours *api.ContainerAdjustment, req *api.ValidateContainerAdjustmentRequest) (lost []string) {
	if ours == nil {
		return nil
	}
	id, all, owners := req.GetContainer().GetId(), req.GetAdjust(), req.GetOwners()
	if owners == nil {
		owners = api.NewOwningPlugins()
	}
	tell := func(what string, keys []string, owner func(id, key string) (string, bool)) {
		for _, key := range keys {
			by, _ := owner(id, key)
			by, _ = api.IsMarkedForRemoval(by) // so is the owner of what has been taken away
			if by != "" && !strings.HasSuffix(by, "-"+pluginName) {
				key += " (by " + by + ")"
			}
			lost = append(lost, what+" "+key)
		}
	}
	var annotations []string
	for _, k := range slices.Sorted(maps.Keys(ours.GetAnnotations())) {
		now, there := all.GetAnnotations()[k]
		_, removed := all.GetAnnotations()[api.MarkForRemoval(k)]
		if !there || removed || now != ours.Annotations[k] {
			annotations = append(annotations, k)
		}
	}
	tell("annotation", annotations, owners.AnnotationOwner)
	tell("environment variable", changed(ours.GetEnv(), all.GetEnv(), (*api.KeyValue).GetKey), owners.EnvOwner)
	tell("mount", changed(ours.GetMounts(), all.GetMounts(), (*api.Mount).GetDestination), owners.MountOwner)
	tell("device node", changed(ours.GetLinux().GetDevices(), all.GetLinux().GetDevices(), (*api.LinuxDevice).GetPath), owners.DeviceOwner)
	tell("CDI device", changed(ours.GetCDIDevices(), all.GetCDIDevices(), (*api.CDIDevice).GetName), owners.CdiDeviceOwner)
	return lost
}

// maxNamed bounds the entries that one message or log line names.
const maxNamed = 8

// changed returns the keys whose values in ours and in all differ.
func changed[T proto.Message](ours, all []T, key func(T) string) (keys []string) {
	if len(ours) == 0 {
		return nil
	}
	now := make(map[string]T, len(all))
	for _, one := range all {
		now[key(one)] = one
	}
	for _, one := range ours {
		if other, there := now[key(one)]; !there || !proto.Equal(one, other) {
			keys = append(keys, key(one))
		}
	}
	slices.Sort(keys)
	return keys
}

// answers are devmgrd's answers for containers that are not validated yet, by their IDs.
type answers struct {
	mu  locks.Mutex[locks.Leaf]
	all map[string]*api.ContainerAdjustment
}

func (a *answers) put(id string, given *api.ContainerAdjustment) {
	a.mu.Lock()
	defer a.mu.Unlock()
	lists.Put(&a.all, id, given)
}

// take removes and returns an answer.
func (a *answers) take(id string) (given *api.ContainerAdjustment, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	given, ok = a.all[id]
	delete(a.all, id)
	return given, ok
}
