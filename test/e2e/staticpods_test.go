//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

const manifests = "/etc/kubernetes/manifests"

// static puts a pod's manifest where the kubelet looks for static pods, and returns the name of its mirror pod.
func (r *harness) static(pod *corev1.Pod) string {
	r.t.Helper()
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	text, err := yaml.Marshal(pod)
	r.must(err)
	r.must(os.WriteFile(filepath.Join(manifests, pod.Name+".yaml"), text, 0o644))
	return pod.Name + "-" + r.NodeName()
}

// Static pods have devices: of those that say so in an annotation the runtime tells, without an API server; others are
// known by their mirror pods.
func TestStaticPods_WithAndWithoutAnnotation_GetDevices(t *testing.T) {
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	r := startWith(t, cluster.Options{KubeletConfig: "staticPodPath: " + manifests})
	t.Cleanup(func() { os.RemoveAll(manifests) })
	r.plugin(gpu, 3)

	mirrored := node.Pod("mirrored", gpu, 1, "report", "--then-sleep")
	annotated := node.Pod("annotated", "", 0, "report", "--then-sleep")
	annotated.Annotations = map[string]string{"devmgrd.io/resources": `{"main":{"` + gpu + `":1}}`}
	bad := node.Pod("bad", "", 0, "report", "--then-sleep")
	bad.Annotations = map[string]string{"devmgrd.io/resources": `{"main":{"cpu":1}}`}
	plain := node.Pod("plain", "", 0, "report", "--then-sleep")
	a, m, b, p := r.static(annotated), r.static(mirrored), r.static(bad), r.static(plain)
	first := r.running(a).Env["DEVICES"]
	if second := r.running(m).Env["DEVICES"]; first == "" || second == "" || first == second {
		t.Errorf("the static pods have %q and %q", first, second)
	}
	if got := r.running(p).Env["DEVICES"]; got != "" {
		t.Errorf("a static pod that asks for nothing has %q", got)
	}
	r.until("the pod whose annotation is wrong is refused", func() bool {
		return strings.Contains(r.Events(r.ctx, b), `resource name "cpu"`)
	})
	r.must(os.Remove(filepath.Join(manifests, "bad.yaml")))
	// Its container starts while devmgrd is away if the runtime does not validate.
	r.must(r.WaitPod(r.soon(), metav1.NamespaceDefault, b, func(p *corev1.Pod) (bool, error) { return p == nil, nil }))

	// Without the API server, and with a devmgrd that has to remember, a container restarts with what it had.
	r.must(r.APIServer.Kill())
	r.must(r.Devmgrd.Kill())
	r.must(r.Devmgrd.Start(r.ctx))
	r.until("the plugin and the runtime are there", func() bool {
		_, text, err := r.Get("/readyz")
		return err == nil && strings.Contains(text, "nri: ok") && r.metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", gpu)) == 1
	})
	ids, err := r.RunningContainers(r.ctx, "main")
	r.must(err)
	for _, id := range ids {
		r.must(r.Containers.Kill(r.ctx, id))
	}
	r.until("all three run again, two of them with the devices that they had", func() bool {
		stamps, err := r.Stamps(r.ctx)
		if err != nil || !r.restarted(ids) {
			return false
		}
		held := map[string]string{}
		for _, s := range stamps {
			held[strings.TrimPrefix(s.Pod, "default/")] = s.Devices[gpu][0]
		}
		return len(held) == 2 && held[a] == first
	})
	r.must(r.APIServer.Start(r.ctx))
	r.must(r.WaitAPIServer(r.ctx))

	// A static pod that is removed releases its device.
	r.must(os.Remove(filepath.Join(manifests, "annotated.yaml")))
	r.must(os.Remove(filepath.Join(manifests, "mirrored.yaml")))
	r.until("the devices are free", func() bool {
		return r.metric(fmt.Sprintf(`devmgrd_devices{resource_name=%q,state="free"}`, gpu)) == 3
	})
}
