//go:build e2e

package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
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
func TestMainJob_SamplePlugin_PodsGetDevices(t *testing.T) {
	r := startWith(t, cluster.Options{KubeletConfig: staticCPUs})

	set, err := r.SamplePlugin()
	r.must(err)
	r.must(r.Apply(r.ctx, set))
	r.until("the sample plugin has registered", func() bool {
		return r.metric(`device_plugin_registration_total{resource_name="`+node.SampleResource+`"}`) >= 1
	})
	registered := time.Now()
	r.must(r.WaitShown(r.soon(), node.SampleResource, 2))
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
			r.must(r.WaitShown(r.soon(), node.SampleResource, 2))
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
func TestMainJob_CDI_PodsGetDevices(t *testing.T) {
	r := start(t)
	r.samplePlugin(func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: "CDI_ENABLED", Value: "1"}) })
	if r.lacks(cluster.CDI) {
		r.must(r.Create(r.ctx, node.Pod("a", node.SampleResource, 1, "report")))
		r.refused("a", "PluginError")
		r.told("a", "CDI")
		return
	}
	got := r.run("a", node.SampleResource, 1)
	if got.Env["CDI_DEVICE"] != "CDI-Dev-1" {
		t.Errorf("CDI_DEVICE is %q, want CDI-Dev-1", got.Env["CDI_DEVICE"])
	}
	r.must(r.Create(r.ctx, node.Pod("b", node.SampleResource, 1, "open", "/tmp/CDI-Dev-2", "r"))) // there is no such disk, but a node
	if _, err := r.WaitPhase(r.soon(), "b", corev1.PodFailed); err != nil {
		t.Error(err)
	}
	log := asked(r, func() (string, error) { return r.PodLogs(r.ctx, metav1.NamespaceDefault, "b", "main") })
	if !strings.Contains(log, "no such device or address") {
		t.Errorf("opening the CDI device: %q; want that its disk is missing", log)
	}
}

// Init containers hand their devices on; sidecars keep theirs; apps have their own; debug containers have none.
func TestPods_ContainerKinds_ShareDevices(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 5)
	always := corev1.ContainerRestartPolicyAlways
	pod := node.Pod("a", "", 0)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	sidecar := asks("sidecar", 1, "report", "--then-sleep")
	sidecar.RestartPolicy = &always
	pod.Spec.InitContainers = []corev1.Container{asks("init", 2, "report"), sidecar, asks("late-init", 1, "report")}
	pod.Spec.Containers = []corev1.Container{
		asks("one", 2, "report", "--then-sleep"), asks("none", 0, "report", "--then-sleep"), asks("two", 1, "report", "--then-sleep"),
	}
	r.must(r.Create(r.ctx, pod))
	_, err := r.WaitPhase(r.soon(), "a", corev1.PodRunning)
	r.must(err)
	got := r.held("a", "init", "sidecar", "late-init", "one", "none", "two")
	for c, n := range map[string]int{"init": 2, "sidecar": 1, "late-init": 1, "one": 2, "none": 0, "two": 1} {
		if len(got[c]) != n {
			t.Errorf("container %s has %v, want %d", c, got[c], n)
		}
	}
	if !slices.Contains(got["init"], got["sidecar"][0]) || !slices.Contains(got["init"], got["late-init"][0]) {
		t.Errorf("the init containers' devices were not handed on: %v", got)
	}
	running := slices.Concat(got["sidecar"], got["one"], got["two"])
	slices.Sort(running)
	if len(slices.Compact(running)) != 4 {
		t.Errorf("containers that run side by side share devices: %v", got)
	}
	if n := p.Calls("Allocate"); n != 5 {
		t.Errorf("%d calls of Allocate, want one for each container that asks", n)
	}

	// A debug container comes later and asks for nothing.
	now, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, "a", metav1.GetOptions{})
	r.must(err)
	now.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: cluster.ProbeImage, Args: []string{"report"}, TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullNever}}}
	now.ResourceVersion = "" // the kubelet writes the pod's status meanwhile
	_, err = r.Client().CoreV1().Pods(metav1.NamespaceDefault).UpdateEphemeralContainers(r.ctx, "a", now, metav1.UpdateOptions{})
	r.must(err)
	if got := r.held("a", "debug"); len(got["debug"]) != 0 {
		t.Errorf("the debug container has %v", got)
	}

	// The pod's sandbox is recreated under the same UID: the same devices, and no plugin is asked again.
	before := r.held("a", "one", "two")
	stamps, err := r.Stamps(r.ctx)
	r.must(err)
	ids, err := r.RunningContainers(r.ctx, "two")
	r.must(err)
	sandbox, err := r.SandboxOf(r.ctx, ids[0])
	r.must(err)
	r.must(r.Containers.Kill(r.ctx, sandbox))
	r.until("the containers run in another sandbox, with the same devices", func() bool {
		now, err := r.RunningContainers(r.ctx, "two")
		if err != nil || len(now) != 1 || now[0] == ids[0] {
			return false
		}
		again, err := r.Stamps(r.ctx)
		return err == nil && len(again) == len(stamps) && sameDevices(stamps, again)
	})
	if n := p.Calls("Allocate"); n != 5 {
		t.Errorf("%d calls of Allocate after the sandbox was recreated, want 5; before it the pods had %v", n, before)
	}
}

