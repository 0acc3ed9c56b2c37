package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/reclaim"
	"github.com/devmgrd/devmgrd/internal/reclaim/openers"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/units"
)

// reclaimGate returns what proves that the devices of ended pods are free.
func reclaimGate(c config.Release, plugin func(device.ResourceName) units.Plugin, runtime *nri.Presence, log *slog.Logger, metrics prometheus.Registerer) *reclaim.Gate {
	return reclaim.New(reclaim.Config{
		Openers:     func(r device.ResourceName) bool { return c.Level(string(r)) == config.Openers },
		Command:     func(r device.ResourceName) []string { return c.Argv(string(r)) },
		Plugin:      plugin,
		Timeout:     c.Timeout,
		Ignore:      c.Ignore,
		SharedNodes: c.SharedNodes,
		Finder:      openers.Client{Path: c.Socket},
		Nodes:       nri.NewHostNodes(log),
		SeesRuntime: runtime.SeesRuntime,
		Networks:    runtime.Networks,

		NetworkTimeout: c.NetworkTimeout,
		Units:          units.Systemd{},
		Log:            log,
		Metrics:        metrics,
	})
}

// pluginOf returns a function that returns a resource's plugin. Those of the common directory differ in their sockets only.
func pluginOf(registrations func() map[device.ResourceName]device.Registration) func(device.ResourceName) units.Plugin {
	return func(r device.ResourceName) units.Plugin {
		of := registrations()[r]
		return units.Plugin{Pod: string(of.Pod.UID), Socket: of.Endpoint}
	}
}

// openersIdle is how long RunOpeners waits for another request if systemd has started the process for one.
const openersIdle = 10 * time.Second

// RunOpeners answers which processes have devices open or mapped, until ctx ends. With a socket from systemd it returns when there have
// been no requests for a while.
func RunOpeners(ctx context.Context, c config.Release, log *slog.Logger) error {
	passed, err := activation.Listeners()
	if err != nil {
		return fmt.Errorf("taking the socket that systemd passes: %w", err)
	}
	if len(passed) > 0 {
		return openers.Serve(ctx, passed[0], openersIdle, log)
	}
	if err := socket.VacantPath(c.Socket); err != nil {
		return err
	}
	l, err := socket.ListenPath(c.Socket, 0o600)
	if err != nil {
		return err
	}
	return openers.Serve(ctx, l, 0, log)
}
