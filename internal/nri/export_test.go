package nri

import (
	"context"
	"log/slog"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
)

// A Hook is the plugin's CreateContainer, for benchmarks beside the real books.
type Hook func(*api.PodSandbox, *api.Container) (*api.ContainerAdjustment, error)

// NewHook makes the hook of a Connection as it is while containerd 2.4.2 is connected.
func NewHook(l Ledger, r Runtime, p Pods, h Herald) Hook {
	plugin := &plugin{
		ledger: l, runtime: r, pods: p, herald: h, redirect: &Redirect{From: "/var/lib/kubelet/device-plugins", To: "/run/devmgrd/device-plugins"},
		log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry(), func() bool { return true }, new(strays).count),
		looks: &looks{log: slog.New(slog.DiscardHandler)}, hooks: &hooks{}, strays: &strays{}, synced: func() {},
	}
	can := abilitiesOf("containerd", "v2.4.2")
	plugin.can.Store(&can)
	return func(pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
		adj, _, err := plugin.CreateContainer(context.Background(), pod, ctr)
		return adj, err
	}
}
