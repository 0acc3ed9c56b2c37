//go:build e2e

package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// samplePod returns the sample plugin's pod, once it runs and it is not the one of before.
func (r *harness) samplePod(before *corev1.Pod) *corev1.Pod {
	r.t.Helper()
	var pod *corev1.Pod
	r.until("the plugin's container runs", func() bool {
		pods, err := r.Client().CoreV1().Pods(metav1.NamespaceSystem).List(r.ctx, metav1.ListOptions{LabelSelector: "k8s-app=sample-device-plugin"})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning {
			return false
		}
		pod = &pods.Items[0]
		return before == nil || node.ContainerID(pod) != node.ContainerID(before)
	})
	return pod
}

// sampleDevice tells which of the sample plugin's devices a container has: they are mounts.
func sampleDevice(got report.Report) string {
	var all []string
	for point := range points(got) {
		if name, is := strings.CutPrefix(point, "/tmp/"); is {
			all = append(all, name)
		}
	}
	return strings.Join(all, ",")
}

// A plugin's process is killed, and then its pod is recreated, while a pod runs with its device: that runs on and keeps
// its device, and the Node's number does not move.
func TestPlugin_Restarts_PodsKeepDevices(t *testing.T) {
	r := start(t)
	r.samplePlugin()
	plugin := r.samplePod(nil)
	a := node.Pod("a", node.SampleResource, 1, "report", "--then-sleep")
	a.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, a))
	device := sampleDevice(r.running("a"))
	stayed, numbers := r.followPod("a"), r.watchNumbers(node.SampleResource)

	registrations := fmt.Sprintf("device_plugin_registration_total{resource_name=%q}", node.SampleResource)
	up := fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", node.SampleResource)
	for _, end := range []struct {
		what string
		do   func(*harness)
	}{
		{"its process", func(r *harness) { r.must(r.Containers.Kill(r.ctx, node.ContainerID(plugin))) }},
		{"its pod", func(r *harness) { r.deleteSamplePlugin(plugin.Namespace) }},
	} {
		t.Run(end.what, func(t *testing.T) {
			r := r.in(t)
			before := r.metric(registrations)
			end.do(r)
			r.until("the plugin has registered again", func() bool { return r.metric(registrations) > before && r.metric(up) == 1 })
			plugin = r.samplePod(plugin)
			r.until("the pod has its device and the other is free", func() bool {
				return r.inState(node.SampleResource, "assigned") == 1 && r.inState(node.SampleResource, "free") == 1
			})
		})
	}
	stayed()

	// The container restarts with the same device, without a call of Allocate, and another pod gets the other one.
	pod, err := r.WaitPhase(r.ctx, "a", corev1.PodRunning)
	r.must(err)
	r.must(r.Containers.Kill(r.ctx, node.ContainerID(pod)))
	r.must(r.WaitPod(r.soon(), "default", "a", func(now *corev1.Pod) (bool, error) {
		return len(now.Status.ContainerStatuses) > 0 && now.Status.ContainerStatuses[0].RestartCount > 0 &&
			now.Status.ContainerStatuses[0].State.Running != nil, nil
	}))
	if got := sampleDevice(r.running("a")); got != device || device == "" {
		t.Errorf("the container had %q and has %q", device, got)
	}
	if n := r.metric(fmt.Sprintf("device_plugin_alloc_duration_seconds_count{resource_name=%q}", node.SampleResource)); n != 1 {
		t.Errorf("Allocate was called %v times, want once", n)
	}
	if got := sampleDevice(r.run("b", node.SampleResource, 1)); got == device || got == "" {
		t.Errorf("a has %q, b has %q", device, got)
	}
	for _, n := range numbers() {
		if n != 2 {
			t.Errorf("the Node showed %d meanwhile, want 2 all the time", n)
		}
	}
}

