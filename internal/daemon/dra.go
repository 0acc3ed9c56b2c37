package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/cri"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/store"
)

// claims are the pods' ResourceClaims, and their CDI files.
type claims struct {
	*dra.Claims
	files *cdi.Files
}

// usesClaims reports whether this node offers resources through claims, or has done so: its slices have to be removed before the scheduler
// chooses more devices from them, and the kubelet needs the driver until the pods with claims have ended. A state file that has been lost
// does not record that. The driver's directory in the kubelet's plugins does: devmgrd makes it when it first serves claims.
//
// lost reports that the state file has been lost since.
func usesClaims(c config.Config, known store.State, stateFile interface{ SaveClaims() error }, log *slog.Logger) (uses, lost bool) {
	_, err := os.Stat(filepath.Join(pluginsDir(c), dra.Driver))
	lost = err == nil && !known.Claims
	if len(c.DRA.Resources) == 0 && !known.Claims && !lost {
		return false, false
	}
	if !known.Claims {
		if err := stateFile.SaveClaims(); err != nil {
			log.Warn("cannot record the use of claims", "err", err)
		}
	}
	return true, lost
}

// pluginsDir returns the kubelet's directory plugins.
func pluginsDir(c config.Config) string {
	return filepath.Join(filepath.Dir(c.Plugins.KubeletDir), "plugins")
}

// addClaims adds Dynamic Resource Allocation on this node, with these slices.
func (d *daemon) addClaims(api kube.Client, seen *dra.Slices) {
	c, log := d.config, d.logFor("dra")
	files := cdi.New(cdi.Config{
		Dir: c.DRA.CDIDir, Boot: d.bootID, Allocator: d.devices, Grants: nri.NewGrants(d.rules, log), Log: log,
		Runtime: func(ctx context.Context, pid int32) (cri.CDI, bool, error) { return cri.AskCDI(ctx, cri.Sockets, pid) },
	})
	publisher := dra.New(dra.PublisherConfig{
		NodeName: c.NodeName, Client: api, View: d.devices, Slices: seen, Claimed: d.offered.Claimed, Node: d.node, NodeChanged: d.node.Follow(),
		Order: d.devices.Order, Places: d.stateFile, Known: d.known.Places, NodeUID: d.node.NodeUID, MaxDevices: c.DRA.MaxDevices,
		TooMany: func(r device.ResourceName) bool { return d.offered.OverMaxDevices(r) > 0 }, Log: log, Metrics: d.metrics,
	})
	all := dra.NewClaims(dra.ClaimsConfig{
		NodeName: c.NodeName, Client: api, Sink: d.devices, Inventory: d.devices, Plugins: d.plugins, Pool: publisher.Pool, Log: log,
		NeedsClaim: func(r device.ResourceName, created time.Time) (needs, known bool) {
			return dra.NeedsClaim(d.node, r, created)
		},
		NodeChanged: d.node.Follow(),
	})
	server := dra.NewServer(dra.ServerConfig{
		RegistryDir: c.Plugins.KubeletRegistryDir(), PluginsDir: pluginsDir(c),
		Claims: all, Allocator: d.devices, Files: files, Hold: c.DRA.Hold, Log: log, Metrics: d.metrics,
	})
	d.claims = &claims{all, files}
	together := parts{
		{name: "claims", run: all.Run},
		{name: "slices", run: publisher.Run},
		{name: "slices tried", run: seen.Try},
		{name: "files", run: files.Run},
		{name: "runtime asked", run: files.AskRuntime},
		{name: "server", run: server.Run},
	}
	// It is ready while the scheduler sees the devices and the kubelet knows the driver.
	d.add(part{"dra", func() error { return errors.Join(publisher.Check(), files.Check(), server.Check()) }, together.run})
}
