//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A resource is renamed: the old name leaves the Node with devmgrd forget and not before, over kill -9 and with an API server
// that is away, and does not come back with the kubelet's next word. A name that another program has left there goes too.
func TestForget_RenamedResource_LeavesTheNode(t *testing.T) {
	const ghost = "vendor.example/ghost"
	r := start(t, "--set", "plugins.gracePeriod=1s")
	p := r.plugin(gpu, 2)
	r.run("holder", gpu, 1)
	r.fails("forget "+gpu, 1, "in use by default/holder")
	r.must(r.Delete(r.ctx, "holder"))
	r.states(2, 0, 0)
	r.fails("forget "+gpu, 1, "its device plugin is serving")
	p.Stop()
	r.must(r.WaitShown(r.soon(), gpu, 0))
	shows := func(resource corev1.ResourceName) bool {
		n := asked(r, func() (*corev1.Node, error) {
			return r.Client().CoreV1().Nodes().Get(r.ctx, r.NodeName(), metav1.GetOptions{})
		})
		_, capacity := n.Status.Capacity[resource]
		_, allocatable := n.Status.Allocatable[resource]
		return capacity || allocatable
	}

	r.must(r.APIServer.Kill())
	r.says("forget "+gpu, gpu+" is forgotten")
	r.fails("devices "+gpu, 1, "unknown resource")
	r.must(r.Devmgrd.Kill())
	r.must(r.Devmgrd.Start(r.ctx)) // it cannot be ready yet
	r.must(r.APIServer.Start(r.ctx))
	r.must(r.WaitAPIServer(r.ctx))
	r.until("the node lacks it", func() bool { return !shows(gpu) })
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.run("plain", "", 0) // by then the kubelet has told what it has to tell of its node
	if shows(gpu) {
		t.Error("it is back on the Node")
	}

	body := `{"status":{"capacity":{"` + ghost + `":"3"},"allocatable":{"` + ghost + `":"3"}}}`
	_, err := r.Client().CoreV1().Nodes().PatchStatus(r.ctx, r.NodeName(), []byte(body))
	r.must(err)
	r.until("devmgrd has seen it", func() bool {
		_, _, status := r.devmgrd("forget", ghost)
		return status == 0 || !shows(ghost)
	})
	r.until("the node lacks it", func() bool { return !shows(ghost) })

	r.plugin(gpu, 3)
	r.must(r.WaitShown(r.soon(), gpu, 3))
}
