package kubelet

import (
	"context"
	"net"
	"path/filepath"
	_ "unsafe" // for go:linkname

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/lib/model"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	apisgrpc "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/checkpointmanager"
	_ "k8s.io/kubernetes/pkg/kubelet/cm" // for containerDevices
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
)

// newManager makes the kubelet's device manager, at a path of our own. The exported one has a path that is a node's.
//
//go:linkname newManager k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManager(log klog.Logger, socket string, topology []cadvisorapi.Node, affinity topologymanager.Store) (*devicemanager.ManagerImpl, error)

// containerDevices converts the device manager's devices as the kubelet's container manager does.
//
//go:linkname containerDevices k8s.io/kubernetes/pkg/kubelet/cm.containerDevicesFromResourceDeviceInstances
func containerDevices(devicemanager.ResourceDeviceInstances) []*v1.ContainerDevices

// kubelet returns the kubelet's server what it asks for: devices from the kubelet's own device manager, as the kubelet does, and
// the rest as cheaply as can be.
type kubelet struct {
	*devicemanager.ManagerImpl
	pods []*corev1.Pod
	cpus map[container][]int64
}

type container struct{ pod, name string }

func (k *kubelet) GetActivePods() []*corev1.Pod                    { return k.pods }
func (k *kubelet) GetPods() []*corev1.Pod                          { return k.pods }
func (k *kubelet) GetPodByName(string, string) (*corev1.Pod, bool) { return nil, false }
func (k *kubelet) GetPodCPUs(string) []int64                       { return nil }
func (k *kubelet) GetAllocatableCPUs() []int64                     { return nil }
func (k *kubelet) GetCPUs(pod *corev1.Pod, c *corev1.Container) []int64 {
	return k.cpus[container{pod.Name, c.Name}]
}
func (k *kubelet) GetMemory(klog.Logger, *corev1.Pod, *corev1.Container) []*v1.ContainerMemory {
	return nil
}
func (k *kubelet) GetPodMemory(klog.Logger, string) []*v1.ContainerMemory   { return nil }
func (k *kubelet) GetAllocatableMemory(klog.Logger) []*v1.ContainerMemory   { return nil }
func (k *kubelet) GetAllocatableDevices(klog.Logger) []*v1.ContainerDevices { return nil }
func (k *kubelet) GetDevices(pod, name string) []*v1.ContainerDevices {
	return containerDevices(k.ManagerImpl.GetDevices(pod, name))
}
func (k *kubelet) GetDynamicResources(klog.Logger, *corev1.Pod, *corev1.Container) []*v1.DynamicResource {
	return nil
}

// Served says how to serve.
type Served struct {
	Socket  string
	Content []byte // a ListPodResourcesResponse: what has to be told
	Limited bool   // as the kubelet limits all of its clients together
}

// ServeKubelet serves as the kubelet does.
func (p *Process) ServeKubelet(s Served, _ *none) error {
	content := &v1.ListPodResourcesResponse{}
	if err := proto.Unmarshal(s.Content, content); err != nil {
		return err
	}
	k := &kubelet{cpus: map[container][]int64{}}
	var entries []checkpoint.PodDevicesEntry
	for _, r := range content.PodResources {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace, Name: r.Name, UID: types.UID(r.Name)}}
		for _, c := range r.Containers {
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c.Name})
			k.cpus[container{r.Name, c.Name}] = c.CpuIds
			near := map[string]checkpoint.DevicesPerNUMA{}
			for _, d := range c.Devices {
				if near[d.ResourceName] == nil {
					near[d.ResourceName] = checkpoint.DevicesPerNUMA{}
				}
				at := d.Topology.Nodes[0].ID
				near[d.ResourceName][at] = append(near[d.ResourceName][at], d.DeviceIds...)
			}
			for resource, ids := range near {
				entries = append(entries, checkpoint.PodDevicesEntry{PodUID: r.Name, ContainerName: c.Name, ResourceName: resource, DeviceIDs: ids})
			}
		}
		k.pods = append(k.pods, pod)
	}
	// The device manager learns what it has given out as after a restart: from its checkpoint.
	dir, quiet := p.t.TempDir(), logr.Discard()
	file, err := checkpointmanager.NewCheckpointManager(dir)
	if err != nil {
		return err
	}
	if err := file.CreateCheckpoint("kubelet_internal_checkpoint", checkpoint.New(entries, nil)); err != nil {
		return err
	}
	k.ManagerImpl, err = newManager(quiet, filepath.Join(dir, "kubelet.sock"), nil, topologymanager.NewFakeManager(quiet))
	if err != nil {
		return err
	}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := k.Start(quiet, k.GetActivePods, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return err
	}
	p.t.Cleanup(func() { k.Stop(quiet) })

	ctx := klog.NewContext(p.t.Context(), quiet)
	var options []grpc.ServerOption
	if s.Limited {
		options = append(options, apisgrpc.WithRateLimiter(ctx, "podresources", podresources.DefaultQPS, podresources.DefaultBurstTokens))
	}
	return p.serve(s.Socket, podresources.NewV1PodResourcesServer(ctx, podresources.PodResourcesProviders{
		Pods: k, Devices: k, Cpus: k, Memory: k, DynamicResources: k,
	}), options...)
}

func (p *Process) serve(socket string, lister v1.PodResourcesListerServer, options ...grpc.ServerOption) error {
	server := grpc.NewServer(options...)
	v1.RegisterPodResourcesListerServer(server, lister)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	go server.Serve(listener) // it ends with Stop
	p.t.Cleanup(server.Stop)
	return nil
}

// floor has its answer ready, and encoded.
type floor struct {
	v1.UnimplementedPodResourcesListerServer
	answer *v1.ListPodResourcesResponse
}

func (f *floor) List(context.Context, *v1.ListPodResourcesRequest) (*v1.ListPodResourcesResponse, error) {
	return f.answer, nil
}

// ServeFloor serves an answer that is ready: fields that protobuf does not know it sends as they are.
func (p *Process) ServeFloor(s Served, _ *none) error {
	f := &floor{answer: &v1.ListPodResourcesResponse{}}
	f.answer.ProtoReflect().SetUnknown(s.Content)
	return p.serve(s.Socket, f)
}
