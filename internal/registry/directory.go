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
	"github.com/devmgrd/devmgrd/internal/plugindir"
)

// A directory is a home with a kubelet.sock in it: the common one, or a plugin pod's own. It is watched while the registry runs,
// and has the registration socket put back when it is removed.
type directory struct {
	home
	registry *Registry
	log      *slog.Logger
	called   chan struct{} // closed when the watcher has called whom it found at the start
	recall   chan struct{} // size one: plugins that wait to be called may be needed again

	restores                *rate.Limiter   // of kubelet.sock being put back
	strays, losses, returns *rate.Sometimes // of what is logged about kubelet.sock

	watches sync.WaitGroup // of the watchers; Registry.work has one that waits for them

	// Guarded by Registry.mu.
	listener net.Listener
	own      fs.FileInfo        // kubelet.sock as we put it there
	trouble  error              // why registration does not reach us, if it does not
	cancel   context.CancelFunc // ends the watchers
	watched  bool               // it is served and followed
	leaving  bool               // its pod is gone
}

func newDirectory(r *Registry, h home) *directory {
	d := &directory{
		home: h, registry: r, log: r.log,
		called: make(chan struct{}), recall: make(chan struct{}, 1),
		restores: rate.NewLimiter(rate.Every(restoreInterval), restoreBurst),
		strays:   seldom(), losses: seldom(), returns: seldom(),
		cancel: func() {},
	}
	if h.pod.Known() {
		d.log = r.log.With("pod", h.pod.String())
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
	if d.home.registry != "" {
		d.watches.Go(func() { newPluginWatcher(d).Run(ctx) })
	}
	r.work.Go(d.watches.Wait)
}

// AddServiceAccounts tells where the service accounts of plugin pods are known. It is called before Run. Without it none is.
func (r *Registry) AddServiceAccounts(of ServiceAccounts) { r.accounts = of }

// ServiceAccounts knows the pods of the node.
type ServiceAccounts interface {
	// ServiceAccount returns the name of a pod's service account; empty: not known.
	ServiceAccount(device.Pod) string
	// Fetch reads the pod from the API server if it is not known. Then its service account is.
	Fetch(context.Context, device.Pod) error
}

// Directory returns a plugin pod's own directory, in which kubelet.sock listens. It is made if it is not there. It returns in a few
// milliseconds.
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
	d = newDirectory(r, r.homeOf(dir))
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

// OwnDirectory returns a plugin pod's own directory; false: it has none in which kubelet.sock listens.
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
	return device.PluginDir{Owner: d.pod.Pod, Sockets: d.sockets, Registry: d.home.registry}
}

