package podresources

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	// getLimit is how long Get waits for a pod's devices. Who asks while a pod's network is made has some ten seconds.
	getLimit = 2 * time.Second
	// listLimit is how long List waits for allocations in flight.
	listLimit = 500 * time.Millisecond
)

// lister is PodResourcesLister as Kubernetes has it.
type lister struct {
	v1.UnimplementedPodResourcesListerServer
	*Server
}

// List returns what each active pod has.
func (l lister) List(ctx context.Context, _ *v1.ListPodResourcesRequest) (*v1.ListPodResourcesResponse, error) {
	l.allocated(ctx)
	theirs := ask(ctx, l.kubelet, func(k *kubelet) *question[*v1.ListPodResourcesResponse] { return &k.list })
	board := l.cfg.Allocator.Snapshot()
	return &v1.ListPodResourcesResponse{PodResources: merge(shown(&l.entries, board), theirs.GetPodResources(), resourcesOf(board, l.cfg.Allocator.Offers()))}, nil
}

// GetAllocatableResources returns what there is to be had, in use or not.
func (l lister) GetAllocatableResources(ctx context.Context, _ *v1.AllocatableResourcesRequest) (*v1.AllocatableResourcesResponse, error) {
	theirs := ask(ctx, l.kubelet, func(k *kubelet) *question[*v1.AllocatableResourcesResponse] { return &k.allocatable })
	offers := l.cfg.Allocator.Offers()
	o := resourcesOf(l.cfg.Allocator.Snapshot(), offers)
	return &v1.AllocatableResourcesResponse{
		Devices: append(foreign(theirs.GetDevices(), o), allocatable(offers, l.cfg.Allocator.Withdrawn())...),
		CpuIds:  theirs.GetCpuIds(),
		Memory:  theirs.GetMemory(),
	}, nil
}

// Get returns what one active pod has. It waits for devices that the pod is to have. If they do not come in time it fails, with
// the reason why the pod waits: whoever makes the pod's network by the answer has to try again, and not to go on without.
func (l lister) Get(ctx context.Context, request *v1.GetPodResourcesRequest) (*v1.GetPodResourcesResponse, error) {
	pod := podKey{request.PodNamespace, request.PodName}
	theirs := l.kubelet.pod(ctx, pod)
	short, cancel := context.WithTimeout(ctx, getLimit)
	defer cancel()
	h, err := l.find(short, pod, theirs != nil)
	if err != nil {
		return nil, err
	}
	var mine *v1.PodResources
	if h != nil {
		if h, err = l.settled(short, h); err != nil {
			return nil, err
		}
		mine = entry(h)
	}
	if mine == nil && theirs == nil {
		return nil, unknown(pod)
	}
	return &v1.GetPodResourcesResponse{PodResources: mergePod(mine, theirs, resourcesOf(l.cfg.Allocator.Snapshot(), l.cfg.Allocator.Offers()))}, nil
}

// find returns what is known of an active pod; nil: nothing. If the kubelet knows a pod that we have not heard of the API server
// is asked: the kubelet may ask for it before our watch has shown it.
func (l lister) find(ctx context.Context, pod podKey, there bool) (*device.PodAllocation, error) {
	if h := l.known(pod); h != nil || !there || l.cfg.Pods == nil {
		return h, nil
	}
	err := clientOf(ctx).finds.Wait(ctx)
	if err == nil {
		_, err = l.cfg.Pods.Find(ctx, pod.namespace, pod.name)
	}
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "%s: the kubelet has pod %s/%s, and devmgrd has not heard of it: %v; try again",
			device.UnknownPod, pod.namespace, pod.name, err)
	}
	return l.known(pod), nil
}

func (l lister) known(pod podKey) *device.PodAllocation {
	for _, h := range l.cfg.Allocator.Snapshot().Pods {
		if h.Active && h.Pod.Name == pod.name && h.Pod.Namespace == pod.namespace {
			return h
		}
	}
	return nil
}

// settled waits until a pod has all of its devices, and returns what it has then.
func (l lister) settled(ctx context.Context, h *device.PodAllocation) (*device.PodAllocation, error) {
	for {
		moved := l.cfg.Allocator.Updated()
		now := l.known(podKey{h.Pod.Namespace, h.Pod.Name})
		switch {
		case now == nil:
			return nil, unknown(podKey{h.Pod.Namespace, h.Pod.Name}) // it is over
		case !now.Incomplete:
			return now, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			why := l.cfg.Allocator.PodReadiness(now.Pod.UID).Wait
			if why.Reason == "" { // its former life is being written out of the state file
				why = device.Wait{Reason: device.Allocating, Message: "the allocation has not begun yet"}
			}
			return nil, status.Errorf(codes.Unavailable, "%s: pod %s waits for its devices: %s; try again", why.Reason, now.Pod, why.Message)
		}
	}
}

// allocated waits a moment for allocations that are in flight, so that who lists while a pod's network is made finds its
// devices. It does not wait for pods that have to wait themselves.
func (s *Server) allocated(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	for ctx.Err() == nil {
		moved := s.cfg.Allocator.Updated()
		if !s.allocating() {
			return
		}
		select {
		case <-moved:
		case <-ctx.Done():
		}
	}
}

func (s *Server) allocating() bool {
	for _, h := range s.cfg.Allocator.Snapshot().Pods {
		if h.Incomplete && s.cfg.Allocator.PodReadiness(h.Pod.UID).Wait.Reason == device.Allocating {
			return true
		}
	}
	return false
}

// shown returns the active pods' pages.
func shown[T any](a *entryCache[T], b *device.Snapshot) []T {
	pages := a.of(b)
	all := make([]T, 0, len(b.Pods))
	for _, h := range b.Pods {
		if h.Active {
			all = append(all, pages[h])
		}
	}
	return all
}

// unknown has the kubelet's words and code.
func unknown(pod podKey) error {
	return status.Error(codes.Unknown, fmt.Sprintf("pod %s in namespace %s not found", pod.name, pod.namespace))
}
