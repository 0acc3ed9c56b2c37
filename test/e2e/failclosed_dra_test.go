//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// A container of a pod with a claim ends while devmgrd is away: one that its author has made, or the scheduler's for the name of a DeviceClass. The
// kubelet has prepared the claim before, and the container does not start again without its devices.
func TestDRA_DevmgrdAway_ContainersOfClaimsWait(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	if r.lacks(cluster.Validation) || r.lacks(cluster.Policies) {
		return
	}
	r.must(r.FailClosed(r.soon()))
	r.claim("own", "vendor.example-gpu", 1)
	pods := map[string]*corev1.Pod{"claims": claiming("claims", "own"), "implicit": node.Pod("implicit", implicit, 1, "report", "--then-sleep")}
	had := map[string]string{}
	for name, p := range pods {
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		r.must(r.Create(r.ctx, p))
		had[name] = r.exact(name)["main"][0]
		running, err := r.WaitPhase(r.soon(), name, corev1.PodRunning)
		r.must(err)
		pods[name] = running
	}
	r.must(r.Devmgrd.Kill())
	for name, p := range pods {
		r.must(r.Containers.Kill(r.ctx, node.ContainerID(p)))
		r.until("the container of "+name+" is refused, or runs without its devices", func() bool {
			p, err := r.WaitPhase(r.ctx, name, corev1.PodRunning)
			r.must(err)
			now := p.Status.ContainerStatuses[0]
			return now.State.Waiting != nil && now.State.Waiting.Reason == "CreateContainerError" || now.RestartCount > 0 && now.State.Running != nil
		})
	}
	r.nobodyIsBare()
	for name := range pods {
		r.told(name, "devmgrd")
	}
	r.must(r.StartDevmgrd(r.soon()))
	for name, devices := range had {
		if now := r.runsAgain(name).Env["DEVICES"]; now != devices {
			t.Errorf("pod %s had %q and has %q", name, devices, now)
		}
		r.exact(name)
	}
}
