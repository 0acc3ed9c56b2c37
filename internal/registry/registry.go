package registry

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks"
	"github.com/devmgrd/devmgrd/internal/registry/internal/plugindir"
)

// Config is what a Registry needs. Only GracePeriod, the plugin watcher's directories, PluginsDir, AllowedAnnotations, Rules, Listener, Known
// and RejectDuplicates may be left out. All paths are absolute.
type Config struct {
	SocketDir   string        // devmgrd listens on kubelet.sock in it; plugins put their sockets next to it
	GracePeriod time.Duration // how long an offer is Stale before it is Lost; 0: not at all

	RegistryDir        string // watched for sockets of plugins that wait for a call; empty: none is called
	KubeletDir         string // the path of SocketDir in a plugin's container, as in its answer to GetInfo
	KubeletRegistryDir string // the path of RegistryDir there
	PluginsDir         string // for plugin pods' own directories; empty: no pod has one

	AllocateTimeout  time.Duration // of one Allocate, including the wait for its turn
	PreferredTimeout time.Duration // of one GetPreferredAllocation, likewise
	PreStartTimeout  time.Duration // of one PreStartContainer, likewise

	MaxMessageBytes int // the largest list accepted from a plugin
	MaxDevices      int // the longest list accepted from a plugin
	MaxResources    int // the number of resources at once
	MaxTotalBytes   int // the approximate memory of all plugins' lists together

	AllowedAnnotations []string // of grants that steer the runtime: keys, or beginnings of keys and an asterisk
	Rules              Rules    // nil: any plugin may serve any resource, and grant anything

	Listener         net.Listener          // the registration socket, if systemd created it
	RejectDuplicates bool                  // refuse a second plugin while the first one serves; else the newest that has listed its devices wins
	Known            []device.PluginRecord // the store's records: dialled at the start, Stale or Lost until they serve

	Store   Store
	Log     *slog.Logger
	Metrics prometheus.Registerer
}

// Store keeps records over a restart. SavePlugin returns when the record is durable. One goroutine calls it, with changed records
// only.
type Store interface {
	SavePlugin(device.PluginRecord) error
	// ForgetResource removes all records of a resource.
	ForgetResource(device.ResourceName) error
}

// Rules are the operator's rules for plugins. Their methods return at once; their errors are *device.Refusal.
type Rules interface {
	// NeedsAccount reports whether MayServe depends on the service account of the pod.
	NeedsAccount(resource device.ResourceName, pod device.Pod) bool
	// MayServe returns an error if the plugin must not serve the resource.
	MayServe(resource device.ResourceName, by device.PluginPod) error
	// MayGrant returns an error if the container must not have what the plugin grants.
	MayGrant(to device.PodContainer, resource device.ResourceName, grant device.Grant) error
	// Granted records a grant.
	Granted(resource device.ResourceName, ids []device.ID, grant device.Grant)
}

// registerTimeout bounds a registering plugin's first answer on its own socket. The kubelet has the same.
const registerTimeout = 10 * time.Second

// Registry is the API of this package. All methods may be called at any time and from any goroutine.
type Registry struct {
	cfg        Config // immutable after New
	log        *slog.Logger
	metrics    *metrics
	saver      *saver
	neighbours Neighbours // of Run
	server     *registrationServer
	pauses
	changed  chan struct{}
	revision atomic.Uint64 // of the offers
	failed   chan error    // the registration service failed

	common      *directory
	tree        *plugindir.Tree // nil: no pod has a directory of its own
	directories broadcaster     // a directory, or the pod of a resource, has changed

	work sync.WaitGroup // all goroutines that Run waits for

	intakes    *turns             // of sessions with long messages
	hostChecks *hostchecks.Checks // of plugins' sockets outside the plugin directories

	making locks.Mutex[locks.PluginDirectory] // held while a plugin pod's directory is made; taken before mu

	mu         locks.Mutex[locks.Registry] // guards the fields below; never held across a call, a file access or a save
	resources  map[device.ResourceName]*resourceState
	lastNumber uint64 // registrations and streams so far: the identity of a registration, and of a plugin's stream
	own        map[device.PodUID]*directory
	running    bool
	closing    bool
}

// pauses are the times that tests change.
type pauses struct {
	registerTimeout time.Duration // for a plugin's first answer
	firstPause      time.Duration // of a registration that dials back
	lastPause       time.Duration // the longest; it doubles up to this
	holdTime        time.Duration // for the watcher to find a remembered plugin
	infoTimeout     time.Duration // of the watcher's question
	courtesy        time.Duration // for a plugin to register after it has created its socket
	refusePause     time.Duration // before dialling a plugin that has refused to list its devices
	growPause       time.Duration // between two tries to make room for a plugin's new devices
	callPause       time.Duration // of the watcher's calls, the first one
	sweepPause      time.Duration // between two sweeps of the socket directory
	steadyTime      time.Duration // of serving, after which a series of restarts is over
	intakeTime      time.Duration // for a long message of a plugin
}

