package main

import (
	"context"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/pods"
)

// connect makes the way to the API server; nil if there is to be none.
func connect(c config.Kubernetes) (kube.Client, error) {
	if c.Mode == config.NoCluster {
		return nil, nil
	}
	api, err := kube.Load(c.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return kube.NewClient(api, "devmgrd/"+thisBuild().version)
}

// A herald tells the owners of pods what becomes of them.
type herald interface {
	allocator.Herald
	nri.Herald
	nodestatus.Herald
	Run(context.Context) error
}

func heraldOf(node string, api kube.Client) herald {
	if api == nil {
		return silence{}
	}
	return pods.NewEvents(node, api)
}

// silence is the herald where there is no API server: the log has to do.
type silence struct{}

func (silence) Waiting(device.Pod, device.Wait)            {}
func (silence) Assigned(device.Pod, []device.Assignment)   {}
func (silence) NotRedirected(device.Pod, string)           {}
func (silence) Contradiction(device.Pod, string, []string) {}
func (silence) Contested(device.ResourceName)              {}
func (silence) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
