package registry

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

const (
	maxDirectories    = 256                   // that are watched
	maxDepth          = 4                     // of directories below the registry directory
	maxWatchedSockets = 1024                  // that are called
	maxFiles          = 16384                 // that are read, of all directories together
	lull              = 20 * time.Millisecond // from the first event of a burst to the scan
	callCost          = time.Millisecond      // CPU time of a call that fails, at most; one to a dead socket takes a tenth of it
	idle              = 20                    // rest after a scan, as a multiple of its CPU time and its calls': a twentieth of one core
	maxRest           = 5 * time.Second       // after a scan: the largest ones take about that
	maxCallRest       = 20 * time.Second      // after one that leads to the most calls
	retryRate         = 20                    // calls in a second that have failed before, of one directory
	retryBurst        = 64                    // of these at once
	warningBurst      = 32                    // lines about sockets of one directory, and about refused registrations; the other lines are for debugging
	warningPause      = 10 * time.Second      // between two such lines later on
)

// A pluginWatcher follows the registry directory, in which plugins put sockets and wait to be called. Its fields belong to Run.
type pluginWatcher struct {
	registry *Registry
	of       *directory
	dir      string
	sockets  map[string]*watchedSocket // by path
	work     sync.WaitGroup            // Run of each socket
	warnings *rate.Limiter             // about sockets
	retries  *rate.Limiter             // of calls that have failed
	rested   time.Time                 // no scan before: the plugins choose how many files there are, and how often these change
	again    bool                      // the next scan calls the plugins that are not registered
	started  bool                      // after the first scan
	crowded  bool                      // passOver has logged
}

func newPluginWatcher(d *directory) *pluginWatcher {
	return &pluginWatcher{
		registry: d.registry, of: d, dir: d.location.registry, sockets: make(map[string]*watchedSocket),
		warnings: rate.NewLimiter(rate.Every(warningPause), warningBurst), retries: rate.NewLimiter(retryRate, retryBurst),
	}
}

// Run calls and registers plugins until ctx ends.
func (w *pluginWatcher) Run(ctx context.Context) {
	w.of.tend(ctx, w.dir, w.watchOnce, func(due bool) {
		if due {
			_ = w.look(ctx, func(*shareddir.Dir) error { return nil }) // tend has logged that nothing can be watched
		}
	})
	w.work.Wait()
}

// watchOnce follows the directory until the watch fails or the directory is removed.
func (w *pluginWatcher) watchOnce(ctx context.Context) error {
	watcher, err := dirwatch.Start()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := w.of.make(); err != nil {
		return err
	}
	// The kernel does not report the directory's removal while a socket bound in it is open. The directory above reports it.
	above, err := shareddir.Open(filepath.Dir(w.dir))
	if err != nil {
		return err
	}
	defer above.Close()
	watched, err := shareddir.Open(w.dir)
	if err != nil {
		return err
	}
	defer watched.Close()
	// Events come in bursts and do not identify the file, so each burst leads to a scan.
	soon := time.After(time.Until(w.rested))
	scan := func(pause time.Duration) {
		if soon == nil {
			soon = time.After(max(pause, time.Until(w.rested)))
		}
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-watcher.Errors:
			if !errors.Is(err, dirwatch.ErrOverflow) {
				return err
			}
			scan(lull)
		case event := <-watcher.Events:
			_, inside := below(w.dir, event.Name)
			ours := inside || event.Name == w.dir || event.Name == above.Path()
			if ours && event.Has(dirwatch.Create|dirwatch.Remove|dirwatch.Rename) {
				scan(lull)
			}
		case <-w.of.recall:
			w.again = true
			scan(0)
		case <-soon:
			soon = nil
			if err := watcher.Add(above); err != nil {
				return err
			}
			if !watched.Current() {
				return errRemoved
			}
			watch := func(dir *shareddir.Dir) error { return watcher.Add(dir) }
			if err := w.look(ctx, watch); err != nil {
				return err
			}
			watcher.Prune() // plugins may have moved directories out of this one, with watched ones in them
		}
	}
}