// New returns a Registry with the offers of cfg.Known, as Stale or Lost. Nothing runs before Run.
func New(cfg Config) *Registry {
	cfg.mustBeComplete()
	for _, dir := range []*string{&cfg.SocketDir, &cfg.RegistryDir, &cfg.KubeletDir, &cfg.KubeletRegistryDir, &cfg.PluginsDir} {
		if *dir != "" {
			*dir = filepath.Clean(*dir)
		}
	}
	r := &Registry{
		cfg:        cfg,
		log:        cfg.Log,
		metrics:    newMetrics(cfg.Metrics),
		pauses:     pauses{registerTimeout, firstPause, lastPause, holdTime, infoTimeout, courtesy, refusePause, growPause, firstCallPause, sweepPause, steadyTime, intakeTime},
		changed:    make(chan struct{}, 1),
		failed:     make(chan error, 1),
		intakes:    newTurns(intakeTurns, 1),
		hostChecks: hostchecks.New(cfg.Log),
		own:        map[device.PodUID]*directory{},
		resources:  make(map[device.ResourceName]*resourceState, len(cfg.Known)),
	}
	common := location{sockets: cfg.SocketDir, registry: cfg.RegistryDir, kubelet: cfg.KubeletDir, kubeletRegistry: cfg.KubeletRegistryDir}
	if cfg.PluginsDir != "" {
		common.foreign = []string{cfg.PluginsDir}
		r.tree = plugindir.At(cfg.PluginsDir)
	}
	r.common = newDirectory(r, common)
	r.saver = newSaver(cfg.Store, cfg.Log, r.record)
	r.server = newRegistrationServer(r)
	shared := r.sharedSockets(cfg.Known)
	for _, k := range cfg.Known {
		r.saver.remember(k)
		if shared[r.pathOf(k.Pod, k.Endpoint)] {
			r.log.Warn("recorded resources share a socket; not dialling",
				"resource", k.Resource, "endpoint", k.Endpoint)
			k.Endpoint = ""
			r.saver.note(k.Resource)
		}
		k.Reserve = slices.DeleteFunc(slices.Clone(k.Reserve), func(p device.ReservePlugin) bool {
			return cfg.RejectDuplicates || shared[r.pathOf(p.Pod, p.Endpoint)]
		})
		current, reserve := r.rememberedPlugins(k)
		r.resources[k.Resource] = remembered(k, current, reserve...)
		r.metrics.setUp(k.Resource, false)
		r.metrics.setPod(k.Resource, k.Pod)
	}
	return r
}

// sharedSockets returns the sockets that several records name, as after a crash between two saves. The records do not show the
// latest registration, so devmgrd waits for the plugin instead of offering its devices under a wrong name.
func (r *Registry) sharedSockets(known []device.PluginRecord) map[string]bool {
	seen, shared := make(map[string]bool), make(map[string]bool)
	see := func(pod device.PluginPod, endpoint string) {
		if path := r.pathOf(pod, endpoint); path != "" {
			shared[path] = seen[path]
			seen[path] = true
		}
	}
	for _, k := range known {
		see(k.Pod, k.Endpoint)
		for _, p := range k.Reserve {
			see(p.Pod, p.Endpoint)
		}
	}
	return shared
}

// pathOf returns the path of a recorded socket.
func (r *Registry) pathOf(pod device.PluginPod, endpoint string) string {
	loc := r.locationOfPod(pod)
	return loc.locate(endpoint)
}

func (c Config) mustBeComplete() {
	for name, missing := range map[string]bool{
		"SocketDir":        c.SocketDir == "",
		"GracePeriod":      c.GracePeriod < 0,
		"AllocateTimeout":  c.AllocateTimeout <= 0,
		"PreferredTimeout": c.PreferredTimeout <= 0,
		"PreStartTimeout":  c.PreStartTimeout <= 0,
		"MaxMessageBytes":  c.MaxMessageBytes <= 0,
		"MaxDevices":       c.MaxDevices <= 0,
		"MaxResources":     c.MaxResources <= 0,
		"MaxTotalBytes":    c.MaxTotalBytes <= 0,
		"Store":            c.Store == nil,
		"Log":              c.Log == nil,
		"Metrics":          c.Metrics == nil,
	} {
		if missing {
			panic("registry: Config." + name + " is missing")
		}
	}
}

// Neighbours are what a Registry asks while it runs. They may be nil.
type Neighbours struct {
	Allocator Allocator       // lets new resources replace resources that are Lost and not in use; nil: none is replaced
	Accounts  ServiceAccounts // nil: no service account is known
}

