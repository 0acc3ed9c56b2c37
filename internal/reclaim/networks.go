package reclaim

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
)

// A network plugin's DEL may change the settings of a device, such as a virtual function's, after the pod's last container has ended. The runtime removes
// the pod's network namespace, a file, when DEL has succeeded: until then the devices are not free.

// networkLook is the pause between two looks at a network namespace whose directory cannot be watched.
const networkLook = time.Second

// networks follows the network namespaces of ended pods. Only Run's goroutine uses it.
type networks struct {
	start   func() (*dirwatch.Watcher, error)
	watcher *dirwatch.Watcher // nil: there is nothing to watch, or none could be made
}

// changes returns the changes of directories that are watched, and the watch's errors, after which a change may have been missed.
func (n *networks) changes() (<-chan dirwatch.Event, <-chan error) {
	if n.watcher == nil {
		return nil, nil
	}
	return n.watcher.Events, n.watcher.Errors
}

// watch begins the watch, or ends it: a machine has few inotify instances.
func (n *networks) watch(does bool) {
	switch {
	case does && n.watcher == nil:
		n.watcher, _ = n.start() // without one, look each second
	case !does && n.watcher != nil:
		n.watcher.Close()
		n.watcher = nil
	}
}

// left returns those of the namespaces that exist, and whether the removal of each of them will be an event.
func (n *networks) left(paths []string) (left []string, watched bool) {
	watched = n.watcher != nil
	for _, path := range paths { // before the look: none is removed unseen
		watched = watched && n.watcher.AddPath(filepath.Dir(path)) == nil
	}
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool {
		_, err := os.Lstat(path)
		return err != nil // it is gone, or devmgrd cannot see it
	}), watched
}

// lookAtNetworks notes which network namespaces of ended pods are gone, and stops waiting for those that are late. It returns when to look again; zero:
// after the next wake.
func (g *Gate) lookAtNetworks() (again time.Time) {
	g.mu.Lock()
	all := slices.DeleteFunc(slices.Collect(maps.Values(g.proofs)), func(p *proof) bool { return len(p.networks) == 0 })
	g.mu.Unlock()
	g.networks.watch(len(all) > 0)
	for _, p := range all {
		left, watched := g.networks.left(p.networks) // without the lock; only this goroutine changes them
		now := time.Now()
		if len(left) > 0 && !now.Before(p.torn) {
			g.Log.Warn("network namespace of ended pod still exists; no longer waiting", "pod", p.Pod.String(), "uid", p.Pod.UID, "network", left[0])
			left = nil
		}
		g.mu.Lock()
		if len(left) < len(p.networks) {
			p.networks = left
			p.nextLocked()
			loops.Signal(g.changed)
		}
		g.mu.Unlock()
		if len(left) == 0 {
			continue
		}
		next := p.torn
		if look := now.Add(networkLook); !watched && look.Before(next) {
			next = look
		}
		again = loops.Earliest(again, next)
	}
	return again
}