// A plugin that does not register, but waits in plugins_registry to be called, is led to devmgrd like any other, since it
// has the directory of device plugins, too. Who has only plugins_registry is a CSI driver, and the kubelet's.
func TestPlugin_InPluginsRegistry_IsCalled(t *testing.T) {
	const kubelets = "/var/lib/kubelet/plugins_registry"
	r := startWith(t, cluster.Options{KubeletConfig: staticCPUs})
	r.samplePlugin(func(c *corev1.Container) {
		for i := range c.Env {
			if c.Env[i].Name == "PLUGIN_SOCK_DIR" {
				c.Env[i].Value = kubelets
			}
		}
		c.Env = append(c.Env, corev1.EnvVar{Name: "REGISTER_CONTROL_FILE", Value: "/tmp/register"}) // it does not register before that is removed
	})

	var plugin *corev1.Pod
	t.Run("devmgrd calls it", func(t *testing.T) {
		r := r.in(t)
		for _, series := range []string{"device_plugin_registration_total", "devmgrd_plugin_up"} {
			r.until(series+" counts it", func() bool { return r.metric(fmt.Sprintf("%s{resource_name=%q}", series, node.SampleResource)) > 0 })
		}
		plugin = r.samplePod(nil)
		from := r.sources(plugin)
		for at, want := range map[string]string{kubelets: ownDir(plugin) + "/plugins_registry", "/var/lib/kubelet/device-plugins": ownDir(plugin) + "/device-plugins"} {
			if from[at] != want {
				t.Errorf("%s is %v in the plugin's container, want %s", at, from[at], want)
			}
		}
		if got := sampleDevice(r.run("a", node.SampleResource, 1)); !strings.HasPrefix(got, "Dev-") {
			t.Errorf("the pod has %q, want one of the plugin's devices", got)
		}
	})

	t.Run("the kubelet does not know it", func(t *testing.T) {
		r := r.in(t)
		r.unknownToTheKubelet()
		if sockets, err := os.ReadDir(kubelets); err != nil || len(sockets) != 0 {
			t.Errorf("the kubelet's directory has %v (%v)", sockets, err)
		}
		if sockets, err := os.ReadDir(ownDir(plugin) + "/plugins_registry"); err != nil || len(sockets) != 1 {
			t.Errorf("the pod's own directory has %v (%v), want the plugin's socket", sockets, err)
		}
	})

	t.Run("a CSI driver stays with the kubelet", func(t *testing.T) {
		r := r.in(t)
		mark := filepath.Join(kubelets, "mark")
		r.must(os.WriteFile(mark, nil, 0o644))
		t.Cleanup(func() { os.Remove(mark) })
		driver := node.Pod("driver", "", 0, "report", "--open", "/registration/mark", "--then-sleep")
		made := corev1.HostPathDirectoryOrCreate
		for at, from := range map[string]string{"/registration": kubelets, "/csi": "/var/lib/kubelet/plugins/csi.vendor.example"} {
			name := strings.TrimPrefix(at, "/")
			driver.Spec.Volumes = append(driver.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: from, Type: &made}}})
			driver.Spec.Containers[0].VolumeMounts = append(driver.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at})
		}
		r.must(r.Create(r.ctx, driver))
		got := r.running("driver")
		if len(got.Opened) == 0 || got.Opened[0].Error != "" {
			t.Errorf("it does not see what is in the kubelet's directory: %+v", got.Opened)
		}
		for at, want := range map[string]string{"/registration": kubelets, "/csi": "/var/lib/kubelet/plugins/csi.vendor.example"} {
			if m, _ := got.Mount(at); !strings.HasSuffix(m.Root, want) {
				t.Errorf("%s is %s, want %s", at, m.Root, want)
			}
		}
	})
}

