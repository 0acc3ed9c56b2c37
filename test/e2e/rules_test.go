//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// ruleForGPU lets a plugin of the host serve the test's own resource, and grant some things of each sort.
const ruleForGPU = `
- name: gpu
  resources: [%s]
  plugins:
  - host: true
  grants:
    env: [GPU_*]
    mounts: [%s]
    devices: [/dev/null]
    annotations: [vendor.example/*]
    cdiKinds: [vendor.example/gpu]
`

// An operator has rules suggested, and enforces them: everything goes on as before, and what no rule allows is refused with the
// rule's name.
func TestPluginRules_Enforced_OnlyAllowedIsGranted(t *testing.T) {
	dir := t.TempDir()
	config, rules := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "rules.yaml")
	configure := func(mode string) {
		if err := os.WriteFile(config, fmt.Appendf(nil, "plugins:\n  rules: %q\n  rulesFile: %s\n", mode, rules), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	configure("off")
	r := start(t, "--config", config)
	restart := func() {
		r.must(r.Devmgrd.Kill())
		r.must(r.StartDevmgrd(r.soon()))
		r.must(r.WaitShown(r.soon(), node.SampleResource, 2))
	}
	set, err := r.SamplePlugin()
	r.must(err)
	set.Spec.Template.Spec.ServiceAccountName = "sample"
	r.must(r.Apply(r.ctx, set))
	r.must(r.WaitShown(r.soon(), node.SampleResource, 2))
	a := node.Pod("a", node.SampleResource, 1, "report", "--then-sleep")
	a.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, a))
	device := sampleDevice(r.running("a"))

	suggested := r.says("rules suggest", "resources:", node.SampleResource, "namespace: kube-system", "serviceAccount: sample", "mounts:", "- /tmp/Dev-*")
	allowed := filepath.Join(dir, "allowed")
	r.must(os.MkdirAll(filepath.Join(allowed, "lib"), 0o755))
	r.must(os.Symlink("/etc", filepath.Join(allowed, "link")))
	r.must(os.WriteFile(rules, fmt.Appendf([]byte(suggested), ruleForGPU, gpu, allowed), 0o644))
	r.says("rules check --config "+config, "2 rules and allows all")
	configure("enforce")
	restart()

	t.Run("the sample plugin works as before", func(t *testing.T) {
		r := r.in(t)
		stayed := r.followPod("a")
		r.run("b", node.SampleResource, 1)
		plugin := r.samplePod(nil)
		r.must(r.Containers.Kill(r.ctx, node.ContainerID(plugin)))
		plugin = r.samplePod(plugin)
		up := fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", node.SampleResource)
		r.until("it serves again", func() bool { return r.metric(up) == 1 })
		r.deleteSamplePlugin(plugin.Namespace)
		r.samplePod(plugin)
		r.until("its successor serves", func() bool { return r.pluginPod(node.SampleResource).UID != string(plugin.UID) && r.metric(up) == 1 })
		stayed()
		r.again("a")
		if got := sampleDevice(r.running("a")); got != device {
			t.Errorf("its container came back with %s, had %s", got, device)
		}
		r.must(r.Delete(r.ctx, "b"))
	})

	t.Run("no other plugin serves its resource", func(t *testing.T) {
		r := r.in(t)
		rule := "rule " + strings.ReplaceAll(node.SampleResource, "/", "-") + " does not let "
		host := plugintest.New(t, node.SocketDir, node.SampleResource, plugintest.Devices(7)...)
		host.Serve()
		if err := host.Register(); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), rule+"a plugin of the host serve") {
			t.Errorf("the host's registers: %v", err)
		}
		r.told(r.NodeName(), "Warning PluginNotAllowed: "+rule+"a plugin of the host serve "+node.SampleResource)
		set := set.DeepCopy()
		set.Namespace, set.Name, set.ResourceVersion = metav1.NamespaceDefault, "tenant", ""
		set.Spec.Selector.MatchLabels = map[string]string{"app": "tenant"}
		set.Spec.Template.Labels = set.Spec.Selector.MatchLabels
		set.Spec.Template.Spec.PriorityClassName = ""
		r.must(r.Apply(r.ctx, set))
		t.Cleanup(func() {
			r.must(r.Client().AppsV1().DaemonSets(set.Namespace).Delete(r.ctx, set.Name, metav1.DeleteOptions{}))
		})
		var tenant string
		r.until("the tenant's plugin is there", func() bool {
			pods, err := r.Client().CoreV1().Pods(set.Namespace).List(r.ctx, metav1.ListOptions{LabelSelector: "app=tenant"})
			if err != nil || len(pods.Items) != 1 {
				return false
			}
			tenant = pods.Items[0].Name
			return true
		})
		_, err := r.WaitPhase(r.soon(), tenant, corev1.PodRunning)
		r.must(err)
		r.told(tenant, "Warning PluginNotAllowed: "+rule+"the plugin of pod default/"+tenant+" (service account sample) serve "+node.SampleResource)
		if got := r.pluginPod(node.SampleResource); got.Namespace != metav1.NamespaceSystem {
			t.Errorf("%+v serves", got)
		}
	})

	t.Run("nothing else is granted", func(t *testing.T) {
		r := r.in(t)
		var answer atomic.Pointer[plugintest.Answer]
		r.plugin(gpu, 1, func(p *plugintest.Plugin) {
			p.OnAllocate = func(context.Context, *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
				return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{answer.Load()}}, nil
			}
		})
		mount := func(path string) *plugintest.Answer {
			return &plugintest.Answer{Mounts: []*pluginapi.Mount{{ContainerPath: "/granted", HostPath: path, ReadOnly: true}}}
		}
		for i, forbidden := range []struct {
			answer *plugintest.Answer
			want   string
		}{
			{&plugintest.Answer{Envs: map[string]string{"LD_PRELOAD": "/x.so"}}, "variable LD_PRELOAD"},
			{mount("/etc"), "mount of /etc"},
			{mount(allowed + "/../../etc"), "mount of " + allowed + "/../../etc"},
			{mount(allowed + "/link"), "mount of " + allowed + "/link, which leads to /etc"},
			{&plugintest.Answer{Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/zero", ContainerPath: "/dev/null0", Permissions: "rw"}}}, "device /dev/zero"},
			{&plugintest.Answer{Annotations: map[string]string{"other.example/x": "1"}}, "annotation other.example/x"},
			{&plugintest.Answer{CdiDevices: []*pluginapi.CDIDevice{{Name: "other.example/gpu=0"}}}, "CDI device other.example/gpu=0"},
		} {
			answer.Store(forbidden.answer)
			pod := fmt.Sprintf("forbidden-%d", i)
			r.must(r.Create(r.ctx, node.Pod(pod, gpu, 1, "report", "--then-sleep")))
			r.told(pod, "PluginNotAllowed: rule gpu does not allow what the plugin of "+gpu+" grants: "+forbidden.want)
			r.must(r.Delete(r.ctx, pod))
		}
		// The same pod starts when its plugin grants what is allowed.
		answer.Store(mount("/etc"))
		r.must(r.Create(r.ctx, node.Pod("allowed", gpu, 1, "report", "--then-sleep")))
		r.refused("allowed", "PluginNotAllowed")
		good := mount(allowed + "/lib")
		good.Envs = map[string]string{"GPU_1": "x"}
		answer.Store(good)
		got := r.running("allowed")
		if got.Env["GPU_1"] != "x" || points(got)["/granted"].Point == "" {
			t.Errorf("it has %v and %v", got.Env, got.Mounts)
		}
		if n := r.metric(`devmgrd_plugin_rule_violations_total{rule="gpu",subject="grant"}`); n < 8 {
			t.Errorf("%v violations are counted", n)
		}
	})

	t.Run("report refuses nothing", func(t *testing.T) {
		r := r.in(t)
		configure("report")
		restart()
		r.plugin("evil.example/x", 1, func(p *plugintest.Plugin) {
			p.OnAllocate = plugintest.Grants(&plugintest.Answer{Envs: map[string]string{"LD_PRELOAD": ""}})
		})
		r.run("reported", "evil.example/x", 1)
		r.told(r.NodeName(), "Warning PluginNotAllowed: no rule lets a plugin serve evil.example/x; if a plugin of the host may, add a rule (plugins.rules is report: nothing was refused)")
		r.told("reported", "Warning PluginNotAllowed: container main: no rule lets a plugin grant anything for evil.example/x (plugins.rules is report: nothing was refused)")
		out, _, exit := r.devmgrd("rules", "check", rules)
		if exit != 1 || !strings.Contains(out, "no rule lets a plugin serve evil.example/x") {
			t.Errorf("rules check: %d\n%s", exit, out)
		}
	})

	t.Run("a file with mistakes keeps devmgrd from starting", func(t *testing.T) {
		r := r.in(t)
		r.must(os.WriteFile(rules, []byte("rules:\n- name: x\n"), 0o644))
		r.fails("run --config "+config, 2, "devmgrd: "+rules+": rules[0] (x): resources: there is none")
	})
}
