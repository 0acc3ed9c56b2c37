package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// A directory is a location with a kubelet.sock: the common one, or a plugin pod's own. The Registry watches it, and restores the socket.
type directory struct {
	location
	registry *Registry
	log      *slog.Logger
	called   chan struct{} // closed when the watcher has called whom it found at the start
	recall   chan struct{} // size one: plugins that wait to be called may be needed again

	restores                *rate.Limiter   // of kubelet.sock being put back
	strays, losses, returns *rate.Sometimes // of what is logged about kubelet.sock
	refusals                *rate.Limiter   // of what is logged about refused registrations

	watches sync.WaitGroup // of the watchers; Registry.work has one that waits for them

	// Guarded by Registry.mu.
	listener net.Listener
	own      fs.FileInfo        // kubelet.sock as we put it there
	trouble  error              // why registration does not reach us, if it does not
	cancel   context.CancelFunc // ends the watchers
	watched  bool               // it is served and followed
	leaving  bool               // its pod is gone
}

func newDirectory(r *Registry, loc location) *directory {
	d := &directory{
		location: loc, registry: r, log: r.log,
		called: make(chan struct{}), recall: make(chan struct{}, 1),
		restores: rate.NewLimiter(rate.Every(restoreInterval), restoreBurst),
		strays:   loops.Seldom(), losses: loops.Seldom(), returns: loops.Seldom(),
		refusals: rate.NewLimiter(rate.Every(warningPause), warningBurst),
		cancel:   func() {},
	}
	if loc.pod.Known() {
		d.log = r.log.With("pod", loc.pod.String())
	}
	return d
}

// startLocked serves registrations and follows the directory.
func (d *directory) startLocked() {
	r := d.registry
	d.watched = true
	if d.listener != nil {
		d.serveLocked()
	}
	ctx, cancel := context.WithCancel(context.Background()) // a socket is not gone because we are going
	d.cancel = cancel
	d.watches.Go(func() { d.watch(ctx) })
	if d.location.registry != "" {
		d.watches.Go(func() { newPluginWatcher(d).Run(ctx) })
	}
	r.work.Go(d.watches.Wait)
}

// ServiceAccounts knows the pods of the node.
type ServiceAccounts interface {
	// ServiceAccount returns the name of a pod's service account; empty: not known.
	ServiceAccount(device.Pod) string
	// Named returns the pod of that UID. It is false if the pod is not known.
	Named(device.PodUID) (device.Pod, bool)
	// Fetch reads the pod from the API server if it is not known. Then its service account is.
	Fetch(context.Context, device.Pod) error
}

