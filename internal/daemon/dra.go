package daemon

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/store"
)

// claimed returns which resources are offered through claims: those of dra.resources that do not have too many devices.
func claimed(c config.DRA, devices *allocator.Allocator) func(device.ResourceName) bool {
	over := overMaxDevices(c, devices)
	return func(r device.ResourceName) bool { return c.Offers(string(r)) && over(r) == 0 }
}

// overMaxDevices returns dra.maxDevices for resources that have more devices than that, and 0 for others.
func overMaxDevices(c config.DRA, devices *allocator.Allocator) func(device.ResourceName) int {
	return func(r device.ResourceName) int {
		if !c.Offers(string(r)) {
			return 0
		}
		if offer := devices.Resources().ByName[r].Offer; offer != nil && len(offer.Inventory.Devices) > c.MaxDevices {
			return c.MaxDevices
		}
		return 0
	}
}

// lateBinding is how long after the removal of a resource from the Node pods may be created that the scheduler binds by its number: it sees
// the removal later, and the API server's clock may be ahead of this node's.
const lateBinding = time.Minute

// claims is Dynamic Resource Allocation on this node.
type claims struct {
	*dra.Claims
	publisher *dra.Publisher
	server    *dra.Server
}

// usesClaims reports whether this node offers resources through claims, or has done so: its slices have to be removed before the scheduler
// chooses more devices from them, and the kubelet needs the driver until the pods with claims have ended. A state file that cannot be
// written or has been lost is no reason not to offer.
func usesClaims(c config.DRA, known store.State, stateFile *store.Store, log *slog.Logger) bool {
	if len(c.Resources) == 0 {
		return known.Claims
	}
	if !known.Claims {
		if err := stateFile.SaveClaims(); err != nil {
			log.Warn("cannot record the use of claims", "err", err)
		}
	}
	return true
}

// newClaims returns Dynamic Resource Allocation on this node.
func newClaims(c config.Config, api kube.Client, devices *allocator.Allocator, stateFile *store.Store, known store.State, node *nodestatus.Publisher,
	logFor func(string) *slog.Logger, metrics prometheus.Registerer,
) *claims {
	log := logFor("dra")
	publisher := dra.New(dra.PublisherConfig{
		NodeName: c.NodeName, Client: api, View: devices, Order: devices.Order, Places: stateFile, Known: known.Places, MaxDevices: c.DRA.MaxDevices, Log: log, Metrics: metrics,
		Offered: node.Uncounted, OfferedChanged: node.Follow(), NodeUID: node.NodeUID,
		TooMany: func(r device.ResourceName) bool { return overMaxDevices(c.DRA, devices)(r) > 0 },
	})
	all := dra.NewClaims(dra.ClaimsConfig{
		NodeName: c.NodeName, Client: api, Sink: devices, Inventory: devices, Pool: publisher.Pool, Log: log,
		NeedsClaim: func(r device.ResourceName, created time.Time) (needs, known bool) {
			since, uncounted, known := node.Uncounted(r)
			return uncounted && created.After(since.Add(lateBinding)), known
		},
		NodeChanged: node.Follow(),
	})
	return &claims{
		Claims:    all,
		publisher: publisher,
		server: dra.NewServer(dra.ServerConfig{
			RegistryDir: c.Plugins.KubeletRegistryDir(), PluginsDir: filepath.Join(filepath.Dir(c.Plugins.KubeletDir), "plugins"),
			Claims: all, Allocator: devices, Hold: c.DRA.Hold, Log: log, Metrics: metrics,
		}),
	}
}

// check returns nil while the scheduler sees the devices and the kubelet knows the driver.
func (c *claims) check() error { return errors.Join(c.publisher.Check(), c.server.Check()) }

// runs returns what has to run.
func (c *claims) runs() []func(context.Context) error {
	return []func(context.Context) error{c.Claims.Run, c.publisher.Run, c.server.Run}
}

var _ pods.Sink = (*dra.Claims)(nil)
