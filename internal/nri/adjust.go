package nri

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks"
)

// adjust adds a container's assignment to the runtime's adjustment, and returns conflicts that it has settled. It fails with a
// *device.Refusal if a grant cannot be applied, or if the rules do not allow it.
func adjust(ctx context.Context, host *hostchecks.Checks, may *permit, to *api.ContainerAdjustment, st device.Readiness, ctr *api.Container, can features) ([]string, error) {
	if no := tooLarge(st.Assignment); no != nil {
		return nil, no
	}
	grant, conflicts := merge(st.Assignment.Shares, own{env: st.Demand.Env, mounts: volumes(ctr), annotations: ctr.GetAnnotations()})
	if err := tellable(grant); err != nil {
		return nil, err
	}
	in := newAdjustment(to)
	for _, k := range slices.Sorted(maps.Keys(grant.Env)) {
		if err := in.take("variable", 2*fieldSize+len(k)+len(grant.Env[k])); err != nil {
			return nil, err
		}
		to.AddEnv(k, grant.Env[k])
	}
	args, changed, err := expand(ctr.GetArgs(), st.Demand.Refs, grant.Env, in.left)
	if err != nil {
		return nil, device.Refuse(device.ContainerTooLarge, nil,
			"the container's arguments, now %d bytes, become too long where they refer to device plugins' variables as $(NAME): arguments and grants together may add %d bytes; refer to the variables less often",
			length(ctr.GetArgs()), maxAdded)
	}
	if changed {
		if !can.args {
			return nil, device.Refuse(device.PluginError, nil,
				"the container's command line refers to a device plugin's variable as $(NAME), which %s does not support through NRI (containerd 2.2 or CRI-O 1.34 or later is needed); let the command read the variable itself", can.runtime)
		}
		in.left -= max(0, length(args)-length(ctr.GetArgs()))
		to.SetArgs(args)
	}
	grant.CDI = slices.DeleteFunc(grant.CDI, func(name string) bool { // those that the pod has otherwise, once is enough
		return slices.ContainsFunc(ctr.GetCDIDevices(), func(d *api.CDIDevice) bool { return d.GetName() == name })
	})
	if len(grant.CDI) > 0 && !can.cdi {
		return nil, device.Refuse(device.PluginError, nil,
			"the device plugin grants CDI devices, which %s ignores in NRI answers (containerd 2.1 or CRI-O 1.34 or later is needed)", can.runtime)
	}
	for _, name := range grant.CDI {
		if err := in.take("CDI device", fieldSize+len(name)); err != nil {
			return nil, err
		}
		to.AddCDIDevice(&api.CDIDevice{Name: name})
	}
	var cdi edits // needed if a plain grant may name the same path
	if len(grant.CDI) > 0 && len(grant.Nodes)+len(grant.Mounts) > 0 {
		var err error
		cdi, err = checkHost(ctx, host, "CDI specifications of", strings.Join(grant.CDI, ", "), func() (edits, error) { return cdiEdits(cdiDirs, grant.CDI), nil })
		if err != nil {
			return nil, err
		}
	}
	if err := addMounts(ctx, host, may, in, grant.Mounts, ctr, can, cdi, st.Fresh); err != nil {
		return nil, err
	}
	if err := addNodes(ctx, host, may, in, grant.Nodes, ctr, can, cdi); err != nil {
		return nil, err
	}
	for _, k := range slices.Sorted(maps.Keys(grant.Annotations)) {
		if err := in.take("annotation", 2*fieldSize+len(k)+len(grant.Annotations[k])); err != nil {
			return nil, err
		}
		to.AddAnnotation(k, grant.Annotations[k])
	}
	to.AddAnnotation(stampKey, stamp(st.Assignment))
	return conflicts, nil
}

