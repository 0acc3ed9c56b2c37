package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/pods"
)

// newNotifier returns a notifier. If api is nil, it drops events and evictions.
func newNotifier(c config.Config, api kube.Client, log *slog.Logger) *notifier {
	return &notifier{Events: pods.NewEvents(c.NodeName, api), Evictions: pods.NewEvictions(api, log), missing: c.Health.OnMissingDevices, failure: c.Health.OnDeviceFailure}
}

// A notifier informs the owners of pods and of the node. It publishes events, and applies health.* to pods that started while devmgrd was away and
// to pods whose devices have failed.
type notifier struct {
	*pods.Events
	*pods.Evictions
	missing string // health.onMissingDevices
	failure string // health.onDeviceFailure
}

func (o *notifier) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return o.Events.Run(ctx) })
	group.Go(func() error { return o.Evictions.Run(ctx) })
	return group.Wait()
}

func (o *notifier) StartedWithoutDevices(pod device.Pod, container string, still func() bool) {
	if o.missing != config.Ignore {
		o.Events.StartedWithoutDevices(pod, container)
	}
	o.evictIfConfigured(pod, "container "+container+" was started without the devices that it asks for", still)
}

func (o *notifier) NotRedirected(pod device.Pod, container string, still func() bool) {
	if o.missing != config.Ignore {
		o.Events.NotRedirected(pod, container)
	}
	o.evictIfConfigured(pod, "a device plugin in container "+container+" was started while devmgrd was away, and is registered with the kubelet", still)
}

func (o *notifier) Failed(pod device.Pod, r device.ResourceName, ids []device.ID) {
	if o.failure != config.Ignore {
		o.Events.Failed(pod, r, ids)
	}
}

func (o *notifier) FailedForLong(pod device.Pod, r device.ResourceName, id device.ID, still func() bool) {
	if o.failure == config.Evict {
		o.Evict(pod, "device "+device.QuoteID(id)+" of "+string(r)+", which it has, has failed", still)
	}
}

func (o *notifier) GivenUp(pod device.Pod, why device.Wait, waited time.Duration, still func() bool) {
	o.Events.GivenUp(pod, why, waited)
	o.Evict(pod, fmt.Sprintf("it has waited for its devices for %v (wait.giveUpAfter): %s: %s", waited.Round(time.Second), why.Reason, why.Message), still)
}

// evictIfConfigured evicts a pod if health.onMissingDevices is evict.
func (o *notifier) evictIfConfigured(pod device.Pod, why string, still func() bool) {
	if o.missing == config.Evict {
		o.Evict(pod, why, still)
	}
}
