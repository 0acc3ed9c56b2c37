//go:build e2e

package e2e

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/devmgrd/devmgrd/test/node"
)

// followNumbers follows what the Node shows of a resource. Each call of the function that it returns takes the next
// numbers that differ from those before, first those that are shown now, and fails the test unless both are as wanted.
// That a number is off the Node for a moment before a lower one comes is passed over.
func (r *harness) followNumbers(resource string) func(want int64) {
	r.t.Helper()
	ctx := r.ctx
	w, err := r.Client().CoreV1().Nodes().Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + r.NodeName()})
	r.must(err)
	type numbers struct{ capacity, allocatable int64 }
	changes := make(chan numbers)
	go func() {
		defer close(changes)
		last := numbers{-1, -1}
		for e := range w.ResultChan() {
			n, is := e.Object.(*corev1.Node)
			if !is {
				continue
			}
			c, a := n.Status.Capacity[corev1.ResourceName(resource)], n.Status.Allocatable[corev1.ResourceName(resource)]
			now := numbers{c.Value(), a.Value()}
			_, shown := n.Status.Capacity[corev1.ResourceName(resource)]
			if now == last || !shown && last.capacity > 0 {
				continue
			}
			last = now
			select {
			case changes <- now:
			case <-ctx.Done():
				return
			}
		}
	}()
	r.t.Cleanup(w.Stop)
	return func(want int64) {
		r.t.Helper()
		select {
		case got, open := <-changes:
			if !open {
				r.t.Fatal("the watch of the Node has ended")
			}
			if got != (numbers{want, want}) {
				r.t.Fatalf("of %s the Node shows %+v, want %d as both", resource, got, want)
			}
		case <-time.After(patience): // a fall waits the longer, the more of them have been taken back
			r.t.Fatalf("the Node does not show %d %s\n%s", want, resource, r.Tail())
		}
	}
}

// followPod follows a pod that runs. The function that it returns fails the test unless the pod has run all the while in
// the same container, and was ready.
func (r *harness) followPod(name string) (stayed func()) {
	r.t.Helper()
	pods := r.Client().CoreV1().Pods(metav1.NamespaceDefault)
	first, err := r.WaitPhase(r.soon(), name, corev1.PodRunning)
	r.must(err)
	w, err := pods.Watch(r.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + name, ResourceVersion: first.ResourceVersion})
	r.must(err)
	const end = "test/end"
	lives := make(chan []string, 1)
	go func() {
		var all []string
		defer func() { lives <- all }()
		for e := range w.ResultChan() {
			p, is := e.Object.(*corev1.Pod)
			if !is {
				all = append(all, fmt.Sprint(e.Object))
				continue
			}
			if e.Type == watch.Deleted {
				all = append(all, "deleted")
				continue
			}
			all = append(all, life(p))
			if p.Annotations[end] != "" {
				return
			}
		}
		all = append(all, "unknown: the watch has ended")
	}()
	r.t.Cleanup(w.Stop)
	return func() {
		r.t.Helper()
		// A last change of our own: once it has been seen, all before it has.
		_, err := pods.Patch(r.ctx, name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"`+end+`":"true"}}}`), metav1.PatchOptions{})
		r.must(err)
		for _, now := range <-lives {
			if was := life(first); now != was {
				r.t.Errorf("pod %s was %s, and then %s", name, was, now)
			}
		}
	}
}

// life tells how it is with a pod and its containers.
func life(p *corev1.Pod) string {
	text := fmt.Sprintf("%s %s in %s", p.UID, p.Status.Phase, node.ContainerID(p))
	for _, c := range p.Status.ContainerStatuses {
		text += fmt.Sprintf(", ready: %v, restarts: %d", c.Ready, c.RestartCount)
	}
	return text
}
