package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// WatchShown follows what the Node object shows of a resource. The function that it returns ends that, and returns the capacity and the
// allocatable of each event, 0 for one that is not there.
func (n *Node) WatchShown(ctx context.Context, name string) (stop func() []int64, err error) {
	w, err := n.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + n.NodeName()})
	if err != nil {
		return nil, err
	}
	seen := make(chan []int64, 1)
	go func() {
		var all []int64
		for e := range w.ResultChan() {
			if node, ok := e.Object.(*corev1.Node); ok && e.Type != watch.Bookmark {
				c, a := node.Status.Capacity[corev1.ResourceName(name)], node.Status.Allocatable[corev1.ResourceName(name)]
				all = append(all, c.Value(), a.Value())
			}
		}
		seen <- all
	}()
	return func() []int64 {
		w.Stop()
		return <-seen
	}, nil
}

// Steady returns an error unless WatchShown has seen only this value.
func Steady(shown []int64, want int64) error {
	if len(shown) == 0 {
		return errors.New("the watch has seen nothing")
	}
	if slices.ContainsFunc(shown, func(n int64) bool { return n != want }) {
		return fmt.Errorf("the Node showed %d meanwhile, want %d all the time", shown, want)
	}
	return nil
}
