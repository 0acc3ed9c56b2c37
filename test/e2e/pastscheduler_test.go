//go:build e2e

package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// All devices are in use, and two pods wait for the scheduler. Pods that are bound past the scheduler are rejected by the
// kubelet. They never raise the Node's number, so the scheduler binds none of the two.
func TestPod_BoundPastTheScheduler_LeavesTheNodesNumberAlone(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 8)
	r.run("all", gpu, 8)
	pending := []string{"pending-0", "pending-1"}
	for _, name := range pending {
		r.must(r.Create(r.ctx, node.Pod(name, gpu, 1, "report", "--then-sleep")))
		r.unscheduled(name)
	}
	numbers := r.watchNumbers(gpu)
	for _, count := range []int{1, 1000} {
		for _, restarts := range []bool{false, true} {
			name := fmt.Sprintf("forced-%d-%v", count, restarts)
			if restarts { // a kubelet that has just started reports such a pod as pending for some seconds
				r.must(r.Kubelet.Kill())
			}
			forced := node.Pod(name, gpu, count, "report", "--then-sleep")
			forced.Spec.NodeName = r.NodeName()
			r.must(r.Create(r.ctx, forced))
			if restarts {
				r.must(r.Kubelet.Start(r.ctx))
			}
			r.must(r.WaitPod(r.soon(time.Minute), metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) {
				return p != nil && p.Status.Phase == corev1.PodFailed && p.Status.Reason == "OutOf"+gpu, nil
			}))
			r.must(r.Delete(r.ctx, name))
		}
	}
	// A pod that asks for nothing shows that the scheduler has had its turn, and that devmgrd has seen what came before.
	r.run("plain", "", 0)
	for _, n := range numbers() {
		if n != 8 {
			t.Errorf("the Node showed %d meanwhile, want 8 all the time", n)
		}
	}
	for _, name := range pending {
		p, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, name, metav1.GetOptions{})
		r.must(err)
		if p.Spec.NodeName != "" {
			t.Errorf("pod %s was bound to %s", name, p.Spec.NodeName)
		}
	}
	r.must(r.Delete(r.ctx, "all"))
	for _, name := range pending {
		r.running(name)
	}
}
