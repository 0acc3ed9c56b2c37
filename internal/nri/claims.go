package nri

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// Containers get devices of claims by CDI devices, which the kubelet has the runtime give them (package cdi). So the kubelet's mapping decides, and
// devmgrd's own is compared with it here: a container is created if both say the same, and what the runtime made of the CDI devices is what the
// plugin has granted. Where a request has a guard, the hook injects the container's devices as those of any other, and removes the guard.

// ClaimFiles are the CDI files of claims. Their methods return at once.
type ClaimFiles interface {
	// File returns what the file of a request says.
	File(device.ClaimRequest) (cdi.File, bool)
	// Devices returns the devices of CDI devices, by the files.
	Devices(names []string) map[device.ResourceName][]device.ID
	// SetHook says whether the hook sees the containers that the runtime creates, and which process the runtime is; 0: not known.
	SetHook(now cdi.Hook, runtime int32)
	// Used has files written again, so that the runtime looks at the host's device nodes again.
	Used(...device.ClaimRequest)
	// Outdated has a container's files compared with what it gets now.
	Outdated(device.Container)
}

// A containerView is what the specification of a container has.
type containerView struct {
	env    map[string]string
	mounts map[string]string // sources by destination
	nodes  map[string]cdi.Number
}

func viewOf(ctr *api.Container) containerView {
	v := containerView{map[string]string{}, map[string]string{}, map[string]cdi.Number{}}
	for _, e := range ctr.GetEnv() {
		name, value, _ := strings.Cut(e, "=")
		v.env[name] = value
	}
	for _, m := range ctr.GetMounts() {
		v.mounts[m.GetDestination()] = m.GetSource()
	}
	for _, d := range ctr.GetLinux().GetDevices() {
		v.nodes[d.GetPath()] = cdi.Number{d.GetMajor(), d.GetMinor()}
	}
	return v
}

// guards returns the requests whose guards are in a container.
func guards(ctr *api.Container) (all []device.ClaimRequest) {
	for _, m := range ctr.GetMounts() {
		if of, is := cdi.Guarded(m.GetDestination()); is {
			all = append(all, of)
		}
	}
	return all
}

// claimed returns the requests whose CDI devices the kubelet names for a container. The runtime may not show them.
func claimed(ctr *api.Container) (all []device.ClaimRequest) {
	for _, d := range ctr.GetCDIDevices() {
		if of, is := cdi.Request(d.GetName()); is {
			all = append(all, of)
		}
	}
	return all
}

// The names by which NVIDIA's runtime takes CDI devices after the hook has seen the container: a variable, and mounts at KIND=NAME or cdi/KIND/NAME below
// a directory (nvidia-container-toolkit, internal/config/image).
const (
	nvidiaVariable = "NVIDIA_VISIBLE_DEVICES"
	nvidiaMounts   = "/var/run/nvidia-container-devices/"
)

// namedOtherwise returns a CDI device of a claim that a container names by means that the kubelet does not use and an image or a pod may; empty: none.
func namedOtherwise(ctr *api.Container) (name, means string) {
	var values []string
	for key, value := range ctr.GetAnnotations() {
		if strings.HasPrefix(key, device.CDIAnnotations) {
			values = append(values, value)
		}
	}
	if name, is := claimIn(strings.Join(values, ",")); is {
		return name, "an annotation"
	}
	for _, e := range ctr.GetEnv() {
		if value, is := strings.CutPrefix(e, nvidiaVariable+"="); is {
			if name, is := claimIn(value); is {
				return name, "variable " + nvidiaVariable
			}
		}
	}
	for _, m := range ctr.GetMounts() {
		if below, is := strings.CutPrefix(path.Clean(m.GetDestination()), nvidiaMounts); is {
			below = strings.TrimPrefix(below, "cdi/")
			kind, at := path.Split(below)
			if name, is := claimIn(below + "," + strings.TrimSuffix(kind, "/") + "=" + at); is {
				return name, "a mount"
			}
		}
	}
	return "", ""
}

// claimIn returns a CDI device of a claim in a list with commas.
func claimIn(list string) (string, bool) {
	for name := range strings.SplitSeq(list, ",") {
		if _, is := cdi.Request(strings.TrimSpace(name)); is {
			return name, true
		}
	}
	return "", false
}

// namesClaims reports whether a container names CDI devices of claims in any way.
func namesClaims(ctr *api.Container) bool {
	otherwise, _ := namedOtherwise(ctr)
	return otherwise != "" || len(claimed(ctr)) > 0 || len(guards(ctr)) > 0
}

