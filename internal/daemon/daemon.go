package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/boot"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/history"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
	"github.com/devmgrd/devmgrd/internal/statuspage"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/internal/units"
	"github.com/devmgrd/devmgrd/internal/units/healthcommand"
	"github.com/devmgrd/devmgrd/internal/version"
)

// Run creates the components, each from earlier ones, and runs them until ctx ends or one of them fails. Recovery
// dictates the order: the state file, then assignments, plugins and pods, and only then the runtime, so that its first
// call finds complete data. The components end in reverse order, and the state file is closed last.
func Run(ctx context.Context, c config.Config, log *slog.Logger) (err error) {
	kube.RouteLogs(log)
	nri.RouteLogs(log)
	logFor := func(name string) *slog.Logger { return log.With("component", name) }
	metrics := newMetrics()

	var api kube.Client // nil: kubernetes.mode is none
	if c.Kubernetes.Mode != config.NoCluster {
		if api, err = kube.Connect(c.Kubernetes.Kubeconfig, version.Get().Version); err != nil {
			return err
		}
	}
	bootID, err := boot.ID()
	if err != nil {
		return err
	}
	allowed, err := rulesOf(c.Plugins, logFor("pluginrules"))
	if err != nil {
		return err
	}
	if _, err := shareddir.Make(c.RunDir, 0o755); err != nil { // regardless of the umask: other users pass through to the sockets below
		return fmt.Errorf("making runDir: %w", err)
	}
	stateFile, known, err := store.Recover(store.Config{Dir: c.StateDir, Log: logFor("store"), Metrics: metrics})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stateFile.Close()) }()
	historyFile, open := store.OpenHistory(stateFile)
	defer func() { err = errors.Join(err, historyFile.Close()) }()

	notifier := newNotifier(c, api, logFor("pods"))
	rules := pluginrules.New(pluginrules.Config{
		Rules: allowed, Enforce: c.Plugins.Rules == config.Enforce, Notifier: notifier, Log: logFor("pluginrules"), Metrics: metrics,
	})
	for _, r := range known.Pods {
		for _, s := range device.Shares(r.Assignments) {
			rules.Granted(s.Resource, s.IDs, s.Grant)
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
		Listener:           socketFromSystemd(c.Plugins.SocketDir, logFor("registry")),
		Known:              known.Plugins,
		Store:              stateFile,
		Log:                logFor("registry"),
		Metrics:            metrics,
	})
	var present nri.Presence
	journal := history.NewJournal(historyFile, logFor("history"))
	gate := reclaimGate(c.Release, pluginOf(plugins.Registrations), &present, logFor("release"), metrics)
	devices := allocator.New(allocator.Config{
		Registry:        plugins,
		Plugins:         plugins,
		Store:           stateFile,
		Notifier:        notifier,
		Host:            nri.Cgroups(nri.CgroupRoot),
		Boot:            bootID,
		Known:           known.Pods,
		Cordons:         known.Cordons,
		Falls:           known.Falls,
		Suspends:        func(r device.ResourceName) bool { return c.Health.Suspends(string(r)) },
		Examines:        func(r device.ResourceName) bool { return len(c.Health.Argv(string(r))) > 0 },
		Journal:         journal,
		SuspendFor:      c.Health.SuspendFor,
		FailUnlisted:    c.Health.OnUnlisted == config.Failure,
		Retired:         known.Retired,
		Topology:        allocator.Topology{Policy: allocator.Policy(c.Topology.Policy), Scope: allocator.Scope(c.Topology.Scope)},
		Ordering:        ordering(c.Allocation),
		GiveUpAfter:     giveUpAfter(c.Wait),
		Releaser:        gate,
		ChecksProcesses: func(r device.ResourceName) bool { return c.Release.Level(string(r)) != config.NoCheck },
		Log:             logFor("allocator"),
		Metrics:         metrics,
	})
	offered := newOffering(c.DRA, plugins)
	plugins.MakeRoomWith(devices)
	gate.Watch(devices)
	examiner := healthcommand.New(healthcommand.Config{
		Command: func(r device.ResourceName) []string { return c.Health.Argv(string(r)) }, Interval: c.Health.Interval, Timeout: c.Health.Timeout,
		Plugin: pluginOf(plugins.Registrations), Devices: devices, Units: units.Systemd{}, Log: logFor("healthcommand"), Metrics: metrics,
	})
	nriConfig := nri.Config{
		Socket:    c.NRI.Socket,
		Index:     c.NRI.Index,
		MaxWait:   c.NRI.MaxWait,
		Allocator: devices,
		Runtime:   devices,
		Notifier:  notifier,
		Redirect:  redirect(c.Plugins),
		Dirs:      plugins,
		Rules:     rules,
		Presence:  &present,
		Log:       logFor("nri"),
		Metrics:   metrics,
	}
	podResourcesConfig := podresources.Config{
		Socket:        c.PodResources.Socket,
		KubeletSocket: c.PodResources.KubeletSocket,
		Takeover:      c.PodResources.Takeover,
		Allocator:     devices,
		Log:           logFor("podresources"),
		Metrics:       metrics,
	}
	components := []component{{"registration", plugins.Check}, {"store", stateFile.Check}}
	if c.Metrics.Devices {
		metrics.MustRegister(newDeviceInfo(devices))
	}
	recorder := history.New(history.Config{Allocator: devices, Store: historyFile, Known: open, Log: logFor("history")})
	var bound *pods.Pods
	var onNode func(device.ResourceName) (n int, shown bool)
	limits := func() []device.Limit { return nil } // of the API server's release
	runs := []func(context.Context) error{notifier.Run, plugins.Run, recorder.Run, journal.Run, gate.Run, devices.Run, examiner.Run}
	if api == nil {
		devices.Replace(nil) // drop pods that an API server had bound to the node before
	} else {
		var offers *claims               // nil: nothing is offered through claims
		sliceable := make(chan struct{}) // closed once ResourceSlices can be written
		served, lost := usesClaims(c, known, stateFile, logFor("dra"))
		forgotten := time.Time{}
		if lost {
			forgotten = time.Now()
		}
		node := nodestatus.New(nodestatus.Config{
			NodeName: c.NodeName,
			Began:    time.Now(),
			Client:   api,
			View:     devices,
			Notifier: notifier,
			Cordons:  devices,
			Components: func() []nodestatus.Component {
				return lists.Map(components, func(p component) nodestatus.Component { return nodestatus.Component{Name: p.name, Err: p.check()} })
			},
			Expected:  expected(c.Node),
			Ignored:   pods.Ignores(c.Plugins.IgnoredResources),
			Claimed:   offered.claimed,
			Sliceable: sliceable,
			Sliced:    func(r device.ResourceName) bool { return offers != nil && offers.publisher.Sliced(r) },
			Uncounted: known.Uncounted, Forgotten: forgotten, SaveUncounted: stateFile.SaveUncounted,
			KubeletDir: c.Plugins.KubeletDir,
			Log:        logFor("nodestatus"),
			Metrics:    metrics,
		})
		podsConfig := pods.Config{
			NodeName:  c.NodeName,
			Client:    api,
			Sink:      devices,
			Present:   present.Has,
			Ignored:   c.Plugins.IgnoredResources,
			Selectors: c.Allocation.Selectors,
			Log:       logFor("pods"),
		}
		if served {
			resourceAPI, err := kube.ConnectResource(c.Kubernetes.Kubeconfig, version.Get().Version)
			if err != nil {
				return err
			}
			offers = newClaims(c, resourceAPI, devices, stateFile, known, node, offered, sliceable, rules, bootID, logFor, metrics)
			nriConfig.Claims = offers.files
			podsConfig.Sink, podsConfig.Claims = offers, true
			components = append(components, component{"dra", offers.check})
			runs = append(runs, offers.runs()...)
		}
		bound = pods.New(podsConfig)
		nriConfig.Pods, podResourcesConfig.Pods, onNode = bound, bound, node.Shown
		plugins.AddServiceAccounts(bound)
		gate.NamePods(bound)
		components = append(components, component{"pods", bound.Check}, component{"node", node.Check})
		release := kube.NewRelease(api, logFor("kube"))
		limits = release.Limits
		runs = append(runs, bound.Run, node.Run, release.Run)
	}
	runtime := nri.New(nriConfig)
	resources := podresources.New(podResourcesConfig)
	components = append(components, component{"nri", runtime.Check}, component{"podresources", resources.Check})
	adminConfig := admin.Config{
		Socket: c.Admin.Socket, Version: version.Get().Version, Node: c.NodeName,
		View: devices, Allocator: devices, Plugins: plugins, Rules: rules, History: recorder, Actions: historyFile, StateFile: stateFile, HistoryFile: historyFile,
		Components: func() []admin.Component {
			return lists.Map(components, func(p component) admin.Component { return admin.Component{Name: p.name, Err: p.check()} })
		},
		NotRedirected: runtime.NotRedirected,
		Limits:        func() []device.Limit { return slices.Concat(runtime.Limits(), limits()) },
		Log:           logFor("admin"),
	}
	if api != nil {
		adminConfig.Evictions, adminConfig.Pods, adminConfig.OnNode = notifier, bound, onNode
		adminConfig.Claimed, adminConfig.OverMaxDevices = offered.claimed, offered.overMaxDevices
	}
	adminServer := admin.New(adminConfig)
	components = append(components, component{"admin", adminServer.Check})
	if c.Plugins.CheckpointMirror {
		mirror := checkpoint.NewMirrors(c.Plugins.SocketDir, plugins, devices, logFor("checkpoint"))
		runs = append(runs, mirror.Run)
	}

	if err := plugins.Listen(); err != nil {
		return err
	}
	status := statuspage.New(statuspage.Config{Source: adminServer, Log: logFor("page")})
	web := newWeb(c.Metrics.Listen, namesOf(c), metrics, components, status.Mount, logFor("web"))
	log.Info("devmgrd started", "version", version.Get().Version, "node", c.NodeName, "plugins", c.Plugins.SocketDir,
		"pods", len(known.Pods), "resources", len(known.Plugins))
	return runAll(ctx, append(runs, adminServer.Run, resources.Run, runtime.Run, web.run, func(ctx context.Context) error {
		return tellSystemd(ctx, runtime.Synced(), func() map[device.ResourceName]int { return devices.Resources().Capacity() }, runtime.Hung, logFor("systemd"))
	})...)
}