// tooLarge returns a refusal if a container's grants exceed the limit for plugins' answers, as grants in state files of earlier
// versions may. The plugin then has to grant the devices again, as after a grant whose device node or mount source is missing on
// the host.
func tooLarge(as device.Assignment) *device.Refusal {
	var all device.Grants
	all.Add(as.Shares...)
	if no := all.CheckContainer(as.Container.Name); no != nil {
		return device.Refuse(device.PluginError, errLapsed, "%s", no.Message)
	}
	return nil
}

// errLapsed is the cause of a refusal that ends when the device plugin has granted the devices again.
var errLapsed = errors.New("the plugin is asked again")

// tellable fails if NRI would read a granted name as the order to remove another entry.
func tellable(grant device.Grant) error {
	for what, all := range map[string]map[string]string{"environment variable": grant.Env, "annotation": grant.Annotations} {
		for k := range all {
			if _, marked := api.IsMarkedForRemoval(k); marked {
				return device.Refuse(device.PluginError, nil, "the device plugin grants the %s %.300q, but NRI does not support a name that begins with -", what, k)
			}
		}
	}
	return nil
}

// addMounts adds mounts. It removes the runtime's own mounts below them: the runtime sorts its list so that those come first and
// are covered. fresh: the plugin granted the mounts for this start, and devmgrd creates missing sources. Sources that were granted
// for an earlier start existed then, and have to exist.
func addMounts(ctx context.Context, host *hostchecks.Checks, may *permit, to *adjustment, granted []device.Mount, ctr *api.Container, can features, cdi edits, fresh bool) error {
	covered := map[string]bool{}
	for _, m := range granted {
		if cdi.covers(m.ContainerPath) {
			continue
		}
		if hasUserNamespace(ctr) && !can.idmap {
			return device.Refuse(device.PluginError, nil,
				"the device plugin grants the mount %s to a container with a user namespace of its own, which %s does not support (containerd 2.0 or CRI-O 1.30 or later is needed)", m.ContainerPath, can.runtime)
		}
		from, err := source(ctx, host, may, m, fresh)
		if err != nil {
			return err
		}
		at := filepath.Clean(m.ContainerPath)
		mount := mapped(ctr, &api.Mount{Destination: at, Type: "bind", Source: from, Options: mountOptions(m)})
		if err := to.take("mount", mount.SizeVT()); err != nil {
			return err
		}
		to.AddMount(mount)
		for _, o := range ctr.GetMounts() {
			if (o.GetType() != "bind" || ofSandbox(ctr, o, crioFiles)) && strings.HasPrefix(o.GetDestination(), at+"/") {
				covered[o.GetDestination()] = true
			}
		}
	}
	for _, m := range granted {
		delete(covered, filepath.Clean(m.ContainerPath)) // in whose place there is a mount now
	}
	for _, at := range slices.Sorted(maps.Keys(covered)) {
		if err := to.take("mount", 2*fieldSize+len(at)); err != nil {
			return err
		}
		to.RemoveMount(at)
	}
	return nil
}

// source returns where a mount's source is on the host, links resolved. fresh: the plugin granted the mount for this start, and a missing source is created.
func source(ctx context.Context, host *hostchecks.Checks, may *permit, m device.Mount, fresh bool) (string, error) {
	what, look := hostchecks.MountSource, existing
	if fresh {
		what, look = "new mount source", sourceAt
	}
	if fresh && may != nil { // before a source is made elsewhere, through a link
		there, err := checkHost(ctx, host, "place of mount source", m.HostPath, func() (string, error) { return wouldBe(m.HostPath) })
		if err != nil {
			return "", err
		}
		if err := may.mount(m.HostPath, there); err != nil {
			return "", err
		}
	}
	from, err := checkHost(ctx, host, what, m.HostPath, func() (string, error) { return look(m.HostPath) })
	if err != nil {
		return "", err
	}
	return from, may.mount(m.HostPath, from)
}

// mountOptions returns the options of a mount. The propagation is always set: otherwise NRI copies the propagation of another mount.
func mountOptions(m device.Mount) []string {
	access := "rw"
	if m.ReadOnly {
		access = "ro"
	}
	return []string{"rbind", "rprivate", access}
}

