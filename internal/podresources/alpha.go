package podresources

import (
	"context"

	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	proposal "github.com/devmgrd/devmgrd/api/podresources/v1alpha1"
)

// alphaLister is v1alpha1: PodResourcesLister as Kubernetes has it, and PodResources as it was proposed.
type alphaLister struct {
	v1alpha1.UnimplementedPodResourcesListerServer
	*Server
}

// List returns what each pod has. Those that have ended are listed while the kubelet knows them.
func (l alphaLister) List(ctx context.Context, _ *v1alpha1.ListPodResourcesRequest) (*v1alpha1.ListPodResourcesResponse, error) {
	l.allocated(ctx)
	theirs := ask(ctx, l.kubelet, func(k *kubelet) *question[*v1alpha1.ListPodResourcesResponse] { return &k.alpha })
	board := l.cfg.Allocator.Snapshot()
	return &v1alpha1.ListPodResourcesResponse{
		PodResources: mergeAlpha(shown(&l.alpha, board), theirs.GetPodResources(), resourcesOf(board, l.cfg.Allocator.Offers())),
	}, nil
}

// ListDevices returns all devices that plugins have listed, healthy or not, in use or not.
func (l alphaLister) ListDevices(context.Context, *proposal.ListDevicesRequest) (*proposal.ListDevicesResponse, error) {
	return &proposal.ListDevicesResponse{Devices: listed(l.cfg.Allocator.Offers())}, nil
}