// namesOf returns the host names that requests for metrics may use.
func namesOf(c config.Config) hosts {
	names := hosts{c.NodeName}
	if name, err := os.Hostname(); err == nil && name != c.NodeName {
		names = append(names, name)
	}
	return append(names, c.Metrics.HostNames...)
}

// expected returns node.expected by resource.
func expected(c config.Node) map[device.ResourceName]int {
	all := make(map[device.ResourceName]int, len(c.Expected))
	for name, n := range c.Expected {
		all[device.ResourceName(name)] = n
	}
	return all
}

// redirect returns the mapping from the kubelet's plugin directories to devmgrd's; nil: plugins.redirect is off. The
// runtime names mounts by their real paths, so redirect resolves links.
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

// newMetrics returns the registry of metrics, with the standard metrics of a Go process.
func newMetrics() *prometheus.Registry {
	r := prometheus.NewRegistry()
	b := version.Get()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "devmgrd_build_info",
		Help:        "Always 1; the labels name the running version.",
		ConstLabels: prometheus.Labels{"version": b.Version, "goversion": b.Go},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// stopLimit bounds the shutdown of the web server.
const stopLimit = 5 * time.Second

// rulesOf reads the rules for device plugins; nil: plugins.rules is off.
func rulesOf(c config.Plugins, log *slog.Logger) (*pluginrules.Rules, error) {
	if c.Rules == config.Off {
		return nil, nil
	}
	rules, err := pluginrules.ReadFile(c.RulesFile)
	if err != nil {
		return nil, err
	}
	log.Info("rules for device plugins read", "mode", c.Rules, "file", c.RulesFile, "rules", len(rules.Rules))
	return rules, nil
}
