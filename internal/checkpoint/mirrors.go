package checkpoint

import (
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// Directories are the directories of plugin pods.
type Directories interface {
	// Directories returns all directories, and a channel that is closed when they have changed.
	Directories() ([]device.PluginDir, <-chan struct{})
}

// Mirrors keeps a file in the common directory, and one in each plugin pod's own. A pod's file has the devices of the pod's
// plugins: no plugin sees other plugins' assignments.
type Mirrors struct {
	common string
	dirs   Directories
	view   View
	log    *slog.Logger
}

// NewMirrors returns Mirrors. It touches no file before Run.
func NewMirrors(common string, dirs Directories, view View, log *slog.Logger) *Mirrors {
	return &Mirrors{common: common, dirs: dirs, view: view, log: log}
}

// Run writes until ctx ends, and then writes the rest to the common directory. It always returns nil. Each file has its own
// goroutine: a plugin may block the writes of its own file.
func (m *Mirrors) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	start := func(ctx context.Context, dir string, only *selection) {
		one := NewMirror(filepath.Join(dir, Name), m.view, m.log)
		one.only = only
		work.Go(func() { _ = one.Run(ctx) })
	}
	start(ctx, m.common, nil)
	type mirrored struct {
		only *selection
		end  context.CancelFunc
	}
	running := map[string]mirrored{}
	for {
		dirs, changed := m.dirs.Directories()
		there := map[string]bool{}
		for _, d := range dirs {
			there[d.Sockets] = true
			one, is := running[d.Sockets]
			if !is {
				of, end := context.WithCancel(ctx)
				one = mirrored{&selection{changes: make(chan struct{}, 1)}, end}
				one.only.set(d)
				running[d.Sockets] = one
				start(of, d.Sockets, one.only)
				continue
			}
			one.only.set(d)
		}
		maps.DeleteFunc(running, func(dir string, one mirrored) bool {
			if !there[dir] {
				one.end()
			}
			return !there[dir]
		})
		select {
		case <-changed:
		case <-ctx.Done():
			for _, one := range running {
				one.end()
			}
			return nil
		}
	}
}

// A selection is the resources that a file shows.
type selection struct {
	changes chan struct{} // size one

	mu        locks.Mutex[locks.Leaf]
	resources []device.ResourceName // sorted
}

// set makes it the selection of a directory.
func (s *selection) set(d device.PluginDir) {
	resources := slices.Sorted(slices.Values(d.Resources))
	s.mu.Lock()
	same := slices.Equal(s.resources, resources)
	s.resources = resources
	s.mu.Unlock()
	if !same {
		loops.Signal(s.changes)
	}
}

// has reports whether a resource is shown.
func (s *selection) has(r device.ResourceName) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, found := slices.BinarySearch(s.resources, r)
	return found
}

// changed receives when has may return something else.
func (s *selection) changed() <-chan struct{} {
	if s == nil {
		return nil
	}
	return s.changes
}