// Directory returns a plugin pod's own directory, creating it and its kubelet.sock if necessary, within a few milliseconds.
func (r *Registry) Directory(pod device.Pod) (device.PluginDir, error) {
	r.making.Lock()
	defer r.making.Unlock()
	r.mu.Lock()
	d, closing := r.own[pod.UID], r.closing
	leaving, deaf := d != nil && d.leaving, d != nil && d.listener == nil
	r.mu.Unlock()
	switch {
	case closing:
		return device.PluginDir{}, errStopping
	case leaving:
		return device.PluginDir{}, fmt.Errorf("the directory of an earlier sandbox of pod %s is being removed", pod)
	case r.tree == nil:
		return device.PluginDir{}, errors.New("no plugin pod has a directory of its own")
	case d != nil && deaf:
		if err := d.listen(); err != nil {
			return device.PluginDir{}, err
		}
		return d.pluginDir(), nil
	case d != nil:
		return d.pluginDir(), nil
	}
	dir, err := r.tree.Make(pod)
	if err != nil {
		return device.PluginDir{}, fmt.Errorf("directory for the plugins of pod %s: %w", pod, err)
	}
	d = newDirectory(r, r.locationOf(dir))
	if err := d.listen(); err != nil {
		return device.PluginDir{}, errors.Join(err, r.tree.Remove(pod.UID))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closing {
		return device.PluginDir{}, errStopping // which has closed the listener; the directory stays for the next start
	}
	r.own[pod.UID] = d
	if r.running {
		d.startLocked()
	}
	r.directories.notify()
	return dir, nil
}

// OwnDirectory returns a plugin pod's own directory, if it has one with a kubelet.sock.
func (r *Registry) OwnDirectory(uid device.PodUID) (device.PluginDir, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.own[uid]
	if d == nil || d.leaving || d.listener == nil {
		return device.PluginDir{}, false
	}
	return d.pluginDir(), true
}

func (d *directory) pluginDir() device.PluginDir {
	return device.PluginDir{Owner: d.pod.Pod, Sockets: d.sockets, Registry: d.location.registry}
}

// Directories returns the directories of plugin pods with their resources, and a channel that the next change closes.
func (r *Registry) Directories() (all []device.PluginDir, changed <-chan struct{}) {
	changed = r.directories.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	of := map[device.PodUID][]device.ResourceName{}
	for name, s := range r.resources {
		for _, l := range s.all() {
			of[l.location.pod.UID] = append(of[l.location.pod.UID], name)
		}
	}
	for uid, d := range r.own {
		if !d.leaving {
			dir := d.pluginDir()
			dir.Resources = of[uid]
			all = append(all, dir)
		}
	}
	return all, changed
}

// PodsPresent removes the directories of all other pods: these ended while devmgrd was away.
func (r *Registry) PodsPresent(present func(device.PodUID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.own {
		if !present(uid) {
			r.leaveLocked(uid)
		}
	}
}

// PodGone removes a pod's directory. The pod's containers have ended.
func (r *Registry) PodGone(uid device.PodUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveLocked(uid)
}

// leaveLocked removes a directory in the background.
func (r *Registry) leaveLocked(uid device.PodUID) {
	d := r.own[uid]
	if d == nil || d.leaving || r.closing {
		return
	}
	d.leaving = true
	r.directories.notify()
	if r.running { // else begin removes it
		r.work.Go(func() { r.remove(d) })
	}
}

func (r *Registry) remove(d *directory) {
	d.stop()
	d.watches.Wait()
	r.mu.Lock()
	for _, s := range r.resources {
		r.endReserveLocked(s, func(l *registration) bool { return l.location.pod.UID == d.pod.UID })
		if s.registration.location.pod.UID == d.pod.UID && s.registration.endpoint != "" && !r.closing {
			r.dropSocketLocked(s, podGone)
		}
	}
	r.callAgainLocked() // a plugin of another pod may serve what this one did
	r.mu.Unlock()
	if err := r.tree.Remove(d.pod.UID); err != nil {
		d.log.Warn("cannot remove directory of a plugin pod that is gone", "dir", d.sockets, "err", device.ClipTo(err.Error(), maxError))
	} else {
		d.log.Info("directory of plugin pod removed", "dir", d.sockets)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.own, d.pod.UID)
}

// stop ends the directory's watchers, and closes its socket.
func (d *directory) stop() {
	r := d.registry
	r.mu.Lock()
	defer r.mu.Unlock()
	d.cancel()
	if l := d.listener; l != nil {
		d.listener = nil
		l.Close()
	}
}

// restore reads the directories that existed before devmgrd's start.
func (r *Registry) restore() {
	known, err := r.tree.Known()
	if err != nil {
		r.log.Error("cannot read directories of plugin pods", "err", device.ClipTo(err.Error(), maxError))
	}
	for _, dir := range known {
		d := newDirectory(r, r.locationOf(dir))
		if err := d.listen(); err != nil { // its watch tries again
			d.log.Error("cannot serve directory of plugin pod", "dir", dir.Sockets, "err", err)
		}
		r.mu.Lock()
		r.own[dir.Owner.UID] = d
		r.mu.Unlock()
	}
}

// commonMode is the mode of the common directories, as of the kubelet's. Plugins run as root, or could make no socket there; a plugin whose socket is open to
// all users relies on the directory.
const commonMode = 0o750

// make creates the directory if it is missing.
func (d *directory) make() error {
	if d.pod.Known() {
		_, err := d.registry.tree.Make(d.pod.Pod)
		return err
	}
	err := shareddir.MakeShared(d.sockets, commonMode)
	if err == nil && d.location.registry != "" {
		err = shareddir.MakeShared(d.location.registry, commonMode)
	}
	return err
}

// locationOf returns the location in a plugin pod's own directory.
func (r *Registry) locationOf(dir device.PluginDir) location {
	return location{
		pod:     device.PluginPod{Pod: dir.Owner},
		sockets: dir.Sockets, registry: dir.Registry,
		kubelet: r.common.kubelet, kubeletRegistry: r.common.kubeletRegistry,
		foreign: slices.DeleteFunc([]string{r.cfg.PluginsDir, r.cfg.SocketDir, r.cfg.RegistryDir}, func(dir string) bool { return dir == "" }),
	}
}

// locationOfPod returns the location of a plugin in the state file.
func (r *Registry) locationOfPod(pod device.PluginPod) location {
	if !pod.Known() {
		return r.common.location
	}
	loc := location{pod: pod} // without directories, in which nothing is found
	if r.tree != nil {
		if dir, err := r.tree.Of(pod.Pod); err == nil {
			loc = r.locationOf(dir)
			loc.pod = pod
		}
	}
	return loc
}

// accountTimeout bounds the read of a plugin pod that the watch has not delivered yet.
const accountTimeout = 3 * time.Second

// named returns the location with its pod's service account. It asks the API server only if a rule depends on the account.
func (r *Registry) named(ctx context.Context, loc location, resource device.ResourceName) location {
	if !loc.pod.Known() || loc.pod.ServiceAccount != "" || r.neighbours.Accounts == nil {
		return loc
	}
	loc.pod.ServiceAccount = r.neighbours.Accounts.ServiceAccount(loc.pod.Pod)
	if loc.pod.ServiceAccount != "" || r.cfg.Rules == nil || !r.cfg.Rules.NeedsAccount(resource, loc.pod.Pod) {
		return loc
	}
	ctx, cancel := context.WithTimeout(ctx, accountTimeout)
	defer cancel()
	if err := r.neighbours.Accounts.Fetch(ctx, loc.pod.Pod); err != nil {
		r.log.Debug("service account of plugin pod not known", "pod", loc.pod.String(), "err", err)
	}
	loc.pod.ServiceAccount = r.neighbours.Accounts.ServiceAccount(loc.pod.Pod)
	return loc
}

// A barredError reports that a rule forbids the plugin to serve the resource.
type barredError struct {
	err     error
	lasting bool // until the next start; else the pod's service account may become known
}

func (e *barredError) Error() string { return e.err.Error() }

func (e *barredError) Unwrap() error { return e.err }

// checkRules returns a *barredError if a rule forbids the plugin to serve its resource.
func (r *Registry) checkRules(ctx context.Context, l *registration) error {
	if r.cfg.Rules == nil {
		return nil
	}
	pod := r.named(ctx, l.location, l.resource).pod
	if err := r.cfg.Rules.MayServe(l.resource, pod); err != nil {
		return &barredError{err, pod.ServiceAccount != "" || !r.cfg.Rules.NeedsAccount(l.resource, pod.Pod)}
	}
	return nil
}

// directoryOf returns the directory of a location; nil: it is removed.
func (r *Registry) directoryOf(loc location) *directory {
	if !loc.pod.Known() {
		return r.common
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own[loc.pod.UID]
}

// callAgainLocked calls all plugins in registry directories that are not registered: one that was replaced may be needed again.
func (r *Registry) callAgainLocked() {
	loops.Signal(r.common.recall)
	for _, d := range r.own {
		loops.Signal(d.recall)
	}
}

// A broadcaster wakes any number of readers after a change.
type broadcaster struct {
	mu   locks.Mutex[locks.Leaf]
	ring chan struct{}
}

// changed returns a channel that the next notify closes.
func (b *broadcaster) changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ring == nil {
		b.ring = make(chan struct{})
	}
	return b.ring
}

func (b *broadcaster) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ring != nil {
		close(b.ring)
		b.ring = nil
	}
}
