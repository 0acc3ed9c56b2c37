package podresources

import (
	"context"

	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	proposal "github.com/devmgrd/devmgrd/api/podresources/v1alpha1"
)

// alphaLister serves v1alpha1 and the endpoint's first proposal.
type alphaLister struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	*Server
}

// List returns all pods of the kubelet's list, with devmgrd's devices.
func (l alphaLister) List(ctx context.Context, _ *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	l.waitForAllocations(ctx)
	kubelets := ask(ctx, l.kubelet, func(k *kubelet) *sharedCall[*v1alpha1.ListPodResourcesResponse] { return &k.alpha })
	snapshot := l.cfg.Allocator.Snapshot()
	m := managed(snapshot, l.cfg.Allocator.Resources())
	return &v1alpha1.ListPodResourcesResponse{PodResources: merge(activeEntries(&l.alpha, snapshot), kubelets.GetPodResources(), m.alphaPod)}, nil
}

// ListDevices returns all devices that plugins list.
func (l alphaLister) ListDevices(context.Context, *proposal.ListDevicesRequest) (*proposal.ListDevicesResponse, error) {
	return &proposal.ListDevicesResponse{Devices: listed(l.cfg.Allocator.Resources())}, nil
}
