//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// Where nothing keeps it from that, a container is created while devmgrd is away, without its devices. When devmgrd is
// back its owner is informed, and as health.onMissingDevices says the pod is evicted.
func TestContainer_StartedWhileDevmgrdIsAway_IsReported(t *testing.T) {
	for _, policy := range []string{"event", "evict"} {
		t.Run(policy, func(t *testing.T) {
			r := start(t, "--set", "health.onMissingDevices="+policy)
			r.plugin(gpu, 2)
			r.run("good", gpu, 1)
			r.must(r.Devmgrd.Kill())
			if bare := r.run("bare", gpu, 1); bare.Env["DEVICES"] != "" {
				t.Fatalf("it has %q", bare.Env["DEVICES"])
			}
			r.must(r.StartDevmgrd(r.ctx))
			r.told("bare", "Warning StartedWithoutDevices: container main was started while devmgrd was away")
			if n := r.metric("devmgrd_started_without_devices_total"); n != 1 {
				t.Errorf("%v containers were found without devices, want 1", n)
			}
			if policy == "evict" {
				r.must(r.WaitPod(r.soon(), "default", "bare", func(p *corev1.Pod) (bool, error) { return p == nil, nil }))
			}
			if _, err := r.WaitPhase(r.soon(), "good", corev1.PodRunning); err != nil {
				t.Error(err)
			}
			if events := r.Events(r.ctx, "good"); strings.Contains(events, "StartedWithoutDevices") {
				t.Errorf("told of a pod that has its device: %s", events)
			}
		})
	}
}

// A plugin that starts while devmgrd is away reaches the kubelet. devmgrd reports it as soon as it is back.
func TestPlugin_StartedWhileDevmgrdIsAway_IsReported(t *testing.T) {
	r := start(t)
	r.must(r.Devmgrd.Stop(stopLimit))
	set, err := r.SamplePlugin()
	r.must(err)
	set.Namespace = metav1.NamespaceDefault
	set.Spec.Template.Spec.PriorityClassName = "" // which only kube-system may use
	r.must(r.Apply(r.ctx, set))
	var pod string
	r.until("the plugin runs", func() bool {
		pods, err := r.Client().CoreV1().Pods(set.Namespace).List(r.ctx, metav1.ListOptions{LabelSelector: "k8s-app=sample-device-plugin"})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return false
		}
		pod = pods.Items[0].Name
		return true
	})
	r.must(r.StartDevmgrd(r.ctx))
	r.told(pod, "Warning PluginNotRedirected: container sample-device-plugin was started while devmgrd was away")
	if n := r.metric("devmgrd_containers_not_redirected"); n != 1 {
		t.Errorf("%v containers are counted, want 1", n)
	}
	for _, command := range []string{"status", "plugins"} {
		r.says(command, "NOT REDIRECTED", "default/"+pod, "sample-device-plugin", "delete the pod")
	}
	r.deleteSamplePlugin(set.Namespace)
	r.until("the successor is led to devmgrd, and the gauge falls", func() bool {
		return r.metric("devmgrd_containers_not_redirected") == 0 && r.metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", node.SampleResource)) == 1
	})
	if out := r.says("plugins", node.SampleResource, "serving"); strings.Contains(out, "NOT REDIRECTED") {
		t.Errorf("devmgrd plugins: %s", out)
	}
}
