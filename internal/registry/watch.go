package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

const (
	firstRetry = time.Second // before the next try to restore kubelet.sock
	lastRetry  = 5 * time.Second
	blindPause = time.Minute // between two dials of all plugins while nothing can be watched
)

// watch follows the socket directory until ctx ends. It restores kubelet.sock, dials plugins whose sockets were recreated, and removes
// dead sockets: at the start, and at most once in sweepPause when a socket is created.
func (d *directory) watch(ctx context.Context) {
	d.tend(ctx, d.sockets, d.watchOnce, func(due bool) {
		_ = d.keepSocket() // Check has the error
		if due {
			d.nudge()
		}
	})
}

// tend calls watchOnce again and again until ctx ends. After a failure it calls look in its place, with due once in blindPause: the
// machine may have no inotify instance left.
func (d *directory) tend(ctx context.Context, dir string, watchOnce func(context.Context) error, look func(due bool)) {
	pause := loops.Backoff{First: firstPause, Last: lastPause}
	failing := false
	var looked time.Time
	for ctx.Err() == nil {
		began := time.Now()
		err := watchOnce(ctx)
		if time.Since(began) > lastPause {
			pause.Reset()
			failing = false
		}
		if ctx.Err() == nil && !failing {
			d.log.Warn("plugin directory watch failed; retrying", "dir", dir, "err", err)
			failing = true
		}
		if ctx.Err() == nil && !errors.Is(err, errRemoved) {
			due := time.Since(looked) > blindPause
			look(due)
			if due {
				looked = time.Now()
			}
		}
		pause.Wait(ctx)
	}
}

var errRemoved = errors.New("the directory was removed")

// watchOnce follows the directory until the watch fails or the directory is removed.
func (d *directory) watchOnce(ctx context.Context) error {
	watcher, err := dirwatch.Start()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := d.make(); err != nil {
		return err
	}
	watched, err := shareddir.Open(d.sockets)
	if err != nil {
		return err
	}
	defer watched.Close()
	if err := watcher.Add(watched); err != nil {
		return err
	}
	if !watched.Current() { // replaced before it was watched
		return errRemoved
	}
	var retry <-chan time.Time // while kubelet.sock is another process's
	again := loops.Backoff{First: firstRetry, Last: lastRetry}
	keep := func() error {
		err := d.keepSocket()
		early := new(earlyError)
		switch {
		case errors.As(err, &early):
			retry = time.After(early.wait)
		case errors.Is(err, fs.ErrNotExist):
			return errRemoved
		case err != nil:
			retry = time.After(again.Next())
		default:
			retry = nil
			again.Reset()
		}
		return nil
	}
	if err := keep(); err != nil {
		return err
	}
	d.nudge()
	var swept time.Time
	sweep := func() {
		if time.Since(swept) >= d.registry.sweepPause {
			d.sweep(ctx)
			swept = time.Now()
		}
	}
	sweep()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-retry:
			if err := keep(); err != nil {
				return err
			}
		case err := <-watcher.Errors:
			return err // events may have been lost
		case event := <-watcher.Events:
			switch name := filepath.Base(event.Name); {
			case event.Name == d.sockets && event.Has(dirwatch.Remove|dirwatch.Rename):
				return errRemoved
			case name == socketName && event.Has(dirwatch.Create|dirwatch.Remove|dirwatch.Rename):
				// The kernel does not report the directory's removal while a socket bound in it is open, as devmgrd's is.
				if !watched.Current() {
					return errRemoved
				}
				if err := keep(); err != nil {
					return err // removed since we looked
				}
			case event.Has(dirwatch.Create):
				d.registry.nudge(event.Name)
				sweep()
			}
		}
	}
}

// nudge dials the plugins that listen at a path.
func (r *Registry) nudge(path string) {
	r.nudgeIf(func(l *registration) bool { return l.path == path })
}

// nudge dials the directory's plugins.
func (d *directory) nudge() {
	d.registry.nudgeIf(func(l *registration) bool { return l.location.sockets == d.sockets })
}

func (r *Registry) nudgeIf(meant func(*registration) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.resources {
		for _, l := range s.all() {
			if meant(l) {
				l.nudge()
			}
		}
	}
}

// keepSocket restores kubelet.sock if it is missing, dead, or not a socket: at once, since plugins give up after some seconds. It leaves
// another process's socket alone, and Check reports it.
//
// If a process removes the socket again and again, devmgrd restores it 20 times at once, then once a second, and logs that seldom.
func (d *directory) keepSocket() error {
	d.registry.mu.Lock()
	own, before := d.own, d.trouble
	d.registry.mu.Unlock()
	path := filepath.Join(d.sockets, socketName)
	err := d.putBack(own)
	if early := new(earlyError); errors.As(err, &early) {
		return err
	}
	if err != nil {
		err = fmt.Errorf("plugins cannot register: %w", err)
	}
	d.setTrouble(err)
	if err != nil && before == nil {
		d.losses.Do(func() { d.log.Error("registration socket taken by another process", "path", path, "err", err) })
	}
	return err
}

// putBack creates kubelet.sock if the present file is not own.
func (d *directory) putBack(own fs.FileInfo) error {
	dir, err := shareddir.Open(d.sockets)
	if err != nil {
		return err
	}
	defer dir.Close()
	// Plugins may set the file's times. The kernel does not reuse its inode while the socket is open.
	if info, err := dir.Stat(socketName); err == nil && os.SameFile(own, info) {
		return nil
	}
	if err := d.vacant(dir); err != nil {
		return err
	}
	if turn := d.restores.Reserve(); turn.Delay() > 0 {
		defer turn.Cancel()
		return &earlyError{turn.Delay()}
	}
	l, info, err := socket.Listen(dir, socketName, 0o660)
	if err != nil {
		return err
	}
	d.adopt(l, info)
	d.returns.Do(func() {
		d.log.Warn("registration socket restored", "path", dir.Join(socketName))
	})
	return nil
}

const (
	restoreBurst    = 20 // times that kubelet.sock is restored at once
	restoreInterval = time.Second
)

// An earlyError reports that kubelet.sock has been removed too often to be restored at once.
type earlyError struct{ wait time.Duration }

func (e *earlyError) Error() string {
	return fmt.Sprintf("the registration socket is removed again and again; it is restored in %s", e.wait)
}

func (d *directory) setTrouble(err error) {
	d.registry.mu.Lock()
	defer d.registry.mu.Unlock()
	d.trouble = err
}
