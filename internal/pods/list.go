package pods

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A Listing is all pods of a node.
type Listing struct {
	Active []device.PodDemand // oldest first; several may have one UID, if pods pretend to be mirror pods
	Ended  []device.Pod
}

// List asks the API server once for the pods of a node. Their demands omit resources that match ignored. A mirror pod has its static pod's UID, which the
// kubelet's checkpoint and the runtime have too.
func List(ctx context.Context, client rest.Interface, node string, ignored []string) (Listing, error) {
	var found corev1.PodList
	err := client.Get().Resource("pods").
		Param("fieldSelector", fields.OneTermEqualSelector("spec.nodeName", node).String()).Do(ctx).Into(&found)
	if err != nil {
		return Listing{}, fmt.Errorf("listing the pods of node %s: %w", node, err)
	}
	var l Listing
	r := reader{ignored: ignoring(ignored)}
	for i := range found.Items {
		switch seen, _ := r.pod(&found.Items[i]); {
		case seen.ended:
			l.Ended = append(l.Ended, seen.demand.Pod)
		default:
			l.Active = append(l.Active, seen.demand)
		}
	}
	slices.SortStableFunc(l.Active, func(a, b device.PodDemand) int { return a.Created.Compare(b.Created) })
	return l, nil
}

// Ignores returns a function that reports whether a resource matches the patterns of Config.Ignored.
func Ignores(patterns []string) func(device.ResourceName) bool { return ignoring(patterns).has }

// requiredKey is the annotation, alone or followed by a container's name, by which a pod declares to the runtime's validator
// which NRI plugins it requires.
const requiredKey = "required-plugins.noderesource.dev"

// Bound returns the number of a node's pods that request devices, without resources that match ignored, and how many of these
// do not declare to the runtime that they require devmgrd.
func Bound(all []corev1.Pod, ignored []string) (asking, unbound int) {
	r := reader{ignored: ignoring(ignored)}
	for i := range all {
		p := &all[i]
		if seen, _ := r.pod(p); seen.ended || len(seen.demand.Demands) == 0 || mirrored(p) {
			continue
		}
		asking++
		if !slices.ContainsFunc([]string{requiredKey, requiredKey + "/pod"}, func(key string) bool { return strings.Contains(p.Annotations[key], "devmgrd") }) {
			unbound++
		}
	}
	return asking, unbound
}
