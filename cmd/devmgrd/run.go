package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/history"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
	"github.com/devmgrd/devmgrd/internal/nri"
	statuspage "github.com/devmgrd/devmgrd/internal/page"
	"github.com/devmgrd/devmgrd/internal/pluginrules"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/internal/shareddir"
	"github.com/devmgrd/devmgrd/internal/store"
)

// newRunCommand makes "devmgrd run".
func newRunCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon",
		Long: "run is the daemon. It serves until it gets SIGTERM or SIGINT and then stops cleanly, which touches no running\n" +
			"container and none of the Node's numbers.",
		Example: "  devmgrd run\n  devmgrd run --config /etc/devmgrd/config.yaml --set log.level=debug",
		Args:    usage(noArguments),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			log, end := newLog(c.Log, cmd.ErrOrStderr())
			defer end()
			return serve(cmd.Context(), c, log)
		},
	}
	addConfigFlags(cmd)
	return cmd
}

// serve makes the rooms, each from those before it, and runs them until ctx ends or one of them fails. The order is
// that of a recovery: the books, who holds what, who offers devices, who wants some, and only then the runtime, so
// that its first question finds all that is known. They end in reverse, and the books are closed last.
func serve(ctx context.Context, c config.Config, log *slog.Logger) (err error) {
	kube.RouteLogs(log)
	room := func(name string) *slog.Logger { return log.With("room", name) }
	metrics := newMetrics()

	api, err := connect(c.Kubernetes)
	if err != nil {
		return err
	}
	boot, err := bootID()
	if err != nil {
		return err
	}
	allowed, err := rulesOf(c.Plugins, room("pluginrules"))
	if err != nil {
		return err
	}
	if _, err := shareddir.Make(c.RunDir, 0o755); err != nil { // whatever the umask is: others pass to the sockets below
		return fmt.Errorf("making runDir: %w", err)
	}
	books, known, err := store.Recover(store.Config{Dir: c.StateDir, Log: room("store"), Metrics: metrics})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, books.Close()) }()
	spans, open := store.OpenHistory(books)
	defer func() { err = errors.Join(err, spans.Close()) }()

	owners := heraldOf(c, api, room("pods"))
	rules := pluginrules.New(pluginrules.Config{
		Rules: allowed, Enforce: c.Plugins.Rules == config.Enforce, Herald: owners, Log: room("pluginrules"), Metrics: metrics,
	})
	for _, r := range known.Pods {
		for _, as := range r.Assignments {
			for _, s := range as.Shares {
				rules.Granted(s.Resource, s.IDs, s.Grant)
			}
		}
	}
	plugins := registry.New(registry.Config{
		SocketDir:          c.Plugins.SocketDir,
		RegistryDir:        c.Plugins.RegistryDir,
		KubeletDir:         c.Plugins.KubeletDir,
		KubeletRegistryDir: c.Plugins.KubeletRegistryDir(),
		PluginsDir:         c.PluginPodsDir(),
		GracePeriod:        c.Plugins.GracePeriod,
		AllocateTimeout:    c.Plugins.AllocateTimeout,
		PreferredTimeout:   c.Plugins.PreferredTimeout,
		PreStartTimeout:    c.Plugins.PreStartTimeout,
		MaxMessageBytes:    c.Plugins.MaxMessageBytes,
		MaxDevices:         c.Plugins.MaxDevices,
		MaxResources:       c.Plugins.MaxResources,
		MaxTotalBytes:      c.Plugins.MaxTotalBytes,
		AllowedAnnotations: c.Plugins.AllowedAnnotations,
		Rules:              rules,
		RejectDuplicates:   c.Plugins.OnDuplicate == config.Reject,
		Listener:           handed(c.Plugins.SocketDir, room("registry")),
		Known:              known.Plugins,
		Memory:             books,
		Log:                room("registry"),
		Metrics:            metrics,
	})
	ledger := allocator.New(allocator.Config{
		Plugins:  plugins,
		Books:    books,
		Herald:   owners,
		Host:     nri.Cgroups(nri.CgroupRoot),
		Boot:     boot,
		Known:    known.Pods,
		Cordons:  known.Cordons,
		Retired:  known.Retired,
		Topology: allocator.Topology{Policy: allocator.Policy(c.Topology.Policy), Scope: allocator.Scope(c.Topology.Scope)},
		Log:      room("allocator"),
		Metrics:  metrics,
	})
	plugins.MakeRoomWith(ledger)
	door := nri.Config{
		Socket:   c.NRI.Socket,
		Index:    c.NRI.Index,
		MaxWait:  c.NRI.MaxWait,
		Ledger:   ledger,
		Runtime:  ledger,
		Herald:   owners,
		Redirect: redirect(c.Plugins),
		Dirs:     plugins,
		Rules:    rules,
		Log:      room("nri"),
		Metrics:  metrics,
	}
	window := podresources.Config{
		Socket:        c.PodResources.Socket,
		KubeletSocket: c.PodResources.KubeletSocket,
		Takeover:      c.PodResources.Takeover,
		Ledger:        ledger,
		Log:           room("podresources"),
		Metrics:       metrics,
	}
	parts := []part{{"registration", plugins.Check}, {"store", books.Check}}
	past := history.New(history.Config{Ledger: ledger, Books: spans, Known: open, Log: room("history")})
	var bound *pods.Pods
	var onNode func(device.ResourceName) (n int, shown bool)
	runs := []func(context.Context) error{owners.Run, plugins.Run, past.Run, ledger.Run}
	if api == nil {
		ledger.Replace(nil) // what an API server had bound to the node before is not wanted any more
	} else {
		bound = pods.New(pods.Config{
			NodeName: c.NodeName,
			Client:   api,
			Sink:     ledger,
			Ignored:  c.Plugins.IgnoredResources,
			Log:      room("pods"),
		})
		node := nodestatus.New(nodestatus.Config{
			NodeName:   c.NodeName,
			Client:     api,
			View:       ledger,
			Herald:     owners,
			Ignored:    pods.Ignores(c.Plugins.IgnoredResources),
			KubeletDir: c.Plugins.KubeletDir,
			Log:        room("nodestatus"),
			Metrics:    metrics,
		})
		door.Pods, window.Pods, onNode = bound, bound, node.Shown
		plugins.AddServiceAccounts(bound)
		parts = append(parts, part{"pods", bound.Check}, part{"node", node.Check})
		runs = append(runs, bound.Run, node.Run)
	}
	runtime, resources := nri.New(door), podresources.New(window)
	parts = append(parts, part{"nri", runtime.Check}, part{"podresources", resources.Check})
	desk := admin.Config{
		Socket: c.Admin.Socket, Version: thisBuild().version, Node: c.NodeName,
		Ledger: ledger, Plugins: plugins, Rules: rules, History: past, Actions: spans, Books: books, Past: spans,
		Parts: func() []admin.Part {
			all := make([]admin.Part, len(parts))
			for i, p := range parts {
				all[i] = admin.Part{Name: p.name, Err: p.check()}
			}
			return all
		},
		NotRedirected: runtime.NotRedirected,
		Log:           room("admin"),
	}
	if api != nil {
		desk.Evictions, desk.Pods, desk.OnNode = owners, bound, onNode
	}
	office := admin.New(desk)
	parts = append(parts, part{"admin", office.Check})
	if c.Plugins.CheckpointMirror {
		mirror := checkpoint.NewMirrors(c.Plugins.SocketDir, plugins, ledger, room("checkpoint"))
		runs = append(runs, mirror.Run)
	}

	if err := plugins.Listen(); err != nil {
		return err
	}
	status := statuspage.New(statuspage.Config{Source: office.Reader(), Log: room("page")})
	web := newWeb(c.Metrics.Listen, namesOf(c), metrics, parts, status.Mount, room("web"))
	log.Info("devmgrd serves", "version", thisBuild().version, "node", c.NodeName, "plugins", c.Plugins.SocketDir,
		"remembered pods", len(known.Pods), "remembered resources", len(known.Plugins))
	return runAll(ctx, append(runs, office.Run, resources.Run, runtime.Run, web.run, func(ctx context.Context) error {
		return tellSystemd(ctx, runtime.Synced(), ledger.Published, runtime.Hung, room("systemd"))
	})...)
}

