//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// A container of a pod with a claim ends while devmgrd is away. The kubelet has prepared the claim before, and the container does not start
// again without its devices.
func TestDRA_DevmgrdAway_ContainersOfClaimsWait(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	if r.lacks(cluster.Validation) || r.lacks(cluster.Policies) {
		return
	}
	r.must(r.FailClosed(r.soon()))
	r.claim("own", "vendor.example-gpu", 1)
	p := claiming("claims", "own")
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, p))
	had := r.exact("claims")["main"][0]
	p, err := r.WaitPhase(r.soon(), "claims", corev1.PodRunning)
	r.must(err)
	r.must(r.Devmgrd.Kill())
	r.must(r.Containers.Kill(r.ctx, node.ContainerID(p)))
	r.until("the container is refused, or runs without its devices", func() bool {
		p, err := r.WaitPhase(r.ctx, "claims", corev1.PodRunning)
		r.must(err)
		now := p.Status.ContainerStatuses[0]
		return now.State.Waiting != nil && now.State.Waiting.Reason == "CreateContainerError" || now.RestartCount > 0 && now.State.Running != nil
	})
	r.nobodyIsBare()
	r.told("claims", "devmgrd")
	r.must(r.StartDevmgrd(r.soon()))
	if now := r.runsAgain("claims").Env["DEVICES"]; now != had {
		t.Errorf("the pod had %q and has %q", had, now)
	}
	r.exact("claims")
}
