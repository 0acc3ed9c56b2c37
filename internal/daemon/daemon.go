package daemon

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/internal/history"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/podstatus"
	"github.com/devmgrd/devmgrd/internal/reclaim"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/internal/version"
)

// A daemon is all packages of one process. Each add method makes some of them from those of the methods before, and adds the parts that run. Fields do
// not change once parts run.
type daemon struct {
	config  config.Config
	log     *slog.Logger
	metrics *prometheus.Registry
	parts   parts

	// addState
	bootID      string
	known       store.State // as it was at the start
	stateFile   *store.Store
	historyFile *store.History
	open        []device.Span // of the history file
	notifier    *notifier
	rules       *pluginrules.Guard
	api         kube.Client // nil: kubernetes.mode is none

	// addCore
	present  *nri.Presence
	plugins  *registry.Registry
	gate     *reclaim.Gate
	devices  *allocator.Allocator
	recorder *history.Recorder
	kubelet  *kubelet // nil: devmgrd serves in the kubelet's directory

	// addCluster; nil: kubernetes.mode is none
	offered       *dra.Offering
	serverVersion *kube.ServerVersion
	pods          *pods.Pods
	podStatus     *podstatus.Publisher // nil also: kubernetes.podConditions is false
	node          *nodestatus.Publisher
	claims        *claims // nil also: this node offers nothing through claims
}

// Run runs devmgrd until ctx ends or one of its parts fails. Recovery dictates the order: the state file, then assignments and plugins, then pods, then
// the runtime: its first call finds what the state file has, and reads from the API server what the watch has not brought. The parts end in reverse order, and the state file is closed last.
func Run(ctx context.Context, c config.Config, log *slog.Logger) (err error) {
	routeLogs(log)
	d := &daemon{config: c, log: log, metrics: newMetrics()}
	defer func() { err = errors.Join(err, d.close()) }()
	for _, add := range []func() error{d.addState, d.addCore, d.addCluster, d.addSurfaces, d.listen} {
		if err := add(); err != nil {
			return err
		}
	}
	log.Info("devmgrd started", "version", version.Get().Version, "node", c.NodeName, "plugins", c.Plugins.SocketDir,
		"pods", len(d.known.Pods), "resources", len(d.known.Plugins))
	return d.parts.run(ctx)
}
