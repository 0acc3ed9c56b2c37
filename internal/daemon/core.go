package daemon

import (
	"context"
	"path/filepath"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/history"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/reclaim"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/internal/units"
	"github.com/devmgrd/devmgrd/internal/units/healthcommand"
)

// addCore adds the plugins and the assignments of their devices, with what keeps devices from pods: that an ended pod still uses them, or the operator's
// health command.
func (d *daemon) addCore() error {
	c := d.config
	d.plugins = registry.New(registry.Config{
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
		Rules:              d.rules,
		RejectDuplicates:   c.Plugins.OnDuplicate == config.Reject,
		Listener:           socketFromSystemd(c.Plugins.SocketDir, d.logFor("registry")),
		Known:              d.known.Plugins,
		Store:              d.stateFile,
		Log:                d.logFor("registry"),
		Metrics:            d.metrics,
	})
	d.present = nri.NewPresence()
	d.kubelet = newKubelet(c, d.logFor("kubelet"))
	journal := history.NewJournal(d.historyFile, d.logFor("history"))
	d.gate = reclaimGate(c.Release, pluginOf(d.plugins.Registrations), d.present, d.logFor("release"), d.metrics)
	var kubelets func() *device.Kubelets
	if d.kubelet != nil {
		kubelets = d.kubelet.assigned
	}
	d.devices = allocator.New(allocator.Config{
		Registry:        d.plugins,
		Plugins:         d.plugins,
		Store:           d.stateFile,
		Notifier:        d.notifier,
		Host:            nri.Cgroups(nri.CgroupRoot),
		Boot:            d.bootID,
		Known:           d.known.Pods,
		Cordons:         d.known.Cordons,
		Falls:           d.known.Falls,
		Suspends:        func(r device.ResourceName) bool { return c.Health.Suspends(string(r)) },
		Examines:        func(r device.ResourceName) bool { return len(c.Health.Argv(string(r))) > 0 },
		Journal:         journal,
		SuspendFor:      c.Health.SuspendFor,
		FailUnlisted:    c.Health.OnUnlisted == config.Failure,
		Retired:         d.known.Retired,
		Topology:        allocator.Topology{Policy: allocator.Policy(c.Topology.Policy), Scope: allocator.Scope(c.Topology.Scope)},
		Ordering:        ordering(c.Allocation),
		GiveUpAfter:     giveUpAfter(c.Wait),
		Releaser:        d.gate,
		Kubelets:        kubelets,
		ChecksProcesses: func(r device.ResourceName) bool { return c.Release.Level(string(r)) != config.NoCheck },
		Log:             d.logFor("allocator"),
		Metrics:         d.metrics,
	})
	d.recorder = history.New(history.Config{Allocator: d.devices, Store: d.historyFile, Known: d.open, Log: d.logFor("history")})
	examiner := healthcommand.New(healthcommand.Config{
		Command: func(r device.ResourceName) []string { return c.Health.Argv(string(r)) }, Interval: c.Health.Interval, Timeout: c.Health.Timeout,
		Plugin: pluginOf(d.plugins.Registrations), Devices: d.devices, Units: units.Systemd{}, Log: d.logFor("healthcommand"), Metrics: d.metrics,
	})
	if c.Metrics.Devices {
		d.metrics.MustRegister(newDeviceInfo(d.devices.EachDevice))
	}
	d.add(
		part{name: "events", run: d.notifier.Run},
		part{"registration", d.plugins.Check, d.runPlugins},
		part{name: "history", run: d.recorder.Run},
		part{name: "journal", run: journal.Run},
		part{name: "reclaim", run: d.runGate},
		part{name: "allocator", run: d.devices.Run},
		part{name: "kubelet", run: d.runKubelet},
		part{name: "healthcommand", run: examiner.Run},
	)
	if c.Plugins.CheckpointMirror {
		d.add(part{name: "checkpoint", run: checkpoint.NewMirrors(c.Plugins.SocketDir, d.plugins, d.devices, d.logFor("checkpoint")).Run})
	}
	return nil
}

// runPlugins runs the registry with those that it asks: they were made of it.
func (d *daemon) runPlugins(ctx context.Context) error {
	with := registry.Neighbours{Allocator: d.devices}
	if d.pods != nil {
		with.Accounts = d.pods
	}
	return d.plugins.Run(ctx, with)
}

// runKubelet asks the kubelet what its own device manager has assigned.
func (d *daemon) runKubelet(ctx context.Context) error {
	if d.kubelet == nil {
		<-ctx.Done()
		return nil
	}
	return d.kubelet.run(ctx, d.devices.KubeletChanged)
}

// runGate is runPlugins for the proofs that devices are free.
func (d *daemon) runGate(ctx context.Context) error {
	with := reclaim.Neighbours{Assigned: d.devices}
	if d.pods != nil {
		with.Pods = d.pods
	}
	return d.gate.Run(ctx, with)
}

// listen binds kubelet.sock before any part runs: that it is taken ends the start.
func (d *daemon) listen() error { return d.plugins.Listen() }

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
