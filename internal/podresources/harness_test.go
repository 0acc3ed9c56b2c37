package podresources_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	podresourcesv1 "github.com/devmgrd/devmgrd/api/devmgrd/podresources/v1"
	proposal "github.com/devmgrd/devmgrd/api/podresources/v1alpha1"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const (
	gpu device.ResourceName = "vendor.com/gpu"
	nic device.ResourceName = "vendor.com/nic"
)

// A harness is a server in front of a real allocator with real state file. Plugins are the test's.
type harness struct {
	*allocatortest.Allocator
	t       *testing.T
	server  *podresources.Server
	kubelet *kubelet
	path    string
	log     *journal
	metrics *prometheus.Registry

	v1     v1.PodResourcesListerClient
	alpha  v1alpha1.PodResourcesListerClient
	draft  *proposal.PodResourcesClient
	watch  podresourcesv1.PodResourcesServiceClient
	end    func() // of the server
	config podresources.Config
}

// start makes a rig and serves. The configuration may be changed before.
func start(t *testing.T, change ...func(*podresources.Config)) *harness {
	t.Helper()
	dir := t.TempDir()
	log := &journal{}
	r := &harness{t: t, Allocator: allocatortest.Start(t, filepath.Join(dir, "state")), path: filepath.Join(dir, "pod-resources", "kubelet.sock"), log: log, metrics: prometheus.NewRegistry()}
	r.kubelet = serveKubelet(t, filepath.Join(dir, "kubelet", "kubelet.sock"))
	r.config = podresources.Config{
		Socket: r.path, KubeletSocket: r.kubelet.path, Allocator: r.Allocator, Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: r.metrics,
	}
	for _, f := range change {
		f(&r.config)
	}
	r.server = podresources.New(r.config)
	r.server.Alone()
	served, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.server.Run(served) }()
	r.end = sync.OnceFunc(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.end)
	conn := plugintest.Client(t, r.path)
	r.v1, r.alpha = v1.NewPodResourcesListerClient(conn), v1alpha1.NewPodResourcesListerClient(conn)
	r.draft, r.watch = proposal.NewPodResourcesClient(conn), podresourcesv1.NewPodResourcesServiceClient(conn)
	return r
}

// bind binds a pod whose container main asks for devices, and waits until it has them.
func (r *harness) bind(name string, resource device.ResourceName, n int) device.PodDemand {
	r.t.Helper()
	return r.Settle(r.t, pod(name, resource, n))
}

func pod(name string, resource device.ResourceName, n int) device.PodDemand {
	return allocatortest.Pod(name, resource, n)
}

// metric returns the sum of a counter's series whose labels have all of these values.
func (r *harness) metric(name string, values ...string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		for _, m := range f.Metric {
			has := map[string]bool{}
			for _, l := range m.Label {
				has[l.GetValue()] = true
			}
			all := f.GetName() == name
			for _, v := range values {
				all = all && has[v]
			}
			if all {
				sum += m.Counter.GetValue()
			}
		}
	}
	return sum
}

// journal is the log as text.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

// count tells how many lines have the text.
func (j *journal) count(text string) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return bytes.Count(j.text.Bytes(), []byte(text))
}

// addUnknown sets the unknown fields of from in to.
func addUnknown(to, from proto.Message) {
	to.ProtoReflect().SetUnknown(from.ProtoReflect().GetUnknown())
}

// A kubelet answers what a test says. Its lists have the unknown fields of allocatable, and each of its List answers has the number of the call as a CPU of the pod "count".
type kubelet struct {
	v1.UnimplementedPodResourcesListerServer
	path  string
	stop  func()
	calls atomic.Int64
	gets  atomic.Int64
	old   bool // it does not know Get

	mu          sync.Mutex
	pods        []*v1.PodResources
	allocatable *v1.AllocatableResourcesResponse
	hang        chan struct{} // not nil: nothing is answered before it is closed
}

// oldLister is its v1alpha1.
type oldLister struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	*kubelet
}

func serveKubelet(t *testing.T, path string) *kubelet {
	t.Helper()
	k := &kubelet{path: path}
	k.serve(t)
	return k
}

// serve begins to serve, once more.
func (k *kubelet) serve(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(k.path), 0o750); err != nil {
		t.Fatal(err)
	}
	os.Remove(k.path)
	l, err := net.Listen("unix", k.path)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	v1.RegisterPodResourcesListerServer(s, k)
	v1alpha1.RegisterPodResourcesListerServer(s, oldLister{kubelet: k})
	go s.Serve(l)
	k.stop = sync.OnceFunc(s.Stop)
	t.Cleanup(k.stop)
}

// has changes what it answers.
func (k *kubelet) has(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *kubelet) wait(ctx context.Context) error {
	k.mu.Lock()
	hang := k.hang
	k.mu.Unlock()
	if hang == nil {
		return nil
	}
	select {
	case <-hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *kubelet) List(ctx context.Context, _ *v1.ListPodResourcesRequest) (*v1.ListPodResourcesResponse, error) {
	n := k.calls.Add(1)
	if err := k.wait(ctx); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	count := &v1.PodResources{Name: "count", Namespace: "kubelet", Containers: []*v1.ContainerResources{{Name: "c", CpuIds: []int64{n}}}}
	all := &v1.ListPodResourcesResponse{PodResources: append([]*v1.PodResources{count}, k.pods...)}
	addUnknown(all, k.allocatable)
	return all, nil
}

// Get answers for one pod.
func (k *kubelet) Get(ctx context.Context, request *v1.GetPodResourcesRequest) (*v1.GetPodResourcesResponse, error) {
	if k.old {
		return k.UnimplementedPodResourcesListerServer.Get(ctx, request)
	}
	k.gets.Add(1)
	if err := k.wait(ctx); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if p.Name == request.PodName && p.Namespace == request.PodNamespace {
			one := &v1.GetPodResourcesResponse{PodResources: p}
			addUnknown(one, k.allocatable)
			return one, nil
		}
	}
	return nil, fmt.Errorf("pod %s in namespace %s not found", request.PodName, request.PodNamespace)
}

func (k *kubelet) GetAllocatableResources(ctx context.Context, _ *v1.AllocatableResourcesRequest) (*v1.AllocatableResourcesResponse, error) {
	if err := k.wait(ctx); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.allocatable, nil
}

func (l oldLister) List(ctx context.Context, _ *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	if err := l.wait(ctx); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	answer := &v1alpha1.ListPodResourcesResponse{}
	addUnknown(answer, l.allocatable)
	for _, p := range l.pods {
		old := &v1alpha1.PodResources{Name: p.Name, Namespace: p.Namespace}
		addUnknown(old, p)
		for _, c := range p.Containers {
			old.Containers = append(old.Containers, &v1alpha1.ContainerResources{Name: c.Name})
			addUnknown(old.Containers[len(old.Containers)-1], c)
		}
		answer.PodResources = append(answer.PodResources, old)
	}
	return answer, nil
}
