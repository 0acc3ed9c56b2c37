//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
)

// staticCPUs is for the kubelet: with a static CPU manager its answers are not empty, so that "no devices" says something.
const staticCPUs = "cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n"

// unknownToTheKubelet fails the test if the kubelet itself has devices.
func (r *harness) unknownToTheKubelet() {
	r.t.Helper()
	conn, err := grpc.NewClient("unix:///var/lib/kubelet/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	r.must(err)
	defer conn.Close()
	answer, err := podresources.NewPodResourcesListerClient(conn).GetAllocatableResources(r.ctx, &podresources.AllocatableResourcesRequest{})
	r.must(err)
	if len(answer.GetDevices()) != 0 {
		r.t.Errorf("the kubelet lists devices: %v", answer.GetDevices())
	}
	if len(answer.GetCpuIds()) == 0 {
		r.t.Error("the kubelet lists no CPUs: was it asked at all?")
	}
}

// The main job, with Kubernetes' own sample plugin, unmodified and with its own manifest.
func TestTheMainJob(t *testing.T) {
	r := startWith(t, cluster.Options{KubeletConfig: staticCPUs})

	set, err := r.SamplePlugin()
	r.must(err)
	r.must(r.Apply(r.ctx, set))
	r.until("the sample plugin has registered", func() bool {
		return r.metric(`device_plugin_registration_total{resource_name="`+node.SampleResource+`"}`) == 1
	})
	registered := time.Now()
	r.must(r.WaitShown(r.soon(20*time.Second), node.SampleResource, 2))
	t.Logf("the Node shows the devices %s after the registration was seen", time.Since(registered).Round(time.Millisecond))

	t.Run("the kubelet knows nothing of it", func(t *testing.T) { r.in(t).unknownToTheKubelet() })

	t.Run("another number does not stay", func(t *testing.T) {
		for _, patch := range []string{
			`{"status":{"capacity":{"example.com/resource":"7"},"allocatable":{"example.com/resource":"5"}}}`,
			`{"status":{"capacity":{"example.com/resource":null},"allocatable":{"example.com/resource":null}}}`,
		} {
			if _, err := r.Client().CoreV1().Nodes().Patch(r.ctx, r.NodeName(), types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
				t.Fatal(err)
			}
			patched := time.Now()
			r.must(r.WaitShown(r.soon(20*time.Second), node.SampleResource, 2))
			t.Logf("put right %s after it was patched", time.Since(patched).Round(time.Millisecond))
		}
	})

	t.Run("two pods get different devices, the third waits for the scheduler", func(t *testing.T) {
		plain := r.run("plain", "", 0)
		a := r.run("a", node.SampleResource, 1)
		b := r.run("b", node.SampleResource, 1)
		for name, got := range map[string]report.Report{"a": a, "b": b} {
			more := minus(points(got), points(plain))
			if len(more) != 1 || !strings.HasPrefix(more[0], "/tmp/Dev-") {
				t.Errorf("pod %s has the mounts %q more than a plain one, want its one device", name, more)
			}
			if env := minus(got.Env, plain.Env); len(env) != 0 {
				t.Errorf("pod %s has the variables %q more than a plain one", name, env)
			}
		}
		_, first := a.Mount("/tmp/Dev-1")
		if _, second := b.Mount("/tmp/Dev-1"); first == second {
			t.Errorf("a has Dev-1: %v, b has Dev-1: %v", first, second)
		}

		r.must(r.Create(r.ctx, node.Pod("c", node.SampleResource, 1, "report", "--then-sleep")))
		r.unscheduled("c")
		r.must(r.Delete(r.ctx, "a"))
		c := r.running("c")
		if _, dev1 := c.Mount("/tmp/Dev-1"); dev1 != first {
			t.Errorf("c has Dev-1: %v; a, which it follows, had it: %v", dev1, first)
		}
	})
}

// With CDI_ENABLED the sample plugin grants the same device as a CDI device, too.
func TestCDIDevices(t *testing.T) {
	r := start(t)
	r.samplePlugin(func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: "CDI_ENABLED", Value: "1"}) })
	got := r.run("a", node.SampleResource, 1)
	if got.Env["CDI_DEVICE"] != "CDI-Dev-1" {
		t.Errorf("CDI_DEVICE is %q, want CDI-Dev-1", got.Env["CDI_DEVICE"])
	}
	r.must(r.Create(r.ctx, node.Pod("b", node.SampleResource, 1, "open", "/tmp/CDI-Dev-2", "r"))) // there is no such disk, but a node
	if _, err := r.WaitPhase(r.soon(time.Minute), "b", corev1.PodFailed); err != nil {
		t.Error(err)
	}
	log, err := r.PodLogs(r.ctx, metav1.NamespaceDefault, "b", "main")
	if err != nil || !strings.Contains(log, "no such device or address") {
		t.Errorf("opening the CDI device: %q, %v; want that its disk is missing", log, err)
	}
}

// A plugin that starts while devmgrd is away reaches the kubelet. That is told as soon as devmgrd is back.
func TestAPluginStartsWithoutUs(t *testing.T) {
	r := start(t)
	r.must(r.Devmgrd.Stop(10 * time.Second))
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
	r.must(r.Client().CoreV1().Pods(set.Namespace).Delete(r.ctx, pod, metav1.DeleteOptions{}))
	r.until("the successor is led to devmgrd, and the gauge falls", func() bool {
		return r.metric("devmgrd_containers_not_redirected") == 0 && r.metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", node.SampleResource)) == 1
	})
	if out := r.says("plugins", node.SampleResource, "serving"); strings.Contains(out, "NOT REDIRECTED") {
		t.Errorf("devmgrd plugins: %s", out)
	}
}
