package nri

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
)

// A Hook is the plugin's CreateContainer, for benchmarks next to the real state file.
type Hook func(*api.PodSandbox, *api.Container) (*api.ContainerAdjustment, error)

// NewHook makes the hook of a Connection as it is while containerd 2.4.2 is connected.
func NewHook(l Allocator, r Runtime, p Pods, h Notifier) Hook {
	plugin := &plugin{
		present: &sandboxes{}, allocator: l, runtime: r, pods: p, notifier: h, redirect: &Redirect{From: "/var/lib/kubelet/device-plugins", To: "/run/devmgrd/device-plugins"},
		log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry(), func() bool { return true }, new(notRedirected).count),
		hostChecks: newHostChecks(slog.New(slog.DiscardHandler)), allowances: &allowances{}, hooks: &hooks{}, notRedirected: &notRedirected{}, features: new(atomic.Pointer[features]), synced: func(report func()) { report() },
	}
	can := featuresOf("containerd", "v2.4.2")
	plugin.features.Store(&can)
	return func(pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
		adj, _, err := plugin.CreateContainer(context.Background(), pod, ctr)
		return adj, err
	}
}
