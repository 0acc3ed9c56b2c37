//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
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

// A criRuntime is the runtime as crictl and others speak to it: pods without any Kubernetes.
type criRuntime struct {
	cri.RuntimeServiceClient
	t   *testing.T
	ctx context.Context
}

func (r *harness) cri() criRuntime {
	r.t.Helper()
	conn, err := grpc.NewClient("unix://"+r.Containers.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	r.must(err)
	r.t.Cleanup(func() { conn.Close() })
	return criRuntime{cri.NewRuntimeServiceClient(conn), r.t, r.ctx}
}

// pod makes a pod sandbox with annotations, which is removed when the test ends.
func (c criRuntime) pod(name string, annotations map[string]string) (string, *cri.PodSandboxConfig) {
	c.t.Helper()
	config := &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: name, Uid: "uid-of-" + name, Namespace: "plain"}, Annotations: annotations,
		Linux: &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{
			NamespaceOptions: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}}},
	}
	made, err := c.RunPodSandbox(c.ctx, &cri.RunPodSandboxRequest{Config: config})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { c.remove(made.PodSandboxId) })
	return made.PodSandboxId, config
}

func (c criRuntime) remove(sandbox string) {
	ctx := context.WithoutCancel(c.ctx)
	_, err := c.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: sandbox})
	if err == nil {
		_, err = c.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: sandbox})
	}
	if err != nil {
		c.t.Error(err)
	}
}

// run makes and starts a container "main" that sleeps.
func (c criRuntime) run(sandbox string, config *cri.PodSandboxConfig) error {
	made, err := c.CreateContainer(c.ctx, &cri.CreateContainerRequest{PodSandboxId: sandbox, SandboxConfig: config, Config: &cri.ContainerConfig{
		Metadata: &cri.ContainerMetadata{Name: "main"}, Image: &cri.ImageSpec{Image: cluster.ProbeImage}, Args: []string{"sleep"},
		Linux: &cri.LinuxContainerConfig{},
	}})
	if err != nil {
		return err
	}
	_, err = c.StartContainer(c.ctx, &cri.StartContainerRequest{ContainerId: made.ContainerId})
	return err
}

// Without any Kubernetes pods say in an annotation what they ask for, and get it.
func TestLocalPods_WithoutKubernetes_GetDevices(t *testing.T) {
	r := start(t)
	r.must(r.Devmgrd.Stop(stopLimit))
	for _, p := range []*cluster.Process{r.Kubelet, r.ControllerManager, r.Scheduler, r.APIServer, r.Etcd} {
		r.must(p.Kill())
	}
	alone := r.Another("devmgrd-alone", "--set", "kubernetes.mode=none", "--set", "kubernetes.kubeconfig=/nowhere")
	r.Devmgrd = alone
	r.must(r.StartDevmgrd(r.ctx))
	plugintest.Start(t, node.SocketDir, gpu, plugintest.Devices(2)...)
	c := r.cri()

	plain, config := c.pod("plain", nil)
	r.must(c.run(plain, config))
	asking := func(n int) map[string]string {
		return map[string]string{"devmgrd.io/resources": fmt.Sprintf(`{"main":{%q:%d}}`, gpu, n)}
	}
	one, config := c.pod("one", asking(1))
	r.until("the pod runs with a device", func() bool { return c.run(one, config) == nil })
	two, config := c.pod("two", asking(2))
	err := c.run(two, config)
	for err != nil && strings.Contains(err.Error(), "Allocating") {
		err = c.run(two, config)
	}
	if err == nil || !strings.Contains(err.Error(), "NotEnoughDevices: "+gpu+": 2 wanted, 1 of 2 free") {
		t.Errorf("two of one free: %v", err)
	}
	stamps, err := r.Stamps(r.ctx)
	r.must(err)
	if len(stamps) != 1 || stamps[0].Pod != "plain/one" || len(stamps[0].Devices[gpu]) != 1 {
		t.Errorf("the stamps are %+v, want one device of pod one", stamps)
	}
	free := fmt.Sprintf(`devmgrd_devices{resource_name=%q,state="free"}`, gpu)

	// A restart of devmgrd changes nothing; a pod that goes while it is away releases its device.
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.ctx))
	r.until("one device is free, as before", func() bool { return r.metric(free) == 1 })
	r.must(r.Devmgrd.Kill())
	c.remove(one)
	r.must(r.StartDevmgrd(r.ctx))
	r.until("the pod that waited runs", func() bool { return c.run(two, config) == nil })
	c.remove(two)
	r.until("both devices are free", func() bool { return r.metric(free) == 2 })
}
