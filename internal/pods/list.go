package pods

import (
	"context"
	"fmt"

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
	s := &store{reader: reader{ignoring(ignored)}, sink: active, pods: map[device.PodUID]entry{}}
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