// checkClaims compares a container's requests, as devmgrd knows them, with what the kubelet has the runtime give to it. injected reports that the runtime
// has given it all that it gets, but for the CDI devices of the plugin that are missing. It fails if the container must not be created.
func (p *plugin) checkClaims(ctx context.Context, st device.Readiness, ctr *api.Container) (injected bool, missing []string, err error) {
	wants, named, guarded := st.Demand.ClaimRequests(), claimed(ctr), guards(ctr)
	if name, means := namedOtherwise(ctr); name != "" {
		return false, nil, device.Refuse(device.ClaimMismatch, nil, "%s of the container names the CDI device %s of a claim", means, device.Clip(name))
	}
	for _, of := range slices.Concat(named, guarded) {
		if !slices.Contains(wants, of) {
			return false, nil, device.Refuse(device.ClaimMismatch, nil, "the kubelet names devices of request %s of the ResourceClaim with UID %s for the container, and devmgrd has granted it none of them", of.Request, of.Claim)
		}
	}
	if len(wants) == 0 {
		return false, nil, nil
	}
	files := p.Claims
	if files == nil {
		return false, nil, device.Refuse(device.ClaimMismatch, nil, "the container has a ResourceClaim, and devmgrd does not serve claims")
	}
	if p.features.Load().showsCDI {
		for _, of := range wants {
			if !slices.Contains(named, of) {
				return false, nil, device.Refuse(device.ClaimMismatch, nil, "the kubelet does not give the container the devices of request %s of the ResourceClaim with UID %s: the pod's status does not fit to the claim, or the claim was prepared by another version of devmgrd; then restart the kubelet", of.Request, of.Claim)
			}
		}
	}
	var got map[device.ClaimRequest]cdi.Grant
	view := viewOf(ctr)
	for _, of := range wants {
		if slices.Contains(guarded, of) {
			continue
		}
		if got == nil {
			if got, err = p.grants.Grants(ctx, st); err != nil {
				p.Claims.Outdated(st.Assignment.Container)
				return false, nil, device.Refuse(device.Allocating, err, "the CDI file of the container's claim is being changed")
			}
		}
		switch file, there := files.File(of); {
		case !there || file.Guard || !file.Grant.Equal(got[of]):
			files.Outdated(st.Assignment.Container)
			return false, nil, device.Refuse(device.Allocating, nil, "the CDI file of the container's claim is being changed")
		case !contains(view, got[of]):
			return false, nil, device.Refuse(device.ClaimMismatch, nil, "the container lacks what the CDI device of request %s of the ResourceClaim with UID %s adds: the kubelet did not name it to %s, or CDI is off there (enable_cdi), or its cdi_spec_dirs lack dra.cdiDir",
				of.Request, of.Claim, p.features.Load().runtime)
		case renumbered(view, got[of]):
			files.Used(of)
			return false, nil, device.Refuse(device.Allocating, nil, "a device node of the container has another number since the runtime has looked at it")
		}
		missing = append(missing, p.lacks(ctx, st.Pod.Namespace, ctr, view, got[of].Names)...)
	}
	return len(guarded) == 0, missing, nil
}

// lacks returns those of a plugin's CDI devices that the runtime has not given to a container. A runtime that does not show which the kubelet named shows
// the device nodes and mounts that they add.
func (p *plugin) lacks(ctx context.Context, namespace string, ctr *api.Container, view containerView, names []string) (missing []string) {
	if len(names) == 0 {
		return nil
	}
	shown := lists.Map(ctr.GetCDIDevices(), (*api.CDIDevice).GetName)
	for _, name := range names {
		if slices.Contains(shown, name) {
			continue
		}
		if !p.features.Load().showsCDI {
			add, err := checkHost(ctx, p.hostChecks.ForHook(namespace), "CDI specifications of", name, func() (edits, error) { return cdiEdits(cdiDirs, []string{name}), nil })
			if err == nil && view.has(add) {
				continue
			}
		}
		missing = append(missing, name)
	}
	return missing
}

// has reports whether a container has all device nodes and mounts of edits, and these have any.
func (v containerView) has(add edits) bool {
	for _, n := range add.DeviceNodes {
		if _, is := v.nodes[n.Path]; !is {
			return false
		}
	}
	for _, m := range add.Mounts {
		if _, is := v.mounts[m.ContainerPath]; !is {
			return false
		}
	}
	return len(add.DeviceNodes)+len(add.Mounts) > 0
}

// foreignClaims fails if a container without devices of claims names some: the kubelet names none for it.
func foreignClaims(ctr *api.Container) error {
	if namesClaims(ctr) {
		return device.Refuse(device.ClaimMismatch, nil, "the container is to get CDI devices of kind %s, and devmgrd has granted it none", cdi.Kind)
	}
	return nil
}

// unguard removes the guards of a container, and leaves out CDI devices that the kubelet names as well.
func (p *plugin) unguard(ctx context.Context, to *api.ContainerAdjustment, st device.Readiness, ctr *api.Container) {
	for _, of := range guards(ctr) {
		to.RemoveMount(cdi.GuardPath(of))
	}
	if len(st.Demand.Requests) == 0 || len(to.CDIDevices) == 0 {
		return
	}
	missing := p.lacks(ctx, st.Pod.Namespace, ctr, viewOf(ctr), lists.Map(to.CDIDevices, (*api.CDIDevice).GetName))
	to.CDIDevices = slices.DeleteFunc(to.CDIDevices, func(d *api.CDIDevice) bool { return !slices.Contains(missing, d.GetName()) })
}

// alone returns the devices of a container that was created while devmgrd was away, with what its CDI devices say; nil: with nothing, as far as devmgrd
// knows.
func (p *plugin) alone(ctr *api.Container, c device.Container) map[device.ResourceName][]device.ID {
	if p.Claims == nil || len(guards(ctr)) > 0 {
		return nil
	}
	if named := claimed(ctr); len(named) > 0 {
		return p.Claims.Devices(lists.Map(ctr.GetCDIDevices(), (*api.CDIDevice).GetName))
	}
	if p.features.Load().showsCDI {
		return nil
	}
	st := p.Allocator.Readiness(c)
	wants, view := st.Demand.ClaimRequests(), viewOf(ctr)
	if st.State != device.Ready || len(wants) == 0 {
		return nil
	}
	for _, of := range wants {
		if file, there := p.Claims.File(of); !there || file.Guard || !contains(view, file.Grant) {
			return nil
		}
	}
	ids := map[device.ResourceName][]device.ID{}
	for _, s := range st.Assignment.Shares {
		ids[s.Resource] = s.IDs
	}
	return ids
}
