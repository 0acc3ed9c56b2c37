//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A serving pod whose readiness gate is the health of its devices waits for its device, is ready, is not ready while the device is unhealthy, also
// while devmgrd is killed and comes back, and is ready again. The kubelet writes the pod's status all the while.
func TestPodConditions_ReadinessGate_FollowsTheDevice(t *testing.T) {
	const assigned, healthy = "devmgrd.io/DevicesAssigned", "devmgrd.io/DevicesHealthy"
	r := start(t)
	is := func(p *corev1.Pod, of corev1.PodConditionType, want string) bool {
		return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == of && strings.HasPrefix(fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message), want)
		})
	}
	shows := func(of corev1.PodConditionType, want string) {
		t.Helper()
		r.must(r.WaitPod(r.soon(), "default", "serving", func(p *corev1.Pod) (bool, error) { return is(p, of, want), nil }))
	}
	writes := func(most float64) {
		t.Helper()
		if n := r.metric(`devmgrd_pod_patches_total{result="ok"}`); n > most {
			t.Errorf("%v writes, want %v at most", n, most)
		}
		if n := r.metric(`devmgrd_pod_patches_total{result="error"}`); n != 0 {
			t.Errorf("%v writes have failed", n)
		}
	}

	p := node.Pod("serving", gpu, 1, "report", "--then-sleep")
	p.Spec.NodeName, p.Spec.RestartPolicy = r.NodeName(), corev1.RestartPolicyAlways // as if scheduled before a reboot
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: healthy}}
	r.must(r.Create(r.ctx, p))
	shows(assigned, "False PluginMissing no device plugin has registered "+gpu)
	r.told("serving", "Warning WaitingForDevices: PluginMissing: no device plugin has registered "+gpu)
	plugin := r.plugin(gpu, 1)
	shows(assigned, "True DevicesAssigned 1 "+gpu)
	shows(corev1.PodReady, "True")

	plugin.SetHealth("dev-000000", plugintest.Unhealthy)
	shows(healthy, "False DeviceUnhealthy device dev-000000 of "+gpu+" is unhealthy")
	shows(corev1.PodReady, "False ReadinessGatesNotReady")
	writes(3)
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.ctx))
	r.until("the plugin serves", func() bool { return plugin.Streams() == 1 })
	r.until("devmgrd knows that the device is unhealthy", func() bool {
		return r.metric(fmt.Sprintf("devmgrd_device_failures_total{resource_name=%q}", gpu)) == 1
	})
	writes(0)
	shows(corev1.PodReady, "False ReadinessGatesNotReady")

	plugin.SetHealth("dev-000000", plugintest.Healthy)
	shows(healthy, "True DevicesHealthy")
	shows(corev1.PodReady, "True")
	shows(corev1.ContainersReady, "True")
	writes(1)
}

// Static pods show the conditions on their mirror pods, with and without the annotation, and pods whose devices the scheduler has chosen show them too.
func TestPodConditions_StaticPodsAndClaims_ShowThem(t *testing.T) {
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	r := startWith(t, cluster.Options{KubeletConfig: "staticPodPath: " + manifests}, "--set", "dra.resources="+nic)
	t.Cleanup(func() { os.RemoveAll(manifests) })
	r.class(nic)
	r.plugin(gpu, 2)
	claimed := r.offered(nic, 1)
	annotated := node.Pod("annotated", "", 0, "report", "--then-sleep")
	annotated.Annotations = map[string]string{"devmgrd.io/resources": `{"main":{"` + gpu + `":1}}`}
	statics := []string{r.static(node.Pod("mirrored", gpu, 1, "report", "--then-sleep")), r.static(annotated)}
	r.run("claims", nic, 1)
	shows := func(name, of, want string) {
		t.Helper()
		r.must(r.WaitPod(r.soon(), "default", name, func(p *corev1.Pod) (bool, error) {
			return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return string(c.Type) == of && strings.TrimSpace(fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)) == want
			}), nil
		}))
	}
	for _, name := range statics {
		shows(name, "devmgrd.io/DevicesAssigned", "True DevicesAssigned 1 "+gpu)
		shows(name, "devmgrd.io/DevicesHealthy", "True DevicesHealthy")
	}
	shows("claims", "devmgrd.io/DevicesAssigned", "True DevicesAssigned 1 "+nic)
	id := claimed.Listed()[0].ID
	claimed.SetHealth(id, plugintest.Unhealthy)
	shows("claims", "devmgrd.io/DevicesHealthy", "False DeviceUnhealthy device "+id+" of "+nic+" is unhealthy")
}
