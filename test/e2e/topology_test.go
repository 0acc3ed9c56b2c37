//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// places starts two plugins whose devices lie near two NUMA nodes: gpu-0 to gpu-2 near 0, 0 and 1, nic-0 and nic-1 near
// 0 and 1.
func (r *harness) places() {
	r.t.Helper()
	for name, nodes := range map[string][]int64{gpu: {0, 0, 1}, nic: {0, 1}} {
		r.plugin(name, len(nodes), func(p *plugintest.Plugin) {
			_, kind, _ := strings.Cut(name, "/")
			var all []*plugintest.Device
			for i, n := range nodes {
				all = append(all, plugintest.Dev(kind+"-"+string(rune('0'+i)), plugintest.Healthy, n))
			}
			p.Set(all...)
			p.OnAllocate = names(strings.ToUpper(kind))
		})
	}
}

// names makes an OnAllocate that answers with the devices' IDs in a variable.
func names(variable string) func(context.Context, *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
	return func(_ context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
		answer := &plugintest.AllocateResponse{}
		for _, c := range request.ContainerRequests {
			answer.ContainerResponses = append(answer.ContainerResponses, &plugintest.Answer{Envs: map[string]string{variable: strings.Join(c.DevicesIds, ",")}})
		}
		return answer, nil
	}
}

// twoResources makes a pod that asks for two resources in one container.
func twoResources(name, gpus, nics string) *corev1.Pod {
	pod := node.Pod(name, gpu, 1, "report", "--then-sleep")
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: resource.MustParse(gpus), nic: resource.MustParse(nics)}
	return pod
}

// both makes a pod that asks for so many of each, and returns what it got, as "gpu-0,gpu-1 nic-0".
func (r *harness) both(name string, gpus, nics string) string {
	r.t.Helper()
	r.must(r.Create(r.ctx, twoResources(name, gpus, nics)))
	got := r.running(name)
	return got.Env["GPU"] + " " + got.Env["NIC"]
}

// A container that asks for two resources gets both from one NUMA node where that is possible, and where it is not,
// what is nearest.
func TestTopology_TwoResources_OneNUMANode(t *testing.T) {
	r := start(t)
	r.places()
	r.run("first", nic, 1) // takes nic-0: what is left is near node 1
	if got := r.both("second", "1", "1"); got != "gpu-2 nic-1" {
		t.Errorf("got %q, want both from node 1", got)
	}
	r.must(r.Delete(r.ctx, "first"))
	if got := r.both("third", "2", "1"); got != "gpu-0,gpu-1 nic-0" {
		t.Errorf("got %q, want all from node 0", got)
	}
}

// Under single-numa-node a pod that could only have its devices apart waits, says why, and starts when they can be had
// together.
func TestTopology_SingleNUMANode_PodWaits(t *testing.T) {
	r := start(t, "--set", "topology.policy=single-numa-node")
	r.places()
	if got := r.both("first", "2", "1"); got != "gpu-0,gpu-1 nic-0" {
		t.Fatalf("got %q, want all from node 0", got)
	}
	if got := r.run("second", nic, 1); got.Env["NIC"] != "nic-1" {
		t.Fatalf("got %q, want nic-1", got.Env["NIC"])
	}
	r.must(r.Delete(r.ctx, "first")) // now the GPU of node 1 and the NIC of node 0 are free, and two GPUs of node 0
	r.run("third", gpu, 2)
	r.must(r.Create(r.ctx, twoResources("apart", "1", "1")))
	r.refused("apart", "TopologyMismatch")
	r.told("apart", "TopologyMismatch: container main requests 1 vendor.example/gpu (free by NUMA node: 0 on 0, 1 on 1) and 1 vendor.example/nic (free by NUMA node: 1 on 0, 0 on 1)")
	r.must(r.Delete(r.ctx, "third"))
	if got := r.running("apart"); got.Env["GPU"] != "gpu-0" || got.Env["NIC"] != "nic-0" {
		t.Errorf("got %v, want both from node 0", got.Env)
	}
}
