package bench

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
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
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// BenchmarkResidentMemory runs the built daemon with 1 000 devices and 110 pods that have one each, and reads its resident memory
// from the kernel.
func BenchmarkResidentMemory(b *testing.B) {
	d := newDaemon(b)
	for i := range 110 {
		name := fmt.Sprintf("pod-%d", i)
		d.api.Put(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID(name)},
			Spec: corev1.PodSpec{NodeName: "node", Containers: []corev1.Container{{
				Name: "main", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{gpu: resource.MustParse("1")}},
			}}},
		})
	}
	d.start(nil)
	p := plugintest.Start(b, d.sockets, gpu, plugintest.Devices(1000)...)
	plugintest.Eventually(b, "all pods have their devices", func() bool {
		return p.Calls(plugintest.Allocate) == 110 && d.shown() == 1000
	})
	for b.Loop() {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.process.Process.Pid))
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

// BenchmarkClaimsMemory runs the built daemon with the number of the devices on the Node, and with the devices in ResourceSlices, and
// compares what 2 048 devices add to the live heap. The design allows 2 KiB more for a device in slices.
func BenchmarkClaimsMemory(b *testing.B) {
	const most = 2048
	heap := func(devices int, claims bool) float64 {
		b.Helper()
		all := make([]*plugintest.Device, devices)
		for i := range all {
			all[i] = plugintest.Dev(fmt.Sprintf("GPU-5b1f5a34-8d3c-4f3e-9a64-%012d", i), plugintest.Healthy, int64(i%8))
		}
		d := newDaemon(b)
		defer d.stop()
		if !claims {
			d.start([]string{"GOGC=1"})
			plugintest.Start(b, d.sockets, gpu, all...)
			plugintest.Eventually(b, "the Node shows the devices", func() bool { return d.shown() == int64(devices) })
			return d.heap()
		}
		d.start([]string{"GOGC=1"}, "--set", "dra.resources="+gpu)
		plugintest.Start(b, d.sockets, gpu, all...)
		plugintest.Eventually(b, "the slices show the devices", func() bool {
			n := 0
			for _, slice := range d.api.ResourceSlices() {
				n += len(slice.Spec.Devices)
			}
			return n == devices
		})
		return d.heap()
	}
	for b.Loop() {
		counted := (heap(most, false) - heap(1, false)) / (most - 1)
		claimed := (heap(most, true) - heap(1, true)) / (most - 1)
		b.ReportMetric(counted, "B/device-by-number")
		b.ReportMetric(claimed, "B/device-by-claim")
		b.ReportMetric(claimed-counted, "B/device-more")
	}
	b.ReportMetric(0, "ns/op") // it would count the starts
}

// A daemon is the built daemon. The API server is the small one of the tests; the runtime is NRI's own side of the connection, without
// containers.
type daemon struct {
	b       *testing.B
	api     *kubetest.Server
	sockets string // for device plugins
	process *exec.Cmd
	metrics string // the address
	log     strings.Builder

	dir, binary, kubeconfig, runtime string
}

// newDaemon builds the daemon and starts what is around it.
func newDaemon(b *testing.B) *daemon {
	b.Helper()
	dir := b.TempDir()
	d := &daemon{
		b: b, dir: dir, api: kubetest.New(b), sockets: filepath.Join(dir, "s"),
		binary: filepath.Join(dir, "devmgrd"), kubeconfig: filepath.Join(dir, "kubeconfig"), runtime: filepath.Join(dir, "nri.sock"),
	}
	build := exec.Command("go", "build", "-o", d.binary, "github.com/devmgrd/devmgrd/cmd/devmgrd")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		b.Fatal(err)
	}
	server := httptest.NewServer(d.api)
	b.Cleanup(server.CloseClientConnections)
	d.api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", UID: "node"}})
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\n", server.URL)
	if err := os.WriteFile(d.kubeconfig, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	nri, err := adaptation.New("containerd", "v2.4.2",
		func(ctx context.Context, sync adaptation.SyncCB) error { _, err := sync(ctx, nil, nil); return err },
		func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
			return nil, nil
		},
		adaptation.WithSocketPath(d.runtime), adaptation.WithPluginPath(filepath.Join(dir, "plugins")), adaptation.WithPluginConfigPath(filepath.Join(dir, "plugins")))
	if err != nil {
		b.Fatal(err)
	}
	if err := nri.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(nri.Stop)
	return d
}

// start starts the daemon, and returns when plugins can register. The daemon ends with the benchmark.
func (d *daemon) start(env []string, args ...string) {
	d.b.Helper()
	listen, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		d.b.Fatal(err)
	}
	d.metrics = listen.Addr().String()
	listen.Close()
	d.process = exec.Command(d.binary, append([]string{"run", "--set", "nodeName=node", "--set", "kubernetes.kubeconfig=" + d.kubeconfig,
		"--set", "stateDir=" + filepath.Join(d.dir, "state"), "--set", "runDir=" + filepath.Join(d.dir, "run"),
		"--set", "plugins.socketDir=" + d.sockets, "--set", "plugins.kubeletDir=" + filepath.Join(d.dir, "kubelet"),
		"--set", "nri.socket=" + d.runtime, "--set", "metrics.listen=" + d.metrics}, args...)...)
	d.process.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	d.process.Stderr = &d.log
	if err := d.process.Start(); err != nil {
		d.b.Fatal(err)
	}
	d.b.Cleanup(d.stop)
	plugintest.Eventually(d.b, "the daemon listens", func() bool {
		_, err := os.Stat(filepath.Join(d.sockets, "kubelet.sock"))
		return err == nil
	})
}

// stop ends the daemon, if it still runs.
func (d *daemon) stop() {
	if d.process.ProcessState != nil {
		return
	}
	d.process.Process.Signal(syscall.SIGTERM)
	if err := d.process.Wait(); err != nil {
		d.b.Errorf("the daemon ended with %v:\n%s", err, d.log.String())
	}
}

// shown returns how many devices the Node shows.
func (d *daemon) shown() int64 {
	q := d.api.Node("node").Status.Capacity[gpu]
	return q.Value()
}

// heap returns the bytes in live objects, of a daemon that runs with GOGC=1: the least of many samples.
func (d *daemon) heap() float64 {
	d.b.Helper()
	least := math.Inf(1)
	for range 100 { // each makes garbage, so that there are collections
		answer, err := http.Get("http://" + d.metrics + "/metrics")
		if err != nil {
			d.b.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil {
			d.b.Fatal(err)
		}
		_, rest, found := strings.Cut(string(text), "\ngo_memstats_heap_alloc_bytes ")
		if !found {
			d.b.Fatal("the daemon does not report its heap")
		}
		var bytes float64
		fmt.Sscan(rest, &bytes)
		least = min(least, bytes)
	}
	return least
}
