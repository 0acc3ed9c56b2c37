package podresources

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

const (
	// getLimit is how long Get waits for a pod's devices. A CNI plugin that calls Get has some ten seconds in all.
	getLimit = 2 * time.Second
	// listLimit is how long List waits for allocations in progress.
	listLimit = 500 * time.Millisecond
)

// lister serves v1.
type lister struct {
	v1.UnimplementedPodResourcesListerServer
	*Server
}

// List returns all pods of the kubelet's list, with devmgrd's devices.
func (l lister) List(ctx context.Context, _ *v1.ListPodResourcesRequest) (*v1.ListPodResourcesResponse, error) {
	l.waitForAllocations(ctx)
	kubelets := ask(ctx, l.kubelet, func(k *kubelet) *sharedCall[*v1.ListPodResourcesResponse] { return &k.list })
	if err := l.turn(ctx); err != nil {
		return nil, err
	}
	snapshot := l.cfg.Allocator.Snapshot()
	m := managed(snapshot, l.cfg.Allocator.Resources())
	all := &v1.ListPodResourcesResponse{PodResources: merge(activeEntries(&l.entries, snapshot), kubelets.GetPodResources(), m.pod)}
	addUnknown(all, kubelets)
	return all, nil
}

// GetAllocatableResources returns the kubelet's CPUs and memory, the devices of other managers, and devmgrd's devices.
func (l lister) GetAllocatableResources(ctx context.Context, _ *v1.AllocatableResourcesRequest) (*v1.AllocatableResourcesResponse, error) {
	kubelets := ask(ctx, l.kubelet, func(k *kubelet) *sharedCall[*v1.AllocatableResourcesResponse] { return &k.allocatable })
	if err := l.turn(ctx); err != nil {
		return nil, err
	}
	all := &v1.AllocatableResourcesResponse{}
	if kubelets != nil {
		all = proto.CloneOf(kubelets)
	}
	resources := l.cfg.Allocator.Resources()
	all.Devices = managed(l.cfg.Allocator.Snapshot(), resources).without(all.Devices)
	addRaw(all, allocatable(resources))
	return all, nil
}

// Get returns one active pod. It waits for the devices that the pod requests. If they do not come in time, Get fails with the
// pod's reason to wait, so that a CNI plugin tries again and does not set up the pod's network without them.
func (l lister) Get(ctx context.Context, request *v1.GetPodResourcesRequest) (*v1.GetPodResourcesResponse, error) {
	name := podName{request.PodNamespace, request.PodName}
	kubelets := l.kubelet.pod(ctx, name)
	short, cancel := context.WithTimeout(ctx, getLimit)
	defer cancel()
	known, err := l.find(short, name, kubelets.GetPodResources() != nil)
	if err != nil {
		return nil, err
	}
	var own *v1.PodResources
	if known {
		p, err := l.complete(short, name)
		if err != nil {
			return nil, err
		}
		if err := l.turn(ctx); err != nil {
			return nil, err
		}
		own = entry(p.PodAllocation)
	}
	if own == nil && kubelets.GetPodResources() == nil {
		return nil, notFound(name)
	}
	one := &v1.GetPodResourcesResponse{PodResources: managed(l.cfg.Allocator.Snapshot(), l.cfg.Allocator.Resources()).pod(own, kubelets.GetPodResources())}
	addUnknown(one, kubelets)
	return one, nil
}

// find reports whether the allocator knows an active pod of that name. If only the kubelet knows one, find reads it from the API
// server first: the kubelet may have heard of the pod before devmgrd's watch.
func (l lister) find(ctx context.Context, name podName, atKubelet bool) (bool, error) {
	if _, known := l.active(name); known || !atKubelet || l.cfg.Pods == nil {
		return known, nil
	}
	err := callOf(ctx).conn.client.finds.Wait(ctx)
	if err == nil {
		_, err = l.cfg.Pods.Find(ctx, name.namespace, name.name)
	}
	if err != nil {
		return false, status.Errorf(codes.Unavailable, "%s: the kubelet has pod %s/%s, and devmgrd has not heard of it: %v; try again",
			device.UnknownPod, name.namespace, name.name, err)
	}
	_, known := l.active(name)
	return known, nil
}

// active returns the active pod of that name.
func (l lister) active(name podName) (device.PodStatus, bool) {
	p, known := l.cfg.Allocator.Snapshot().Pod(name.namespace, name.name)
	return p, known && p.Active
}

// complete waits until the pod has all of its devices.
func (l lister) complete(ctx context.Context, name podName) (device.PodStatus, error) {
	for {
		updated := l.cfg.Allocator.Updated()
		p, known := l.active(name)
		switch {
		case !known:
			return p, notFound(name)
		case !p.Incomplete:
			return p, nil
		}
		select {
		case <-updated:
		case <-ctx.Done():
			return p, status.Errorf(codes.Unavailable, "%s: pod %s waits for its devices: %s; try again", p.Wait.Reason, p.Pod, p.Wait.Message)
		}
	}
}

// waitForAllocations waits shortly for allocations in progress, so that a CNI plugin that calls List finds its pod's devices. It
// does not wait for pods that have a reason to wait.
func (s *Server) waitForAllocations(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listLimit)
	defer cancel()
	for ctx.Err() == nil {
		updated := s.cfg.Allocator.Updated()
		if !s.allocating() {
			return
		}
		select {
		case <-updated:
		case <-ctx.Done():
		}
	}
}

func (s *Server) allocating() bool {
	return slices.ContainsFunc(s.cfg.Allocator.Snapshot().Pods, func(p device.PodStatus) bool {
		return p.Incomplete && p.Wait.Reason == device.Allocating
	})
}

// activeEntries returns the entries of the active pods.
func activeEntries[T any](cache *entryCache[T], s *device.Snapshot) []T {
	entries := cache.of(s)
	all := make([]T, 0, len(s.Pods))
	for _, p := range s.Pods {
		if p.Active {
			all = append(all, entries[p.PodAllocation])
		}
	}
	return all
}

// notFound is the kubelet's error for an unknown pod.
func notFound(pod podName) error {
	return status.Error(codes.Unknown, fmt.Sprintf("pod %s in namespace %s not found", pod.name, pod.namespace))
}

// An entryCache keeps the encoded entry of each pod in the latest snapshot. Entries never change.
type entryCache[T any] struct {
	encode func(*device.PodAllocation) T

	mu       locks.Mutex[locks.Leaf]
	revision uint64
	entries  map[*device.PodAllocation]T
}

// of returns the entries of a snapshot's pods.
func (c *entryCache[T]) of(s *device.Snapshot) map[*device.PodAllocation]T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries != nil && c.revision == s.Revision {
		return c.entries
	}
	entries := make(map[*device.PodAllocation]T, len(s.Pods))
	for _, p := range s.Pods {
		e, cached := c.entries[p.PodAllocation]
		if !cached {
			e = c.encode(p.PodAllocation)
		}
		entries[p.PodAllocation] = e
	}
	if c.entries == nil || c.revision < s.Revision { // a concurrent request may have had a newer snapshot
		c.revision, c.entries = s.Revision, entries
	}
	return entries
}
