//go:build e2e

package cluster_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
)

func TestMain(m *testing.M) { cluster.Main(m.Run, cluster.Needs(cluster.Kubernetes)) }

func TestProbePod(t *testing.T) {
	c := start(t, cluster.Options{})
	create(t, c.Client(), probePod("probe", "report"))
	waitPhase(t, c, "probe", corev1.PodSucceeded)

	r := readReport(t, c, "probe")
	if got := r.Env["GREETING"]; got != "hello" {
		t.Errorf("GREETING is %q inside, want hello", got)
	}
	if null, ok := r.Device("/dev/null"); !ok || null.Type != "c" || null.Major != 1 || null.Minor != 3 {
		t.Errorf("/dev/null is %+v inside (found: %v), want c 1:3", null, ok)
	}
	if root, ok := r.Mount("/"); !ok || root.FSType != "overlay" {
		t.Errorf("/ is %+v inside (found: %v), want an overlay", root, ok)
	}
}

// The sample device plugin registers with the kubelet and a pod gets one of its devices: all real parts.
func TestSampleDevicePlugin(t *testing.T) {
	c := start(t, cluster.Options{})
	plugin := cluster.NewProcess("sample-device-plugin", c.LogDir()+"/sample-device-plugin.log",
		[]string{tools(t).Path("sample-device-plugin")}, nil)
	if err := plugin.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plugin.Stop(5 * time.Second) })

	const name = "example.com/resource"
	ctx := deadline(t)
	if err := c.WaitNode(ctx, func(n *corev1.Node) (bool, error) {
		q := n.Status.Allocatable[name]
		return q.Value() == 2, nil
	}); err != nil {
		t.Fatal(err)
	}
	pod := probePod("user", "report")
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{name: resource.MustParse("1")}
	create(t, c.Client(), pod)
	waitPhase(t, c, "user", corev1.PodSucceeded)
	r := readReport(t, c, "user")
	_, one := r.Mount("/tmp/Dev-1")
	_, two := r.Mount("/tmp/Dev-2")
	if one == two {
		t.Errorf("the container has /tmp/Dev-1: %v, /tmp/Dev-2: %v; want one of them", one, two)
	}
}

func TestRestartsUnderARunningPod(t *testing.T) {
	c := start(t, cluster.Options{})
	create(t, c.Client(), probePod("steady", "report", "--then-sleep"))
	waitPhase(t, c, "steady", corev1.PodRunning)
	before := containerID(t, c, "steady")

	ctx := deadline(t)
	restart := func(p *cluster.Process) {
		t.Helper()
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if p.Running() {
			t.Fatalf("%s runs after Kill", p.Name)
		}
		if err := p.Start(ctx); err != nil {
			t.Fatal(err)
		}
	}
	restart(c.Runtime)
	if err := c.WaitRuntime(ctx); err != nil { // a kubelet that finds no runtime ends at once
		t.Fatal(err)
	}
	restart(c.Kubelet)
	if err := c.WaitNodeReady(ctx); err != nil {
		t.Fatal(err)
	}
	// That a new pod runs to its end says that both are at work again.
	create(t, c.Client(), probePod("after", "report"))
	waitPhase(t, c, "after", corev1.PodSucceeded)
	if after := containerID(t, c, "steady"); after != before {
		t.Errorf("the container became %s, was %s: the restarts ended it", after, before)
	}
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	c := start(t, cluster.Options{
		Dir:               dir,
		NodeName:          "other",
		KubeletConfig:     "maxPods: 7\n",
		ContainerdConfig:  "[debug]\n  level = 'debug'\n",
		NRIRequestTimeout: 5 * time.Second,
	})
	err := c.WaitNode(deadline(t), func(n *corev1.Node) (bool, error) {
		return n.Name == "other" && n.Status.Allocatable.Pods().Value() == 7, nil
	})
	if err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(dir + "/containerd.log")
	if err != nil || !strings.Contains(string(log), "level=debug") {
		t.Errorf("containerd's log does not show level debug (%v)", err)
	}
	if _, err := os.Stat(c.NRISocket()); err != nil {
		t.Error(err)
	}
}

func TestErrorShowsLog(t *testing.T) {
	ctx := deadline(t)
	_, err := cluster.Start(ctx, tools(t), cluster.Options{KubeletConfig: "maxPods: -7\n"})
	if err == nil {
		t.Fatal("a cluster started whose kubelet cannot")
	}
	if !strings.Contains(err.Error(), "maxPods") {
		t.Errorf("the error does not say what the kubelet says:\n%v", err)
	}
}

func tools(t *testing.T) cluster.Tools {
	t.Helper()
	built, err := cluster.Build(t.Context(), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	return built
}

// start brings a cluster up for one test and checks that it goes without a trace.
func start(t *testing.T, o cluster.Options) *cluster.Cluster {
	t.Helper()
	o.Log = t.Output()
	c, err := cluster.Start(t.Context(), tools(t), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		began := time.Now()
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
		t.Logf("stopped in %s", time.Since(began).Round(10*time.Millisecond))
	})
	return c
}

// deadline is a context for what has to come, on a machine that does many things at once.
func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func probePod(name string, args ...string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "probe", Image: cluster.ProbeImage, Args: args,
				Env: []corev1.EnvVar{{Name: "GREETING", Value: "hello"}},
			}},
		},
	}
}

func create(t *testing.T, client kubernetes.Interface, pod *corev1.Pod) {
	t.Helper()
	if _, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func waitPhase(t *testing.T, c *cluster.Cluster, name string, phase corev1.PodPhase) {
	t.Helper()
	began := time.Now()
	err := c.WaitPod(deadline(t), "default", name, func(p *corev1.Pod) (bool, error) {
		return p != nil && p.Status.Phase == phase, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("pod %s is %s after %s", name, phase, time.Since(began).Round(10*time.Millisecond))
}

func containerID(t *testing.T, c *cluster.Cluster, name string) string {
	t.Helper()
	pod, err := c.Client().CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status := pod.Status.ContainerStatuses[0]
	if status.State.Running == nil || status.RestartCount != 0 {
		t.Errorf("the container of %s is not in its first life: %+v", name, status)
	}
	return status.ContainerID
}

func readReport(t *testing.T, c *cluster.Cluster, name string) report.Report {
	t.Helper()
	log, err := c.PodLogs(t.Context(), "default", name, "probe")
	if err != nil {
		t.Fatal(err)
	}
	var r report.Report
	if err := json.Unmarshal([]byte(log), &r); err != nil {
		t.Fatalf("the pod's log is no report: %v\n%s", err, log)
	}
	return r
}
