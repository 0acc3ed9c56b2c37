package nri

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// own are a container's own settings, with which grants of plugins may collide.
type own struct {
	env         []string        // variables that the pod's specification sets
	mounts      map[string]bool // destinations of the pod's volumes, cleaned
	annotations map[string]string
}

// merge merges a container's shares into one grant, as the kubelet's device manager does: the pod's own settings win, then the
// first share that sets a key, in the order of the resources (the kubelet's order is random). It returns conflicts between shares
// without the values, which may be secret.
func merge(shares []device.Share, has own) (device.Grant, []string) {
	g := device.Grant{Env: map[string]string{}, Annotations: map[string]string{}}
	var conflicts []string
	mounts, nodes, annotations := map[string]device.Mount{}, map[string]device.Node{}, map[string]string{}
	clash := func(s device.Share, what, key string) {
		conflicts = append(conflicts, fmt.Sprintf("%s %s of %s: another resource of the container sets it differently", what, key, s.Resource))
	}
	for _, s := range shares {
		for _, k := range slices.Sorted(maps.Keys(s.Grant.Env)) {
			v := s.Grant.Env[k]
			if _, found := slices.BinarySearch(has.env, k); found {
				continue
			}
			if first, set := g.Env[k]; !set {
				g.Env[k] = v
			} else if first != v {
				clash(s, "environment variable", k)
			}
		}
		for _, m := range s.Grant.Mounts {
			if first, set := mounts[m.ContainerPath]; !set {
				mounts[m.ContainerPath] = m
				g.Mounts = append(g.Mounts, m)
			} else if first != m {
				clash(s, "mount", m.ContainerPath)
			}
		}
		for _, n := range s.Grant.Nodes {
			if first, set := nodes[n.ContainerPath]; !set {
				nodes[n.ContainerPath] = n
				g.Nodes = append(g.Nodes, n)
			} else if first != n {
				clash(s, "device node", n.ContainerPath)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(s.Grant.Annotations)) {
			v := s.Grant.Annotations[k]
			if _, set := has.annotations[k]; set || k == stampKey {
				continue // the kubelet's own, or ours
			}
			if first, set := annotations[k]; !set {
				annotations[k] = v
			} else if first != v {
				clash(s, "annotation", k)
			}
		}
	}
	g.Mounts = uncovered(g.Mounts, has.mounts)
	// Devices of annotations come after all others, as in the runtime.
	for _, s := range shares {
		g.CDI = append(g.CDI, s.Grant.CDI...)
	}
	for _, k := range slices.Sorted(maps.Keys(annotations)) {
		if strings.HasPrefix(k, device.CDIAnnotations) {
			g.CDI = append(g.CDI, strings.Split(annotations[k], ",")...)
		} else {
			g.Annotations[k] = annotations[k]
		}
	}
	g.CDI = distinct(g.CDI)
	return g, conflicts
}

// uncovered leaves out mounts that would be covered: by a volume of the pod at the same place, or by a later mount with another
// spelling.
func uncovered(mounts []device.Mount, volumes map[string]bool) []device.Mount {
	last := map[string]int{}
	for i, m := range mounts {
		last[filepath.Clean(m.ContainerPath)] = i
	}
	var seen []device.Mount
	for i, m := range mounts {
		at := filepath.Clean(m.ContainerPath)
		if last[at] == i && !volumes[at] {
			seen = append(seen, m)
		}
	}
	return seen
}

// distinct returns names without repetitions.
func distinct(names []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(names, func(name string) bool {
		before := seen[name]
		seen[name] = true
		return before
	})
}
