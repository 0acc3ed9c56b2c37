package daemon

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/cri"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nodestatus"
	"github.com/devmgrd/devmgrd/internal/nri"
	"github.com/devmgrd/devmgrd/internal/pods"
	"github.com/devmgrd/devmgrd/internal/store"
)

// An offering says which resources are offered through claims: those of dra.resources that do not have too many devices. A list without
// devices changes nothing: some plugins send one first at each start.
type offering struct {
	config config.DRA
	offers offers

	mu       sync.Mutex
	revision uint64                       // of the offers that have been counted
	over     map[device.ResourceName]bool // too many devices, by the last list with devices
	pools    map[device.ResourceName]int  // of the resources that are offered, by the same list
}

// offers are the plugins' lists, from the registry and not from the allocator: claimed is asked for each resource of each pod, by readers that hold locks
// of their own.
type offers interface {
	Offers() map[device.ResourceName]device.Offer
	// Revision returns a number above zero, and a higher one once Offers may have changed.
	Revision() uint64
}

func newOffering(c config.DRA, of offers) *offering {
	return &offering{config: c, offers: of, over: map[device.ResourceName]bool{}, pools: map[device.ResourceName]int{}}
}

func (o *offering) claimed(r device.ResourceName) bool {
	return o.config.Offers(string(r)) && o.overMaxDevices(r) == 0
}

// fewPools is a number of ResourceSlices that no node is too small for.
const fewPools = 256

// overMaxDevices returns dra.maxDevices for resources that have too many devices for that, and 0 for others: more than dra.maxDevices, or so many
// that all resources would need the ResourceSlices of more than eight of the largest ones. A plugin chooses how many resources a pattern of
// dra.resources matches, so those that are named come first, and then those that are offered already.
func (o *offering) overMaxDevices(r device.ResourceName) int {
	o.count()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over[r] {
		return o.config.MaxDevices
	}
	return 0
}

// count counts the devices of all resources once for each change of the offers.
func (o *offering) count() {
	now := o.offers.Revision() // before the offers are read, so that no later change is missed
	o.mu.Lock()
	done := o.revision >= now
	o.mu.Unlock()
	if done {
		return
	}
	all := o.offers.Offers()
	maps.DeleteFunc(all, func(r device.ResourceName, _ device.Offer) bool { return !o.config.Offers(string(r)) })
	gone := func(r device.ResourceName) bool { _, there := all[r]; return !there }
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.revision >= now {
		return // another caller has read the same offers, or later ones
	}
	o.revision = now
	maps.DeleteFunc(o.over, func(r device.ResourceName, _ bool) bool { return gone(r) })
	maps.DeleteFunc(o.pools, func(r device.ResourceName, _ int) bool { return gone(r) })
	rank := func(r device.ResourceName) int {
		switch {
		case o.named(r):
			return 0
		case o.pools[r] > 0:
			return 1
		}
		return 2
	}
	for _, r := range slices.SortedFunc(maps.Keys(all), func(a, b device.ResourceName) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(a, b)) }) {
		o.countLocked(r, len(all[r].Inventory.Devices))
	}
}

// named reports whether dra.resources has the resource's name, and not only a pattern.
func (o *offering) named(r device.ResourceName) bool {
	return slices.Contains(o.config.Resources, string(r))
}

// countLocked counts a resource's devices.
func (o *offering) countLocked(r device.ResourceName, n int) {
	if n == 0 {
		return
	}
	sum := dra.Pools(n)
	for other, pools := range o.pools {
		if other != r && (o.named(other) || !o.named(r)) {
			sum += pools
		}
	}
	o.over[r] = n > o.config.MaxDevices || sum > max(fewPools, 8*dra.Pools(o.config.MaxDevices))
	if delete(o.pools, r); !o.over[r] {
		o.pools[r] = dra.Pools(n)
	}
}

// lateBinding is how long after the removal of a resource from the Node, by the API server's clock, pods may be created that the scheduler binds by its
// number: it sees the removal later, and the time of a write may be that of an earlier one.
const lateBinding = time.Minute

// claims is Dynamic Resource Allocation on this node.
type claims struct {
	*dra.Claims
	publisher *dra.Publisher
	files     *cdi.Files
	server    *dra.Server
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

// newClaims returns Dynamic Resource Allocation on this node.
func newClaims(c config.Config, api kube.Client, devices *allocator.Allocator, stateFile *store.Store, known store.State, node *nodestatus.Publisher, offered *offering,
	sliceable chan<- struct{}, rules nri.Rules, bootID string, logFor func(string) *slog.Logger, metrics prometheus.Registerer,
) *claims {
	log := logFor("dra")
	files := cdi.New(cdi.Config{Dir: c.DRA.CDIDir, Boot: bootID, Allocator: devices, Grants: nri.NewGrants(rules, log), Log: log,
		Runtime: func(ctx context.Context, pid int32) (cri.CDI, bool, error) { return cri.AskCDI(ctx, cri.Sockets, pid) }})
	publisher := dra.New(dra.PublisherConfig{
		NodeName: c.NodeName, Client: api, View: devices, Order: devices.Order, Places: stateFile, Known: known.Places, MaxDevices: c.DRA.MaxDevices, Log: log, Metrics: metrics,
		Claimed: offered.claimed, Uncounted: node.Uncounted, NodeChanged: node.Follow(), NodeUID: node.NodeUID, Writable: sliceable,
		TooMany: func(r device.ResourceName) bool { return offered.overMaxDevices(r) > 0 },
	})
	all := dra.NewClaims(dra.ClaimsConfig{
		NodeName: c.NodeName, Client: api, Sink: devices, Inventory: devices, Plugins: offered.offers, Pool: publisher.Pool, Log: log,
		NeedsClaim: func(r device.ResourceName, created time.Time) (needs, known bool) {
			since, uncounted, known := node.Uncounted(r)
			return uncounted && created.After(since.Add(lateBinding)), known
		},
		NodeChanged: node.Follow(),
	})
	return &claims{
		Claims:    all,
		publisher: publisher,
		files:     files,
		server: dra.NewServer(dra.ServerConfig{
			RegistryDir: c.Plugins.KubeletRegistryDir(), PluginsDir: pluginsDir(c),
			Claims: all, Allocator: devices, Files: files, Hold: c.DRA.Hold, Log: log, Metrics: metrics,
		}),
	}
}

// check returns nil while the scheduler sees the devices and the kubelet knows the driver.
func (c *claims) check() error {
	return errors.Join(c.publisher.Check(), c.files.Check(), c.server.Check())
}

// runs returns what has to run.
func (c *claims) runs() []func(context.Context) error {
	return []func(context.Context) error{c.Claims.Run, c.publisher.Run, c.files.Run, c.files.AskRuntime, c.server.Run}
}

var _ pods.Sink = (*dra.Claims)(nil)
