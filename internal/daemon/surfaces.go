package daemon

import (
	"context"
	"os"
	"slices"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/internal/statuspage"
	"github.com/devmgrd/devmgrd/internal/version"
)

// addSurfaces adds those that answer: the operator, programs that ask for pods' devices, the runtime, Prometheus and systemd.
func (d *daemon) addSurfaces() error {
	c := d.config
	hook := nri.Config{
		Socket: c.NRI.Socket, Index: c.NRI.Index, MaxWait: c.NRI.MaxWait, Allocator: d.devices, Runtime: d.devices, Notifier: d.notifier,
		Redirect: redirect(c.Plugins), Dirs: d.plugins, Rules: d.rules, Presence: d.present, Log: d.logFor("nri"), Metrics: d.metrics,
	}
	queries := podresources.Config{
		Socket: c.PodResources.Socket, KubeletSocket: c.PodResources.KubeletSocket, Takeover: c.PodResources.Takeover,
		Allocator: d.devices, Log: d.logFor("podresources"), Metrics: d.metrics,
	}
	operator := admin.Config{
		Socket: c.Admin.Socket, Version: version.Get().Version, Node: c.NodeName,
		View: d.devices, Allocator: d.devices, Plugins: d.plugins, Rules: d.rules, History: d.recorder, Actions: d.historyFile, StateFile: d.stateFile, HistoryFile: d.historyFile,
		Components: d.components,
		Log:        d.logFor("admin"),
	}
	if d.api != nil {
		hook.Pods, queries.Pods = d.pods, d.pods
		operator.Evictions, operator.Pods, operator.OnNode = d.notifier, d.pods, d.node.Shown
		operator.Claimed, operator.OverMaxDevices = d.offered.Claimed, d.offered.OverMaxDevices
	}
	if d.kubelet != nil {
		hook.Kubelets = d.kubelet.assigned
	}
	if d.claims != nil {
		hook.Claims = d.claims.files
	}
	runtime := nri.New(hook)
	operator.NotRedirected = runtime.NotRedirected
	operator.Limits = func() []device.Limit {
		all := runtime.Limits()
		if d.serverVersion != nil {
			all = slices.Concat(all, d.serverVersion.Limits())
		}
		if d.node != nil {
			all = slices.Concat(all, d.node.Limits())
		}
		if d.podStatus != nil {
			all = slices.Concat(all, d.podStatus.Limits())
		}
		if d.kubelet != nil {
			all = slices.Concat(all, d.kubelet.limits())
		}
		return all
	}
	commands, resources := admin.New(operator), podresources.New(queries)
	status := statuspage.New(statuspage.Config{Source: commands, Log: d.logFor("page")})
	d.add(
		part{"podresources", resources.Check, resources.Run},
		part{"admin", commands.Check, commands.Run},
		part{"nri", runtime.Check, runtime.Run},
	)
	web := newWeb(c.Metrics.Listen, namesOf(c), d.metrics, d.parts.checked(), status.Mount, d.logFor("web"))
	d.add(
		part{name: "web", run: web.run},
		part{name: "systemd", run: func(ctx context.Context) error {
			return tellSystemd(ctx, runtime.Synced(), func() map[device.ResourceName]int { return d.devices.Resources().Capacity() }, runtime.Hung, d.logFor("systemd"))
		}},
	)
	return nil
}

// namesOf returns the host names that requests for metrics may use.
func namesOf(c config.Config) hosts {
	names := hosts{c.NodeName}
	if name, err := os.Hostname(); err == nil && name != c.NodeName {
		names = append(names, name)
	}
	return append(names, c.Metrics.HostNames...)
}