// Directories returns the directories of plugin pods with the resources that were registered in each, and a channel that is closed
// when any of that has changed.
func (r *Registry) Directories() (all []device.PluginDir, changed <-chan struct{}) {
	changed = r.directories.changed()
	r.mu.Lock()
	defer r.mu.Unlock()
	of := map[device.PodUID][]device.ResourceName{}
	for name, s := range r.resources {
		of[s.registration.home.pod.UID] = append(of[s.registration.home.pod.UID], name)
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

// PodsPresent has the directories removed of all pods that are not among these: they went while devmgrd was away.
func (r *Registry) PodsPresent(present func(device.PodUID) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.own {
		if !present(uid) {
			r.leaveLocked(uid)
		}
	}
}

// PodGone has a pod's directory removed. The pod's containers have ended.
func (r *Registry) PodGone(uid device.PodUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaveLocked(uid)
}

// leaveLocked has a directory removed in the background.
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
		if s.registration.home.pod.UID == d.pod.UID && s.registration.endpoint != "" && !r.closing {
			r.dropSocketLocked(s, podGone)
		}
	}
	r.mu.Unlock()
	r.callAgain() // a plugin of another pod may serve what this one did
	if err := r.tree.Remove(d.pod.UID); err != nil {
		d.log.Warn("cannot remove directory of a plugin pod that is gone", "dir", d.sockets, "err", clip(err.Error()))
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

// restore takes up the directories of plugin pods that are there since before devmgrd's start.
func (r *Registry) restore() {
	known, err := r.tree.Known()
	if err != nil {
		r.log.Error("cannot read directories of plugin pods", "err", clip(err.Error()))
	}
	for _, dir := range known {
		d := newDirectory(r, r.homeOf(dir))
		if err := d.listen(); err != nil { // its watch tries again
			d.log.Error("cannot serve directory of plugin pod", "dir", dir.Sockets, "err", err)
		}
		r.mu.Lock()
		r.own[dir.Owner.UID] = d
		r.mu.Unlock()
	}
}

// make makes the directory if it is not there.
func (d *directory) make() error {
	if d.pod.Known() {
		_, err := d.registry.tree.Make(d.pod.Pod)
		return err
	}
	err := plugindir.MakeShared(d.sockets)
	if err == nil && d.home.registry != "" {
		err = plugindir.MakeShared(d.home.registry)
	}
	return err
}

// homeOf returns the home in a plugin pod's own directory.
func (r *Registry) homeOf(dir device.PluginDir) home {
	return home{
		pod:     device.PluginPod{Pod: dir.Owner},
		sockets: dir.Sockets, registry: dir.Registry,
		kubelet: r.common.kubelet, kubeletRegistry: r.common.kubeletRegistry,
		foreign: slices.DeleteFunc([]string{r.cfg.PluginsDir, r.cfg.SocketDir, r.cfg.RegistryDir}, func(dir string) bool { return dir == "" }),
	}
}

// homeOfPod returns the home of a plugin that the store remembers.
func (r *Registry) homeOfPod(pod device.PluginPod) home {
	if !pod.Known() {
		return r.common.home
	}
	h := home{pod: pod} // without directories, in which nothing is found
	if r.tree != nil {
		if dir, err := r.tree.Of(pod.Pod); err == nil {
			h = r.homeOf(dir)
			h.pod = pod
		}
	}
	return h
}

// accountTimeout bounds the read of a plugin pod that the watch has not shown yet.
const accountTimeout = 3 * time.Second

// named returns the home with the name of its pod's service account. The API server is asked only if a rule depends on the name.
func (r *Registry) named(ctx context.Context, h home, resource device.ResourceName) home {
	if !h.pod.Known() || h.pod.ServiceAccount != "" || r.accounts == nil {
		return h
	}
	h.pod.ServiceAccount = r.accounts.ServiceAccount(h.pod.Pod)
	if h.pod.ServiceAccount != "" || r.cfg.Rules == nil || !r.cfg.Rules.NeedsAccount(resource, h.pod.Pod) {
		return h
	}
	ctx, cancel := context.WithTimeout(ctx, accountTimeout)
	defer cancel()
	if err := r.accounts.Fetch(ctx, h.pod.Pod); err != nil {
		r.log.Debug("service account of plugin pod not known", "pod", h.pod.String(), "err", err)
	}
	h.pod.ServiceAccount = r.accounts.ServiceAccount(h.pod.Pod)
	return h
}

// A barredError says that a rule does not let the plugin serve the resource.
type barredError struct {
	err     error
	lasting bool // until the next start; else the pod's service account may become known
}

func (e *barredError) Error() string { return e.err.Error() }

func (e *barredError) Unwrap() error { return e.err }

// allowed returns a *barredError if a rule does not let the plugin serve the link's resource.
func (r *Registry) allowed(ctx context.Context, l *registration) error {
	if r.cfg.Rules == nil {
		return nil
	}
	pod := r.named(ctx, l.home, l.resource).pod
	if err := r.cfg.Rules.MayServe(l.resource, pod); err != nil {
		return &barredError{err, pod.ServiceAccount != "" || !r.cfg.Rules.NeedsAccount(l.resource, pod.Pod)}
	}
	return nil
}

// directoryOf returns the directory of a home, or nil: it is gone.
func (r *Registry) directoryOf(h home) *directory {
	if !h.pod.Known() {
		return r.common
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.own[h.pod.UID]
}

// callAgain has all plugins called that wait for it: one that was replaced may be needed again.
func (r *Registry) callAgain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.callAgainLocked()
}

func (r *Registry) callAgainLocked() {
	r.common.callAgain()
	for _, d := range r.own {
		d.callAgain()
	}
}

// callAgain has the plugins of a directory called that wait for it.
func (d *directory) callAgain() {
	select {
	case d.recall <- struct{}{}:
	default:
	}
}

// A broadcaster tells any number of listeners that something has changed.
type broadcaster struct {
	mu   sync.Mutex
	ring chan struct{}
}

// changed returns a channel that the next tell closes.
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