// look follows the sockets in the directory. On error nothing has changed.
func (w *pluginWatcher) look(ctx context.Context, watch func(*shareddir.Dir) error) error {
	found, cost, err := w.measure(watch)
	called := 0
	defer func() {
		w.rested = time.Now().Add(min(idle*cost, maxRest) + min(idle*time.Duration(called)*callCost, maxCallRest))
	}()
	if err != nil {
		return err
	}
	var gone []*watchedSocket
	for path, c := range w.sockets {
		if now := found[path]; now == nil || !shareddir.Same(c.file, now) {
			c.cancel()
			gone = append(gone, c)
			delete(w.sockets, path)
		}
	}
	// Their successors may begin only when they have ended.
	for _, c := range gone {
		<-c.done
	}
	if len(gone) > 0 || w.again {
		w.again = false
		for _, c := range w.sockets {
			if c.nudge() {
				called++
			}
		}
	}

	var fresh []string
	for path := range found {
		if w.sockets[path] == nil {
			fresh = append(fresh, path)
		}
	}
	// The newest socket wins, as if each plugin had registered when it created its socket.
	slices.SortFunc(fresh, func(a, b string) int {
		return cmp.Or(found[a].ModTime().Compare(found[b].ModTime()), strings.Compare(a, b))
	})
	var calls sync.WaitGroup
	for _, path := range fresh {
		if len(w.sockets) >= maxWatchedSockets {
			w.passOver(path)
			break
		}
		calls.Add(1)
		called++
		w.start(ctx, path, found[path], calls.Done)
		if w.started {
			w.registry.nudge(path) // the plugin may have recreated its socket
		}
	}
	if !w.started {
		w.started = true
		w.work.Go(func() {
			calls.Wait()
			close(w.of.called)
		})
	}
	return nil
}

func (w *pluginWatcher) start(ctx context.Context, path string, file fs.FileInfo, first func()) {
	ctx, cancel := context.WithCancel(ctx)
	c := &watchedSocket{
		registry: w.registry, location: &w.of.location, log: w.of.log.With("socket", path), warnings: w.warnings, retries: w.retries,
		path: path, file: file, id: w.registry.nextNumber(),
		wake: make(chan struct{}, 1), cancel: cancel, done: make(chan struct{}),
	}
	w.sockets[path] = c
	w.work.Go(func() {
		defer close(c.done)
		defer cancel()
		first := sync.OnceFunc(first)
		defer first()
		c.Run(ctx, first)
	})
}

// measure is find, with its CPU time: a scan that the machine holds up costs what others cost.
func (w *pluginWatcher) measure(watch func(*shareddir.Dir) error) (map[string]fs.FileInfo, time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime()
	found, err := w.find(watch)
	return found, threadTime() - began, err
}

// threadTime returns the CPU time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // it fails for bad arguments only
	return time.Duration(t.Nano())
}

// find returns the sockets in the directory and below, and watches each directory before it reads it. Like the kubelet it ignores
// names that begin with a dot, and follows no link.
func (w *pluginWatcher) find(watch func(*shareddir.Dir) error) (map[string]fs.FileInfo, error) {
	type place struct {
		below string // the directory; empty for the one at the top
		depth int
	}
	top, err := shareddir.Open(w.dir)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	found := make(map[string]fs.FileInfo)
	places := []place{{}}
	room := maxFiles
	for i := 0; i < len(places); i++ {
		at := places[i]
		files, err := w.read(top, at.below, watch, &room)
		if i > 0 && vanished(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, info := range files {
			below := filepath.Join(at.below, info.Name())
			switch {
			case info.IsDir() && at.depth < maxDepth && len(places) < maxDirectories:
				places = append(places, place{below, at.depth + 1})
			case info.IsDir():
				w.passOver(filepath.Join(w.dir, below))
			case info.Mode().Type() == fs.ModeSocket:
				found[filepath.Join(w.dir, below)] = info
			}
		}
	}
	return found, nil
}

// read opens a directory below top once, watches it, and returns its files whose names do not begin with a dot. It takes what it has read off room.
func (w *pluginWatcher) read(top *shareddir.Dir, below string, watch func(*shareddir.Dir) error, room *int) ([]fs.FileInfo, error) {
	d := top
	if below != "" {
		var err error
		if d, err = top.OpenDir(below); err != nil {
			return nil, err
		}
		defer d.Close()
	}
	if err := watch(d); err != nil {
		return nil, err
	}
	names, more, err := d.Names(*room)
	if err != nil {
		return nil, err
	}
	*room -= len(names)
	if more {
		w.passOver(d.Path())
	}
	var files []fs.FileInfo
	for _, name := range names {
		if strings.HasPrefix(name, ".") {
			continue
		}
		info, err := d.Stat(name)
		switch {
		case err == nil:
			files = append(files, info)
		case !vanished(err):
			return nil, err
		}
	}
	return files, nil
}

// passOver logs once that the directory is larger than the limits.
func (w *pluginWatcher) passOver(path string) {
	if !w.crowded {
		w.of.log.Error("plugin registry too large; ignoring the rest",
			"first", path, "sockets", maxWatchedSockets, "directories", maxDirectories, "depth", maxDepth, "files", maxFiles)
	}
	w.crowded = true
}

// vanished reports whether a file was removed or replaced meanwhile.
func vanished(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
