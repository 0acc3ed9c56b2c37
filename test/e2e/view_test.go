//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/cluster/images/report"
)

// A view is all that a container sees and all that its runtime was told, one fact a line, in ascending order, without
// what differs between any two pods.
type view []string

// look returns the view of a pod's container, which has ended.
func (r *harness) look(ctx context.Context, pod *corev1.Pod, name string) (view, error) {
	i := slices.IndexFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("pod %s has no container %s", pod.Name, name)
	}
	got, err := r.ContainerReport(ctx, pod.Name, name)
	if err != nil {
		return nil, err
	}
	_, id, _ := strings.Cut(pod.Status.ContainerStatuses[i].ContainerID, "://")
	container, err := r.Containers.Container(ctx, id)
	if err != nil {
		return nil, err
	}
	lines := append(inside(got), outside(container.Spec)...)
	same := anonymous(pod, id, container.Sandbox)
	for i := range lines {
		lines[i] = same(lines[i])
	}
	slices.Sort(lines)
	return lines, nil
}

// anonymous returns what takes the names of a pod and its container out of a text.
func anonymous(pod *corev1.Pod, container, sandbox string) func(string) string {
	names := strings.NewReplacer(
		pod.Name, "POD", string(pod.UID), "UID", container, "CONTAINER", sandbox, "SANDBOX",
		byKubelet+"/", "DOMAIN/", byDevmgrd+"/", "DOMAIN/",
	)
	return func(text string) string {
		text = terminationLog.ReplaceAllString(names.Replace(text), "$1/LOG")
		return namespace.ReplaceAllString(text, "/proc/PID/ns/")
	}
}

var (
	terminationLog = regexp.MustCompile(`(/UID/containers/[^/]+)/[0-9a-f]{8}\b`) // a name that the kubelet draws by lot
	namespace      = regexp.MustCompile(`/proc/[0-9]+/ns/`)
)

// inside is what the container's process sees.
func inside(got report.Report) view {
	var all view
	add := func(format string, args ...any) {
		all = append(all, strings.TrimRight(fmt.Sprintf(format, args...), " "))
	}
	for i, arg := range got.Args {
		add("arg %d %s", i, arg)
	}
	for _, variable := range got.Environ { // in no order: the kubelet's own is random
		add("env %s", variable)
	}
	for _, d := range got.Devices {
		add("device %s %s %d:%d %#o %d:%d", d.Path, d.Type, d.Major, d.Minor, d.Mode, d.UID, d.GID)
	}
	for _, f := range got.Files {
		add("file %s %#o %d:%d %s %s", f.Path, f.Mode, f.UID, f.GID, f.Number, f.Link)
	}
	for i, m := range got.Mounts {
		covered := slices.ContainsFunc(got.Mounts[i+1:], func(o report.Mount) bool {
			return o.Point == m.Point || o.Point != "/" && strings.HasPrefix(m.Point, o.Point+"/")
		})
		if covered {
			continue
		}
		peers := make([]string, len(m.Peers)) // shared or not; the kernel's number says with which
		for i, p := range m.Peers {
			peers[i], _, _ = strings.Cut(p, ":")
		}
		add("mount %s %v %v of %s %s %s", m.Point, m.Options, peers, m.FSType, m.Source, path.Clean(m.Root))
	}
	for _, o := range got.Opened {
		add("open %s for %s: %s", o.Path, o.How, cmp.Or(o.Error, "opened"))
	}
	return append(all, rules(got.Allowed)...)
}

// rules are the devices cgroup's. Every container may make nodes of all devices, by a rule that runc adds for all containers,
// so what the rules of single devices say of that has no meaning.
func rules(list []string) view {
	var all view
	for _, rule := range list {
		device, access, _ := strings.Cut(rule, " ")
		number, access, _ := strings.Cut(access, " ")
		if number != "*:*" && slices.Contains(list, device+" *:* m") {
			access = strings.Trim(access, "m")
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("rule %s %s %s", device, number, access)))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// outside is what the runtime was told and the process cannot see: all but what is looked at inside.
func outside(spec map[string]any) view {
	var all view
	for k, v := range spec["annotations"].(map[string]any) {
		all = append(all, fmt.Sprintf("annotation %s=%v", k, v))
	}
	spec = maps.Clone(spec)
	delete(spec, "annotations")
	delete(spec, "mounts")
	delete(spec["process"].(map[string]any), "env")
	linux := spec["linux"].(map[string]any)
	delete(linux, "devices")
	for _, mappings := range []string{"uidMappings", "gidMappings"} { // each pod with a user namespace has host IDs of its own
		delete(linux, mappings)
	}
	delete(linux["resources"].(map[string]any), "devices")
	return append(all, flat("spec", spec)...)
}

// flat makes a line of each value of a document.
func flat(at string, value any) view {
	var all view
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			all = append(all, flat(at+"."+k, v)...)
		}
	case []any:
		for i, v := range value {
			all = append(all, flat(fmt.Sprintf("%s.%d", at, i), v)...)
		}
	default:
		all = append(all, fmt.Sprintf("%s=%v", at, value))
	}
	return all
}

// differences returns what one view has and the other has not: "-" before what is only in the first, "+" before what is
// only in the second.
func differences(first, second view) []string {
	var all []string
	for _, side := range []struct {
		sign    string
		of, not view
	}{{"-", first, second}, {"+", second, first}} {
		rest := slices.Clone(side.not)
		for _, line := range side.of {
			if i := slices.Index(rest, line); i >= 0 {
				rest = slices.Delete(rest, i, i+1)
			} else {
				all = append(all, side.sign+line)
			}
		}
	}
	return all
}
