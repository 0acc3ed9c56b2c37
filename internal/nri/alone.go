package nri

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks"
)

// Grants find what containers get by their claims, for CDI files: with them a container can be created while devmgrd is away.
type Grants struct {
	rules  Rules // nil: a plugin may grant anything
	checks func(namespace string) *hostchecks.Checks
}

// NewGrants returns Grants.
func NewGrants(rules Rules, log *slog.Logger) *Grants {
	return &Grants{rules, hostchecks.New(log).For}
}

// runtimePaths are where runtimes and the kubelet mount something in each container.
var runtimePaths = []string{
	"/proc", "/sys", "/sys/fs/cgroup", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/run", "/run/secrets", "/run/.containerenv",
	"/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
}

// Grants returns what a container gets by each request of its claims, as the hook would inject it. It fails where CDI files cannot say that: a file is for
// all containers of its request, sets a variable over the pod's own, and knows no annotations, arguments, or calls before the start.
func (g *Grants) Grants(ctx context.Context, st device.Readiness) (map[device.ClaimRequest]cdi.Grant, error) {
	as := st.Assignment
	may, err := permitted(g.rules, device.PodContainer{Pod: st.Pod, Name: as.Container.Name}, as.Shares)
	if err != nil {
		return nil, err
	}
	if no := tooLarge(as); no != nil {
		return nil, no
	}
	has := own{env: st.Demand.Env, mounts: map[string]bool{}}
	for _, at := range st.Demand.Volumes {
		has.mounts[at] = true
	}
	whole, conflicts := merge(as.Shares, has)
	if err := tellable(whole); err != nil {
		return nil, err
	}
	switch name, refers := refersTo(st.Demand.Refs, whole.Env); {
	case len(conflicts) > 0:
		return nil, fmt.Errorf("its resources set something differently: %s", conflicts[0])
	case len(whole.Annotations) > 0:
		return nil, fmt.Errorf("a device plugin grants the annotation %s", slices.Sorted(maps.Keys(whole.Annotations))[0])
	case refers:
		return nil, fmt.Errorf("its command refers to the device plugin's variable %s", name)
	case len(whole.Mounts) > 0 && st.OwnUsers:
		return nil, fmt.Errorf("it gets the mount %s in a user namespace of its own", whole.Mounts[0].ContainerPath)
	}
	all, host := map[device.ClaimRequest]cdi.Grant{}, g.checks(st.Pod.Namespace)
	for _, s := range as.Shares {
		by := st.Demand.Requests[s.Resource]
		switch {
		case len(by) == 0:
			return nil, fmt.Errorf("it has devices of %s without a claim", s.Resource)
		case len(by) > 1:
			return nil, fmt.Errorf("it has devices of %s by several requests", s.Resource)
		case s.PreStart:
			return nil, fmt.Errorf("the device plugin of %s prepares devices before each start", s.Resource)
		}
		of := all[by[0]]
		if err := add(ctx, host, may, &of, s, has, st.Fresh); err != nil {
			return nil, err
		}
		all[by[0]] = of
	}
	return all, nil
}

// refersTo returns the first of a container's references to a granted variable.
func refersTo(refs []string, granted map[string]string) (string, bool) {
	at := slices.IndexFunc(refs, func(name string) bool { _, is := granted[name]; return is })
	if at < 0 {
		return "", false
	}
	return refs[at], true
}

// add adds what the plugin of a resource has granted.
func add(ctx context.Context, host *hostchecks.Checks, may *permit, to *cdi.Grant, s device.Share, has own, fresh bool) error {
	grant, _ := merge([]device.Share{s}, has)
	for _, k := range slices.Sorted(maps.Keys(grant.Env)) {
		to.Edits.Env = append(to.Edits.Env, k+"="+grant.Env[k])
	}
	for _, m := range grant.Mounts {
		if err := addMount(ctx, host, may, to, m, fresh); err != nil {
			return err
		}
	}
	var nodes []*specs.DeviceNode
	for _, n := range grant.Nodes {
		found, err := checkHost(ctx, host, "device", n.HostPath, func() (hostDevices, error) { return hostDevicesAt(n.HostPath) })
		if err == nil {
			err = may.devices(n.HostPath, found)
		}
		if err != nil {
			return err
		}
		for i, one := range found.granted(n) {
			if has.mounts[one.path] {
				return fmt.Errorf("the pod has a volume at %s, where it gets a device node", one.path)
			}
			mode := fs.FileMode(one.mode)
			if to.Numbers == nil {
				to.Numbers = map[string]cdi.Number{}
			}
			if _, first := to.Numbers[one.path]; !first {
				to.Numbers[one.path] = cdi.Number{one.major, one.minor}
			}
			// The number is looked up when the container is created: the driver may have been loaded again.
			nodes = append(nodes, &specs.DeviceNode{
				Path: one.path, HostPath: filepath.Join(found.real, found.nodes[i].path), FileMode: &mode, UID: &one.uid, GID: &one.gid, Permissions: one.permissions,
			})
		}
	}
	slices.Reverse(nodes) // of those at one path the runtime takes the last, and plugins' first one wins; the permissions of all add up
	to.Edits.DeviceNodes = append(to.Edits.DeviceNodes, nodes...)
	if len(grant.CDI) > 0 {
		lacks, err := checkHost(ctx, host, "files of CDI devices", strings.Join(grant.CDI, ", "), func() (string, error) { return cdiLacks(cdiDirs, grant.CDI), nil })
		if err != nil {
			return err
		}
		if lacks != "" {
			return fmt.Errorf("%s", lacks)
		}
		to.Names = append(to.Names, grant.CDI...)
	}
	return nil
}

// addMount adds a mount of a plugin.
func addMount(ctx context.Context, host *hostchecks.Checks, may *permit, to *cdi.Grant, m device.Mount, fresh bool) error {
	at := filepath.Clean(m.ContainerPath)
	for _, of := range runtimePaths {
		if of == at || strings.HasPrefix(of, strings.TrimSuffix(at, "/")+"/") {
			return fmt.Errorf("it gets a mount at %s, which covers the runtime's %s", at, of)
		}
	}
	from, err := source(ctx, host, may, m, fresh)
	if err != nil {
		return err
	}
	to.Edits.Mounts = append(to.Edits.Mounts, &specs.Mount{HostPath: from, ContainerPath: at, Type: "bind", Options: mountOptions(m)})
	return nil
}

// contains reports whether a container's specification has what a grant adds. What CDI devices of a plugin set wins over it.
func contains(c containerView, g cdi.Grant) bool {
	exact := len(g.Names) == 0
	for _, e := range g.Edits.Env {
		name, value, _ := strings.Cut(e, "=")
		if is, set := c.env[name]; !set || exact && is != value {
			return false
		}
	}
	for _, m := range g.Edits.Mounts {
		if from, mounted := c.mounts[m.ContainerPath]; !mounted || exact && from != m.HostPath {
			return false
		}
	}
	return !slices.ContainsFunc(g.Edits.DeviceNodes, func(n *specs.DeviceNode) bool { _, has := c.nodes[n.Path]; return !has })
}

// renumbered reports whether a device node of a container has another number than the host's now: the driver was loaded again since the runtime has
// looked at it.
func renumbered(c containerView, g cdi.Grant) bool {
	for path, number := range g.Numbers {
		if c.nodes[path] != number && len(g.Names) == 0 {
			return true
		}
	}
	return false
}