// mapped makes the OCI runtime map the owners of a mount's files into the container's user namespace, if it has one of its own.
// Unmapped, the files of the host's root belong to no user of the container. The kubelet sets the mappings of all mounts in the CRI, and
// NRI does not carry them: the option stands for the mappings of the namespace. As with the kubelet, mounts below the source stay unmapped.
func mapped(ctr *api.Container, m *api.Mount) *api.Mount {
	if hasUserNamespace(ctr) && !slices.Contains(m.Options, "idmap") {
		m.Options = append(m.Options, "idmap")
	}
	return m
}

// hasUserNamespace reports whether a container runs in another user namespace than the runtime: its specification then names one.
func hasUserNamespace(ctr *api.Container) bool {
	return slices.ContainsFunc(ctr.GetLinux().GetNamespaces(), func(n *api.LinuxNamespace) bool { return n.GetType() == "user" })
}

// addNodes adds device nodes and the access to them. For each node NRI adds a rule that allows reading and writing, while the
// kubelet's answer has a rule with the granted permissions. The rules of one device add up: those of all its nodes, of CDI devices,
// and of the container itself. Where NRI's rule allows more than their sum, addNodes appends two rules: deny all, then allow the
// sum. Where it allows less, one rule adds the missing permissions.
func addNodes(ctx context.Context, host *hostchecks.Checks, may *permit, to *adjustment, granted []device.Node, ctr *api.Container, can features, cdi edits) error {
	has, sum := map[number]string{}, map[number]string{}
	for _, n := range cdi.DeviceNodes {
		if at, permissions, ok := n.rule(ctx, host); ok {
			has[at], sum[at] = both(has[at], permissions), both(sum[at], permissions)
		}
	}
	added, met := map[string]bool{}, map[number]bool{}
	var order []node // one of each number
	for _, g := range granted {
		found, err := checkHost(ctx, host, "device", g.HostPath, func() (hostDevices, error) { return hostDevicesAt(g.HostPath) })
		if err != nil {
			return err
		}
		if err := may.devices(g.HostPath, found); err != nil {
			return err
		}
		for _, n := range found.granted(g) {
			if !met[n.number] {
				met[n.number], order = true, append(order, n)
				anyway := allowed(ctr, n.number)
				has[n.number], sum[n.number] = both(has[n.number], anyway), both(sum[n.number], anyway)
			}
			sum[n.number] = both(sum[n.number], n.permissions)
			if added[n.path] || cdi.has(n.path) {
				continue // of plain nodes the first one wins, and a CDI device's over all of them
			}
			added[n.path] = true
			d := &api.LinuxDevice{
				Path: n.path, Type: n.kind, Major: n.major, Minor: n.minor,
				Uid: api.UInt32(n.uid), Gid: api.UInt32(n.gid),
			}
			if !can.crio { // it creates the kubelet's device nodes without a mode too: any user of the container may open them
				d.FileMode = api.FileMode(n.mode)
			}
			if err := to.take("device node", d.SizeVT()); err != nil {
				return err
			}
			to.AddDevice(d)
			has[n.number] = both(has[n.number], d.AccessString())
		}
	}
	for _, n := range order {
		switch want := sum[n.number]; {
		case strings.Trim(has[n.number], want+"m") != "": // any container may make nodes: that cannot be withheld
			if !can.rules {
				return device.Refuse(device.PluginError, nil, "the device plugin grants %s with the permissions %q only, which %s does not support through NRI (containerd 2.2 or CRI-O 1.34 or later is needed)",
					n.path, want, can.runtime)
			}
			if err := to.take("rule of a device", 2*ruleSize); err != nil {
				return err
			}
			addRule(to.ContainerAdjustment, n.number, false, "rwm")
			addRule(to.ContainerAdjustment, n.number, true, want)
		case strings.Trim(want, has[n.number]) != "" && !can.rules:
			if missing := strings.Trim(want, has[n.number]+"m"); missing != "" { // such as of a node with a CDI device at its path
				return device.Refuse(device.PluginError, nil, "the device plugin grants %s, but another grant is at its path in the container, and %s supports no permission %q without a node (containerd 2.2 or CRI-O 1.34 or later is needed)",
					n.path, can.runtime, missing)
			}
		case strings.Trim(want, has[n.number]) != "":
			if err := to.take("rule of a device", ruleSize); err != nil {
				return err
			}
			addRule(to.ContainerAdjustment, n.number, true, want)
		}
	}
	return nil
}