// A second plugin of a resource is rejected with an error, and the first one serves on.
func TestPlugin_SecondOfAResource_IsRejected(t *testing.T) {
	r := start(t, "--set", "plugins.onDuplicate=reject")
	first := r.plugin(gpu, 2)
	r.run("a", gpu, 1)
	stayed, shows := r.followPod("a"), r.followNumbers(gpu)
	shows(2)
	second := plugintest.New(t, node.SocketDir, gpu, plugintest.Dev("other", plugintest.Healthy))
	second.Endpoint = "second.sock"
	second.Serve()
	err := second.Register()
	t.Log(err)
	if want := fmt.Sprintf("%s is served by the plugin at %q, and plugins.onDuplicate is reject", gpu, first.Endpoint); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the second plugin was told %v, want %q", err, want)
	}
	if got := r.run("b", gpu, 1).Env["DEVICES"]; got != "dev-000001" {
		t.Errorf("the next pod has %q, want the first plugin's other device", got)
	}
	if one, two := first.Calls(plugintest.Allocate), second.Calls(plugintest.ListAndWatch)+second.Calls(plugintest.Allocate); one != 2 || two != 0 {
		t.Errorf("the first was asked %d times, want 2; the second %d times, want 0", one, two)
	}
	first.MustRegister() // it is no second one

	// The first one goes: the next one is taken. Its one device may be one of the two in use under another ID, so that it is
	// withheld, and the Node shows no higher number than before, until the pods have ended.
	first.Stop()
	r.until("the first one has gone", func() bool { return r.metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", gpu)) == 0 })
	second.MustRegister()
	r.until("the second plugin's device is withheld", func() bool { return r.inState(gpu, "withheld") == 1 })
	stayed()
	for _, name := range []string{"a", "b"} {
		r.must(r.Delete(r.ctx, name))
	}
	shows(1)
	if got := r.run("c", gpu, 1).Env["DEVICES"]; got != "other" {
		t.Errorf("the next pod has %q, want the second plugin's device", got)
	}
}

// Two plugins list the same hardware under IDs of their own. A pod has a device of the one that ends. The other one was in reserve and serves at once, and none
// of its devices is free until that pod has ended.
func TestPlugin_OtherIDsInReserve_AreWithheld(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	second := plugintest.New(t, node.SocketDir, gpu, plugintest.Dev("other", plugintest.Healthy))
	second.Endpoint = "second.sock"
	second.Serve()
	second.MustRegister()
	r.must(r.WaitShown(r.soon(), gpu, 1))
	if got := r.run("a", gpu, 1).Env["DEVICES"]; got != "other" {
		t.Errorf("the pod has %q, want the second plugin's device", got)
	}
	second.Stop()
	r.until("the first plugin serves", func() bool { return r.metric(fmt.Sprintf("devmgrd_devices_unlisted{resource_name=%q}", gpu)) == 1 })
	if n := r.inState(gpu, "withheld"); n != 2 {
		t.Errorf("%v devices are withheld, want the first plugin's 2", n)
	}
	r.must(r.Delete(r.ctx, "a"))
	r.must(r.WaitShown(r.soon(), gpu, 2))
	r.until("its devices are free", func() bool { return r.inState(gpu, "free") == 2 })
}

func itoa(n int) string { return strconv.Itoa(n) }

// What is wrong with a registration comes back to the plugin in words, and nothing changes.
func TestRegistration_Mistake_IsAnswered(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	r.must(os.WriteFile(filepath.Join(node.SocketDir, "file"), nil, 0o644))
	defer os.Remove(filepath.Join(node.SocketDir, "file"))
	elsewhere := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", elsewhere)
	r.must(err)
	defer listener.Close()
	r.must(os.Symlink(elsewhere, filepath.Join(node.SocketDir, "link")))
	defer os.Remove(filepath.Join(node.SocketDir, "link"))

	for _, test := range []struct {
		name    string
		request *plugintest.RegisterRequest
		want    []string
	}{
		{"wrong version", &plugintest.RegisterRequest{Version: "v1alpha7", ResourceName: gpu, Endpoint: "x"}, []string{"v1alpha7", "v1beta1"}},
		{"native resource", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: "cpu", Endpoint: "x"}, []string{`"cpu"`, "vendor.example/gpu"}},
		{"Kubernetes' own domain", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: "kubernetes.io/gpu", Endpoint: "x"}, []string{"kubernetes.io"}},
		{"bad name", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: "Vendor/g pu", Endpoint: "x"}, []string{"Vendor/g pu"}},
		{"slash", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: gpu, Endpoint: "../x"}, []string{"../x"}},
		{"no endpoint", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: gpu}, []string{"endpoint"}},
		{"not a socket", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: gpu, Endpoint: "file"}, []string{"file", "socket"}},
		{"a link to elsewhere", &plugintest.RegisterRequest{Version: "v1beta1", ResourceName: gpu, Endpoint: "link"}, []string{"link"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := plugintest.Register(r.ctx, node.SocketDir, test.request)
			if err == nil {
				t.Fatal("it was accepted")
			}
			t.Log(err)
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the message does not say %q", want)
				}
			}
		})
	}

	if n := r.metric(`device_plugin_registration_total{resource_name="` + gpu + `"}`); n != 1 {
		t.Errorf("%v registrations are counted, want the one that was accepted", n)
	}
	capacity, allocatable, err := r.Shown(r.ctx, gpu)
	r.must(err)
	if capacity != 2 || allocatable != 2 {
		t.Errorf("the Node shows %d and %d, want 2", capacity, allocatable)
	}
	r.run("a", gpu, 1)
}
