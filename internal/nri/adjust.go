package nri

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
)

// stampKey is the annotation that tells which devices a container got. The runtime keeps it with the container and shows
// it again after a restart of either side: a second copy of the books that no crash can take away.
const stampKey = "devmgrd.io/assignment"

// adjust puts a container's assignment into the runtime's words. It fails with a *device.Refusal if something that was
// granted cannot be given, and tells of conflicts that it has settled.
func adjust(ctx context.Context, to *api.ContainerAdjustment, as device.Assignment, env []string, ctr *api.Container, can abilities) ([]string, error) {
	grant, conflicts := merge(as.Shares, own{env: env, mounts: volumes(ctr), annotations: ctr.GetAnnotations()})
	for _, k := range slices.Sorted(maps.Keys(grant.Env)) {
		to.AddEnv(k, grant.Env[k])
	}
	for _, m := range grant.Mounts {
		from, err := source(m)
		if err != nil {
			return nil, err
		}
		access := "rw"
		if m.ReadOnly {
			access = "ro"
		}
		// The propagation is said always: NRI would carry that of another mount over.
		to.AddMount(&api.Mount{Destination: m.ContainerPath, Type: "bind", Source: from, Options: []string{"rbind", "rprivate", access}})
	}
	if err := addNodes(ctx, to, grant.Nodes, ctr, can); err != nil {
		return nil, err
	}
	if len(grant.CDI) > 0 && !can.cdi {
		return nil, device.Refuse(device.PluginError, nil,
			"the device plugin grants CDI devices, which %s ignores when they come through NRI (containerd 2.1 or later is needed)", can.runtime)
	}
	for _, name := range grant.CDI {
		to.AddCDIDevice(&api.CDIDevice{Name: name})
	}
	for _, k := range slices.Sorted(maps.Keys(grant.Annotations)) {
		to.AddAnnotation(k, grant.Annotations[k])
	}
	to.AddAnnotation(stampKey, stamp(as))
	return conflicts, nil
}

// addNodes adds device nodes with the access that was granted. NRI's own rule for a node is always to read and write,
// so where less was granted two rules are put after it: nothing at all, then what was granted.
func addNodes(ctx context.Context, to *api.ContainerAdjustment, granted []device.Node, ctr *api.Container, can abilities) error {
	added := map[string]bool{}
	for _, g := range granted {
		found, err := nodes(ctx, g)
		if err != nil {
			return err
		}
		for _, n := range found {
			if added[n.path] {
				continue // the first one wins, as within the kubelet's answer
			}
			added[n.path] = true
			to.AddDevice(&api.LinuxDevice{
				Path: n.path, Type: n.kind, Major: n.major, Minor: n.minor,
				FileMode: api.FileMode(n.mode), Uid: api.UInt32(n.uid), Gid: api.UInt32(n.gid),
			})
			if strings.Contains(n.permissions, "r") && strings.Contains(n.permissions, "w") || privileged(ctr) {
				continue
			}
			if !can.rules {
				return device.Refuse(device.PluginError, nil, "the device plugin grants %s with the permissions %q only, which %s cannot be told through NRI (containerd 2.2 or later is needed)",
					g.HostPath, n.permissions, can.runtime)
			}
			if to.Linux.Resources == nil {
				to.Linux.Resources = &api.LinuxResources{}
			}
			to.Linux.Resources.Devices = append(to.Linux.Resources.Devices, rule(n, false, "rwm"), rule(n, true, n.permissions))
		}
	}
	return nil
}

func rule(n node, allow bool, access string) *api.LinuxDeviceCgroup {
	return &api.LinuxDeviceCgroup{Allow: allow, Type: n.kind, Major: api.Int64(n.major), Minor: api.Int64(n.minor), Access: access}
}

// privileged tells whether the container may use every device anyway: it has a rule that allows all. Rules that deny
// would take that from it.
func privileged(ctr *api.Container) bool {
	return slices.ContainsFunc(ctr.GetLinux().GetResources().GetDevices(), func(r *api.LinuxDeviceCgroup) bool {
		return r.GetAllow() && r.GetMajor() == nil && r.GetMinor() == nil && r.GetAccess() == "rwm"
	})
}

// volumes gives the destinations of the pod's volumes, and of the files that the runtime gives to every pod. They win
// over a plugin's mounts; the runtime's own file systems (proc, tmpfs and so on) do not.
func volumes(ctr *api.Container) map[string]bool {
	all := make(map[string]bool, len(ctr.GetMounts()))
	for _, m := range ctr.GetMounts() {
		if m.GetType() == "bind" {
			all[m.GetDestination()] = true
		}
	}
	return all
}

// stamp gives the value of our annotation: {"vendor.com/dev":["id1","id2"]}.
func stamp(as device.Assignment) string {
	ids := map[device.ResourceName][]device.ID{}
	for _, s := range as.Shares {
		ids[s.Resource] = s.IDs
	}
	text, err := json.Marshal(ids)
	if err != nil {
		panic(err) // strings can be marshalled
	}
	return string(text)
}

// stamped reads our annotation back: nil if there is none, or none of ours.
func stamped(annotations map[string]string) map[device.ResourceName][]device.ID {
	var ids map[device.ResourceName][]device.ID
	if json.Unmarshal([]byte(annotations[stampKey]), &ids) != nil {
		return nil
	}
	return ids
}