// namesOf returns the names by which the node may be asked for its metrics.
func namesOf(c config.Config) hosts {
	names := hosts{c.NodeName}
	if name, err := os.Hostname(); err == nil && name != c.NodeName {
		names = append(names, name)
	}
	return append(names, c.Metrics.HostNames...)
}

// redirect gives the way from the kubelet's plugin directories to ours, if plugins are to be led along it. The runtime
// names mounts by their real paths, so links on the way are resolved where there are any.
func redirect(c config.Plugins) *nri.Redirect {
	if !c.Redirect {
		return nil
	}
	real := func(path string) string {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real
		}
		return path
	}
	return &nri.Redirect{
		From: real(c.KubeletDir), To: c.SocketDir,
		RegistryFrom: real(c.KubeletRegistryDir()), RegistryTo: c.RegistryDir,
		Own: c.DirectoryPerPod,
	}
}

// newMetrics makes the registry of metrics, with what every Go process tells.
func newMetrics() *prometheus.Registry {
	r := prometheus.NewRegistry()
	b := thisBuild()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "devmgrd_build_info",
		Help:        "Always 1; the labels tell what is running.",
		ConstLabels: prometheus.Labels{"version": b.version, "goversion": b.goVersion},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// stopLimit bounds the end of one part.
const stopLimit = 5 * time.Second
