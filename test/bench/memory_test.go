package bench

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
	"github.com/devmgrd/devmgrd/internal/plugintest"
)

// BenchmarkResidentMemory runs the built daemon with 1 000 devices and 110 pods that have one each, and reads its resident memory
// from the kernel. The API server is the small one of the tests; the runtime is NRI's own side of the connection, without
// containers.
func BenchmarkResidentMemory(b *testing.B) {
	dir := b.TempDir()
	binary := filepath.Join(dir, "devmgrd")
	build := exec.Command("go", "build", "-o", binary, "github.com/devmgrd/devmgrd/cmd/devmgrd")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		b.Fatal(err)
	}
	api := kubetest.New(b)
	server := httptest.NewServer(api)
	b.Cleanup(server.CloseClientConnections)
	api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	for i := range 110 {
		name := fmt.Sprintf("pod-%d", i)
		api.Put(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
			Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
				Name: "main", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse("1")}},
			}}},
		})
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\n", server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	runtime := filepath.Join(dir, "nri.sock")
	nri, err := adaptation.New("containerd", "v2.4.2",
		func(ctx context.Context, sync adaptation.SyncCB) error { _, err := sync(ctx, nil, nil); return err },
		func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
			return nil, nil
		},
		adaptation.WithSocketPath(runtime), adaptation.WithPluginPath(filepath.Join(dir, "plugins")), adaptation.WithPluginConfigPath(filepath.Join(dir, "plugins")))
	if err != nil {
		b.Fatal(err)
	}
	if err := nri.Start(); err != nil {
		b.Fatal(err)
	}
	defer nri.Stop()
	state := filepath.Join(dir, "state")
	sockets := filepath.Join(dir, "s")
	daemon := exec.Command(binary, "run", "--set", "nodeName=node", "--set", "kubernetes.kubeconfig="+kubeconfig,
		"--set", "stateDir="+state, "--set", "runDir="+filepath.Join(dir, "run"),
		"--set", "plugins.socketDir="+sockets, "--set", "plugins.kubeletDir="+filepath.Join(dir, "kubelet"),
		"--set", "nri.socket="+runtime, "--set", "metrics.listen=")
	daemon.Env = []string{"PATH=" + os.Getenv("PATH")}
	var log strings.Builder
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() {
		daemon.Process.Signal(syscall.SIGTERM)
		if err := daemon.Wait(); err != nil {
			b.Errorf("the daemon ended with %v:\n%s", err, log.String())
		}
	}()
	plugintest.Eventually(b, "the daemon listens", func() bool {
		_, err := os.Stat(filepath.Join(sockets, "kubelet.sock"))
		return err == nil
	})
	p := plugintest.Start(b, sockets, gpu, plugintest.Devices(1000)...)
	plugintest.Eventually(b, "all pods have their devices", func() bool {
		q := api.Node("node").Status.Capacity[gpu]
		return p.Calls(plugintest.Allocate) == 110 && q.Value() == 1000
	})
	for b.Loop() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", daemon.Process.Pid))
		if err != nil {
			b.Fatal(err)
		}
		for line := range strings.Lines(string(status)) {
			for key, unit := range map[string]string{"VmRSS:": "MiB-resident", "RssAnon:": "MiB-anonymous"} {
				var kib float64
				if rest, ok := strings.CutPrefix(line, key); ok {
					fmt.Sscan(rest, &kib)
					b.ReportMetric(kib/1024, unit)
				}
			}
		}
	}
	b.ReportMetric(0, "ns/op")
}