// The IDs of replicas name their cards: a container gets replicas of different cards, and explain says why.
func TestOrder_SpreadByCard_ContainersGetDifferentCards(t *testing.T) {
	r := start(t, "--set", "allocation.order=vendor.example/*=spread", "--set", "allocation.groups="+gpu+"=^(.*)::")
	var replicas []*plugintest.Device
	for _, id := range []string{"a::0", "a::1", "a::2", "b::0", "b::1"} {
		replicas = append(replicas, plugintest.Dev(id, plugintest.Healthy))
	}
	plugintest.Start(t, node.SocketDir, gpu, replicas...)
	r.must(r.WaitShown(r.soon(), gpu, 5))
	for _, pod := range []struct {
		name  string
		count int
		want  []string
	}{{"first", 2, []string{"a::0", "b::0"}}, {"second", 1, []string{"a::1"}}, {"third", 2, []string{"a::2", "b::1"}}} {
		r.run(pod.name, gpu, pod.count)
		if got := r.held(pod.name, "main")["main"]; !slices.Equal(got, pod.want) {
			t.Errorf("%s has %q, want %q", pod.name, got, pod.want)
		}
		r.says("explain default/"+pod.name, "in the order spread")
	}
}

// A pod names the devices that it uses and avoids; without a free one it waits, and the annotation can be corrected.
func TestSelection_ByAnnotation_PodGetsThoseDevices(t *testing.T) {
	r := start(t, "--set", "allocation.selectors=true")
	r.plugin(gpu, 4)
	with := func(name, annotation string) *corev1.Pod {
		p := node.Pod(name, gpu, 1, "report", "--then-sleep")
		p.Annotations = map[string]string{device.DevicesAnnotation: annotation}
		return p
	}
	for _, pod := range []struct{ name, annotation, want string }{
		{"uses", `{"main": {"` + gpu + `": {"use": ["*2"]}}}`, "dev-000002"},
		{"avoids", `{"main": {"` + gpu + `": {"avoid": ["dev-00000[0-9]", "*0", "*1"]}}}`, "dev-000003"},
	} {
		r.must(r.Create(r.ctx, with(pod.name, pod.annotation)))
		if got := r.running(pod.name).Env["DEVICES"]; got != pod.want {
			t.Errorf("%s has %q, want %s", pod.name, got, pod.want)
		}
	}
	r.must(r.Create(r.ctx, with("waits", `{"main": {"`+gpu+`": {"use": ["dev-000002"]}}}`)))
	r.refused("waits", "NoSuchDevice")
	r.says("explain default/waits", "NoSuchDevice", "wants 1 of the 1 listed devices that the pod's annotation devmgrd.io/devices selects, and 0 of these are free")
	r.must(r.Create(r.ctx, with("mistake", `main: {`)))
	r.refused("mistake", "NoSuchDevice")
	r.says("explain default/mistake", "annotation devmgrd.io/devices: ", "write it like")

	patch := `{"metadata":{"annotations":{"` + device.DevicesAnnotation + `":"main: {` + gpu + `: {use: [dev-000000]}}"}}}`
	_, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Patch(r.ctx, "mistake", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	r.must(err)
	if got := r.running("mistake").Env["DEVICES"]; got != "dev-000000" {
		t.Errorf("the corrected pod has %q", got)
	}
}
