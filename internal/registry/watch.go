package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/time/rate"

	"github.com/devmgrd/devmgrd/internal/backoff"
	"github.com/devmgrd/devmgrd/internal/shareddir"
)

const (
	firstRetry = time.Second // before the next try for kubelet.sock while it is not ours
	lastRetry  = 5 * time.Second
	blindPause = time.Minute // between two looks after all plugins, while nothing can be watched
)

// watch looks after the socket directory until ctx ends: it puts kubelet.sock back if it vanishes, and wakes the link
// whose plugin makes its socket again. It removes dead sockets at the start, and seldom when others are made.
func (d *directory) watch(ctx context.Context) {
	d.tend(ctx, d.sockets, d.watchOnce, func(due bool) {
		_ = d.keepSocket() // Check says what is wrong
		if due {
			d.nudge()
		}
	})
}

// tend watches a directory until ctx ends: Run and runOnce of a link, once more. Perhaps there is no watch to be had on
// this machine: then it looks instead, and says when a longer pause is over.
func (d *directory) tend(ctx context.Context, dir string, watchOnce func(context.Context) error, look func(due bool)) {
	pause := backoff.Backoff{First: firstPause, Last: lastPause}
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

// watchOnce watches until the watch breaks or the directory is gone.
func (d *directory) watchOnce(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := d.make(); err != nil {
		return err
	}
	if err := watcher.Add(d.sockets); err != nil {
		return err
	}
	watched, err := shareddir.Open(d.sockets)
	if err != nil {
		return err
	}
	defer watched.Close()
	// Whatever happened before the watch was in place is seen here.
	var retry <-chan time.Time // while kubelet.sock is another process's, which may end without a sign
	again := backoff.Backoff{First: firstRetry, Last: lastRetry}
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
			return err // events may have been lost: look at everything again
		case event := <-watcher.Events:
			switch name := filepath.Base(event.Name); {
			case event.Name == d.sockets && event.Has(fsnotify.Remove|fsnotify.Rename):
				return errRemoved
			case name == socketName && event.Has(fsnotify.Create|fsnotify.Remove|fsnotify.Rename):
				// The directory's own end is not told while a socket that was bound in it is open, as ours is.
				if !watched.Current() {
					return errRemoved
				}
				if err := keep(); err != nil {
					return err // removed since we looked
				}
			case event.Has(fsnotify.Create):
				d.registry.nudge(event.Name)
				sweep()
			}
		}
	}
}

// nudge wakes the links whose plugin listens at path.
func (r *Registry) nudge(path string) {
	r.nudgeIf(func(l *registration) bool { return l.path == path })
}

// nudge wakes the links of the directory's plugins.
func (d *directory) nudge() {
	d.registry.nudgeIf(func(l *registration) bool { return l.home.sockets == d.sockets })
}

func (r *Registry) nudgeIf(meant func(*registration) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.resources {
		if meant(s.registration) {
			s.registration.nudge()
		}
	}
}

// keepSocket makes sure that kubelet.sock is ours. A missing or dead one is replaced at once, since plugins that find
// none for some seconds give up, and so is what is no socket. One on which another process listens is left alone: plugins now
// register there, and Check says so. The caller asks again, since that process may end and leave the file behind.
//
// A process that takes the socket away in a loop has it back once a second, and the log grows by a line a minute.
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

// putBack makes another kubelet.sock if the one that is there is not own.
func (d *directory) putBack(own fs.FileInfo) error {
	dir, err := shareddir.Open(d.sockets)
	if err != nil {
		return err
	}
	defer dir.Close()
	// The file's times say nothing: a plugin may set them. Its number is not given to another file while the socket is open.
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
	l, info, err := bind(dir)
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
	restoreBurst    = 20 // times that kubelet.sock is put back at once
	restoreInterval = time.Second
)

// An earlyError reports that kubelet.sock has been taken away too often to be put back at once.
type earlyError struct{ wait time.Duration }

func (e *earlyError) Error() string {
	return fmt.Sprintf("the registration socket is removed again and again; it is put back in %s", e.wait)
}

// seldom is for a line of the log that another process can have written as often as it likes.
func seldom() *rate.Sometimes { return &rate.Sometimes{First: 5, Interval: time.Minute} }

func (d *directory) setTrouble(err error) {
	d.registry.mu.Lock()
	defer d.registry.mu.Unlock()
	d.trouble = err
}
