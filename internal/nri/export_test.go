package nri

import (
	"context"
	"log/slog"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"
)

// A Hook is the plugin's CreateContainer, for benchmarks next to the real state file.
type Hook func(*api.PodSandbox, *api.Container) (*api.ContainerAdjustment, error)

// NewHook makes the hook of a Connection as it is while containerd 2.4.2 is connected.
func NewHook(l Allocator, r Runtime, p Pods, h Notifier) Hook {
	plugin := &plugin{ifConnected: func(report func()) { report() }, Connection: New(Config{
		Socket: "unused", Index: "00", Allocator: l, Runtime: r, Pods: p, Notifier: h, Dirs: noDirectories{}, Presence: NewPresence(),
		Redirect: &Redirect{From: "/var/lib/kubelet/device-plugins", To: "/run/devmgrd/device-plugins"}, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})}
	can := featuresOf("containerd", "v2.4.2")
	plugin.features.Store(&can)
	return func(pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
		adj, _, err := plugin.CreateContainer(context.Background(), pod, ctr)
		return adj, err
	}
}

// noDirectories are not asked: the hook of a benchmark redirects nothing.
type noDirectories struct{ Directories }
