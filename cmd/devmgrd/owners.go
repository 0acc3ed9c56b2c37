package main

import (
	"context"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/pluginrules"
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
	pluginrules.Herald
	// Evict has a pod evicted; where there is no API server it does nothing.
	Evict(pod device.Pod, why string, still func() bool)
	Run(context.Context) error
}

// heraldOf gives what tells the owners of pods and of the node.
func heraldOf(c config.Config, api kube.Client, log *slog.Logger) herald {
	if api == nil {
		return silence{}
	}
	return &owners{Events: pods.NewEvents(c.NodeName, api), Evictions: pods.NewEvictions(api, log), missing: c.Health.OnMissingDevices, failure: c.Health.OnDeviceFailure}
}

// owners tell by events, and do what health.* says with pods that started while devmgrd was away and with those whose devices
// have failed.
type owners struct {
	*pods.Events
	*pods.Evictions
	missing string // what health.onMissingDevices says
	failure string // what health.onDeviceFailure says
}

func (o *owners) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.Events.Run(ctx) })
	group.Go(func() error { return o.Evictions.Run(ctx) })
	return group.Wait()
}

func (o *owners) Bare(pod device.Pod, container string, still func() bool) {
	if o.missing != config.Ignore {
		o.Events.Bare(pod, container)
	}
	o.clear(pod, "container "+container+" was started while devmgrd was away, without the devices that it asks for", still)
}

func (o *owners) NotRedirected(pod device.Pod, container string, still func() bool) {
	if o.missing != config.Ignore {
		o.Events.NotRedirected(pod, container)
	}
	o.clear(pod, "a device plugin in container "+container+" was started while devmgrd was away, and is registered with the kubelet", still)
}

func (o *owners) Failed(pod device.Pod, r device.ResourceName, ids []device.ID) {
	if o.failure != config.Ignore {
		o.Events.Failed(pod, r, ids)
	}
}

func (o *owners) FailedForLong(pod device.Pod, r device.ResourceName, id device.ID, still func() bool) {
	if o.failure == config.Evict {
		o.Evict(pod, "device "+device.QuoteID(id)+" of "+string(r)+", which it has, has failed", still)
	}
}

// clear has a pod evicted that is not as it should be, if health.onMissingDevices says so.
func (o *owners) clear(pod device.Pod, why string, still func() bool) {
	if o.missing == config.Evict {
		o.Evict(pod, why, still)
	}
}

// silence is the herald where there is no API server: the log has to do.
type silence struct{}

func (silence) Waiting(device.Pod, device.Wait)                                       {}
func (silence) Assigned(device.Pod, []device.Assignment)                              {}
func (silence) Bare(device.Pod, string, func() bool)                                  {}
func (silence) NotRedirected(device.Pod, string, func() bool)                         {}
func (silence) Contradiction(device.Pod, string, []string)                            {}
func (silence) Failed(device.Pod, device.ResourceName, []device.ID)                   {}
func (silence) FailedForLong(device.Pod, device.ResourceName, device.ID, func() bool) {}
func (silence) Evict(device.Pod, string, func() bool)                                 {}
func (silence) Contested(device.ResourceName)                                         {}
func (silence) NotStarted(device.Pod, string, int, string)                            {}
func (silence) NotSynchronized(string)                                                {}
func (silence) NotAllowed(device.Pod, string)                                         {}
func (silence) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
