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

// A Listing is all pods of a node, as New's Sink would receive them, and the ended ones.
type Listing struct {
	Active []device.PodDemand
	Ended  []device.Pod
}

// List asks the API server once for the pods of a node. Their demands omit resources that match ignored.
func List(ctx context.Context, client rest.Interface, node string, ignored []string) (Listing, error) {
	var found corev1.PodList
	err := client.Get().Resource("pods").
		Param("fieldSelector", fields.OneTermEqualSelector("spec.nodeName", node).String()).Do(ctx).Into(&found)
	if err != nil {
		return Listing{}, fmt.Errorf("listing the pods of node %s: %w", node, err)
	}
	var l Listing
	active := &gathering{}
	s := newStore(reader{ignored: ignoring(ignored)}, active, nil)
	all := make([]any, len(found.Items))
	for i := range found.Items {
		all[i] = &found.Items[i]
		if seen, _ := s.reader.pod(all[i]); seen.ended {
			l.Ended = append(l.Ended, seen.demand.Pod)
		}
	}
	err = s.Replace(all, found.ResourceVersion)
	l.Active = active.pods
	return l, err
}

// A gathering is the Sink of one list.
type gathering struct{ pods []device.PodDemand }

func (g *gathering) Bind(device.PodDemand)          {}
func (g *gathering) Drop(device.PodUID)             {}
func (g *gathering) Replace(all []device.PodDemand) { g.pods = all }

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
