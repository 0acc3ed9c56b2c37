//go:build e2e

package mac

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/cluster"
)

// patience is how long the test waits for what must come, in an emulated machine on a busy one.
const patience = 3 * time.Minute

const resourceName = "vendor.example/gpu"

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		t.Fatalf("%s: it did not come to that: %v", what, err)
	}
}

// types runs a command that has to succeed, and returns what it prints.
func types(t *testing.T, words ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), words[0], words[1:]...).CombinedOutput()
	if err != nil {
		journal, _ := exec.Command("journalctl", "--no-pager", "--lines=50", "--unit=devmgrd.service").CombinedOutput()
		t.Fatalf("%s: %v\n%s\n--- the journal\n%s", strings.Join(words, " "), err, out, journal)
	}
	return string(out)
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// apiServer starts an API server with the node, and has the kubelet's credentials lead to it.
func apiServer(t *testing.T) *kubetest.Server {
	t.Helper()
	s := kubetest.New(t)
	put(t, "/etc/kubernetes/kubelet.conf", fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://%s"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
current-context: c
users: [{name: u, user: {}}]
`, s.Client().Get().URL().Host))
	s.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: cluster.NodeName}})
	return s
}

func pod() *corev1.Pod {
	limits := corev1.ResourceList{resourceName: resource.MustParse("2")}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "job", UID: "0b1c2d3e-0000-4000-8000-000000000001", CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{NodeName: cluster.NodeName, Containers: []corev1.Container{
			{Name: "main", Resources: corev1.ResourceRequirements{Limits: limits, Requests: limits}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

// runtime starts NRI's side of a container runtime at the default path.
func runtime(t *testing.T) *adaptation.Adaptation {
	t.Helper()
	adaptation.SetPluginRequestTimeout(patience)
	dir := t.TempDir()
	r, err := adaptation.New("containerd", "v2.4.2",
		func(ctx context.Context, sync adaptation.SyncCB) error { _, err := sync(ctx, nil, nil); return err },
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithSocketPath("/var/run/nri/nri.sock"), adaptation.WithPluginPath(dir), adaptation.WithPluginConfigPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// A lister answers as a kubelet without pods.
type lister struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
}

func (lister) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	return &podresourcesv1.ListPodResourcesResponse{}, nil
}

// kubelet listens at the kubelet's PodResources socket, which devmgrd asks and takes over.
func kubelet(t *testing.T) {
	t.Helper()
	const path = "/var/lib/kubelet/pod-resources/kubelet.sock"
	for _, dir := range []string{filepath.Dir(path), "/var/lib/kubelet/device-plugins"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(s, lister{})
	go s.Serve(l)
	t.Cleanup(s.Stop)
}

// plugin starts a device plugin whose devices are all that devmgrd looks at on the host: a node, a directory of nodes, a mount
// whose source is missing, a CDI device.
func plugin(t *testing.T) *plugintest.Plugin {
	t.Helper()
	put(t, "/etc/cdi/vendor.json", `{"cdiVersion": "0.6.0", "kind": "vendor.example/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["CDI=yes"]}}]}`)
	if err := errors.Join(os.Mkdir("/dev/vendor", 0o755), unix.Mknod("/dev/vendor/gpu0", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))); err != nil {
		t.Fatal(err)
	}
	p := plugintest.New(t, "/run/devmgrd/device-plugins", resourceName, plugintest.Devices(4)...)
	p.OnAllocate = func(_ context.Context, r *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
		answer := &plugintest.AllocateResponse{}
		for _, c := range r.ContainerRequests {
			answer.ContainerResponses = append(answer.ContainerResponses, granted(c.DevicesIds))
		}
		return answer, nil
	}
	p.Serve()
	p.MustRegister()
	return p
}