// ruleSize is the largest encoded size of a device rule.
const ruleSize = 48

func addRule(to *api.ContainerAdjustment, n number, allow bool, access string) {
	if to.Linux == nil {
		to.Linux = &api.LinuxContainerAdjustment{}
	}
	if to.Linux.Resources == nil {
		to.Linux.Resources = &api.LinuxResources{}
	}
	to.Linux.Resources.Devices = append(to.Linux.Resources.Devices, &api.LinuxDeviceCgroup{
		Allow: allow, Type: n.kind, Major: api.Int64(n.major), Minor: api.Int64(n.minor), Access: access,
	})
}

// allowed returns the permissions that the container's own rules give it for a device. A privileged container has a rule that
// allows all.
func allowed(ctr *api.Container, n number) string {
	sum := ""
	for _, r := range ctr.GetLinux().GetResources().GetDevices() {
		if r.GetAllow() && (r.GetType() == "" || r.GetType() == "a" || r.GetType() == n.kind) &&
			(r.GetMajor() == nil || r.GetMajor().GetValue() == n.major) && (r.GetMinor() == nil || r.GetMinor().GetValue() == n.minor) {
			sum = both(sum, r.GetAccess())
		}
	}
	return sum
}

// both returns the letters of r, w and m that are in a or b.
func both(a, b string) string {
	return strings.Map(func(letter rune) rune {
		if strings.ContainsRune(a+b, letter) {
			return letter
		}
		return -1
	}, "rwm")
}

// volumes returns the destinations of the pod's volumes, and of the files that the kubelet mounts into every pod: they win over a
// plugin's mounts. The runtime's own file systems (proc, tmpfs) do not, nor do the sandbox's files, which containerd mounts only at
// destinations without another mount.
func volumes(ctr *api.Container) map[string]bool {
	all := make(map[string]bool, len(ctr.GetMounts()))
	for _, m := range ctr.GetMounts() {
		if m.GetType() == "bind" && !ofSandbox(ctr, m, containerdFiles) && !ofSandbox(ctr, m, crioFiles) {
			all[filepath.Clean(m.GetDestination())] = true
		}
	}
	return all
}

// Directories with one for each sandbox, in which runtimes keep its files, such as resolv.conf.
const (
	containerdFiles = "/sandboxes/"
	crioFiles       = "/overlay-containers/"
)

// ofSandbox reports whether a mount's source is in the directory of the container's sandbox.
func ofSandbox(ctr *api.Container, m *api.Mount, dir string) bool {
	return strings.Contains(m.GetSource(), dir+ctr.GetPodSandboxId()+"/")
}

// An adjustment is an answer under construction that never exceeds its limit.
type adjustment struct {
	*api.ContainerAdjustment
	left int // bytes that may still be added
}

func newAdjustment(to *api.ContainerAdjustment) *adjustment { return &adjustment{to, maxAdded} }

// fieldSize is the encoded size of an entry's tag and length.
const fieldSize = 6

// take counts an entry before it is added, and returns a refusal if the limit is exceeded.
func (d *adjustment) take(what string, bytes int) error {
	d.left -= bytes + fieldSize
	if d.left < 0 {
		return device.Refuse(device.PluginError, nil,
			"the device plugins' answers add more than %d bytes to the container's specification, at a %s: a device plugin grants too much", maxAdded, what)
	}
	return nil
}