// Run serves registrations, follows plugins and calls them until ctx ends, or until kubelet.sock cannot be served. When it returns,
// the goroutines of work have ended and all records are saved. Call it once.
func (r *Registry) Run(ctx context.Context, with Neighbours) error {
	if err := r.begin(with); err != nil {
		return err
	}
	saving, endSaving := context.WithCancel(context.WithoutCancel(ctx))
	var saver sync.WaitGroup
	saver.Go(func() { r.saver.run(saving) })

	var err error
	select {
	case <-ctx.Done():
	case err = <-r.failed:
	}

	r.close()
	r.server.Stop() // waits for the calls of Register
	r.endWatches()
	r.work.Wait()
	endSaving()
	saver.Wait()
	return err
}

// begin listens, unless Listen was called, and starts the registrations of recorded plugins.
func (r *Registry) begin(with Neighbours) error {
	r.mu.Lock()
	again, listening := r.running, r.common.listener != nil
	r.mu.Unlock()
	if again {
		return errors.New("registry: Run was called a second time")
	}
	if !listening {
		if err := r.Listen(); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running, r.neighbours = true, with
	r.common.startLocked()
	for _, d := range r.own {
		if d.leaving {
			r.work.Go(func() { r.remove(d) })
			continue
		}
		d.startLocked()
	}
	booted := bootTime()
	for _, s := range r.resources {
		if s.state == device.Stale {
			r.graceLocked(s, r.graceLeft(s.since, booted))
		}
		if s.registration.endpoint != "" {
			r.startLocked(s.registration, nil)
		} else {
			s.absentLocked(errors.New(s.registration.where()))
			s.registration.attempt()
		}
		for _, l := range s.reserve {
			r.startLocked(l, nil)
		}
	}
	return nil
}

// endWatches ends the watchers of all directories.
func (r *Registry) endWatches() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.common.cancel()
	for _, d := range r.own {
		d.cancel()
	}
}

// close ends all registrations and accepts no new one.
func (r *Registry) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closing = true
	for _, s := range r.resources {
		s.end()
	}
}

// Offers returns the current offers. Inventories are shared and must not be changed.
func (r *Registry) Offers() map[device.ResourceName]device.Offer {
	r.mu.Lock()
	defer r.mu.Unlock()
	offers := make(map[device.ResourceName]device.Offer, len(r.resources))
	for name, s := range r.resources {
		offers[name] = s.offer()
	}
	return offers
}

// Registrations returns the plugins' endpoints and pods.
func (r *Registry) Registrations() map[device.ResourceName]device.Registration {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make(map[device.ResourceName]device.Registration, len(r.resources))
	for resource, s := range r.resources {
		one := device.Registration{Endpoint: s.registration.endpoint, Pod: s.registration.location.pod}
		for _, l := range s.connected() {
			one.Reserve = append(one.Reserve, device.Registration{Endpoint: l.endpoint, Pod: l.location.pod})
		}
		all[resource] = one
	}
	return all
}

// Changed signals that Offers may have changed since the last receive.
func (r *Registry) Changed() <-chan struct{} { return r.changed }

// Revision returns a number above zero, and a higher one once Offers may have changed. It takes no lock.
func (r *Registry) Revision() uint64 { return 1 + r.revision.Load() }

// signal follows each change of what Offers returns, in the same critical section.
func (r *Registry) signal() {
	r.revision.Add(1)
	loops.Signal(r.changed) // a pending signal covers this change too
}

// Check returns nil while plugins can register, and otherwise the reason why not.
func (r *Registry) Check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closing:
		return errors.New("plugin registration is stopping")
	case !r.running || r.common.listener == nil:
		return errors.New("plugin registration has not started")
	}
	return r.common.trouble
}

// Forget removes a resource without a plugin, also from the Store, and also an unknown one. A plugin that registers it later
// brings it back. Forget fails with a *device.InUseError while a plugin serves the resource, also if one has come meanwhile.
func (r *Registry) Forget(resource device.ResourceName) error {
	r.saver.commitMu.Lock() // or a concurrent save would bring it back
	defer r.saver.commitMu.Unlock()
	r.mu.Lock()
	here := r.resources[resource].present()
	r.mu.Unlock()
	if here {
		return &device.InUseError{Resource: resource, Serving: true}
	}
	if err := r.saver.store.ForgetResource(resource); err != nil {
		return err
	}
	r.saver.forget(resource)
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.resources[resource]
	switch {
	case s == nil:
		return nil
	case s.present():
		r.saver.note(resource)
		return &device.InUseError{Resource: resource, Serving: true}
	}
	s.end()
	delete(r.resources, resource)
	r.metrics.forget(resource)
	r.directories.notify()
	r.signal()
	r.callAgainLocked() // a running plugin that waits for a call must not be lost
	return nil
}
