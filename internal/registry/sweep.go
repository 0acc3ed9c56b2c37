package registry

import (
	"context"
	"errors"
	"path/filepath"
	"syscall"
	"time"

	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

const (
	sweepPause = 10 * time.Minute // between two sweeps
	deadAge    = 5 * time.Minute  // of a socket that a sweep removes: its owner binds it a moment before it listens
	maxSwept   = 4096             // directory entries that a sweep looks at
	callLimit  = time.Second      // of one connection, to a socket whose queue is full
)

// sweep removes sockets that refuse a connection and belong to no resource: a plugin that names its socket after its process leaves one
// behind at each crash. It opens each file without following links, and connects to the opened file.
func (d *directory) sweep(ctx context.Context) {
	dir, err := shareddir.Open(d.sockets)
	if err != nil {
		return // the watch of the directory says so
	}
	defer dir.Close()
	names, _, err := dir.Names(maxSwept)
	if err != nil {
		d.log.Debug("cannot list socket directory", "err", err)
		return
	}
	removed := 0
	kept := d.endpointFiles(dir)
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		if isOwn(name) || kept[name] {
			continue
		}
		switch dead, err := removeDead(ctx, dir, name); {
		case err != nil:
			d.log.Debug("cannot look at socket", "file", name, "err", err)
		case dead:
			removed++
		}
	}
	if removed > 0 {
		d.log.Info("dead sockets removed", "dir", d.sockets, "sockets", removed)
	}
}

// endpointFiles returns the files in the socket directory that belong to a resource: endpoints, and the targets of links.
func (d *directory) endpointFiles(dir *shareddir.Dir) map[string]bool {
	files := map[string]bool{}
	for _, endpoint := range d.endpoints() {
		files[filepath.Base(endpoint)] = true
		if filepath.IsAbs(endpoint) {
			continue // no link
		}
		e, passed, err := follow(dir, endpoint, true)
		if err == nil {
			e.Close()
		}
		for _, name := range passed {
			files[filepath.Base(name)] = true
		}
	}
	return files
}

// endpoints returns those of the plugins that registered in the directory.
func (d *directory) endpoints() (all []string) {
	d.registry.mu.Lock()
	defer d.registry.mu.Unlock()
	for _, s := range d.registry.resources {
		for _, l := range s.all() {
			if l.endpoint != "" && l.location.sockets == d.sockets {
				all = append(all, l.endpoint)
			}
		}
	}
	return all
}

// removeDead removes a socket that is not new and refuses a connection.
func removeDead(ctx context.Context, d *shareddir.Dir, name string) (bool, error) {
	e, err := d.Open(name)
	if err != nil {
		return false, err
	}
	defer e.Close()
	if !e.IsSocket() || time.Since(e.Info().ModTime()) < deadAge {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	conn, err := e.Dial(ctx)
	if err == nil {
		return false, conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return false, err
	}
	now, err := d.Stat(name)
	if err != nil {
		return false, err
	}
	if !shareddir.Same(now, e.Info()) {
		return false, nil // another file has that name now
	}
	return true, d.Unlink(name)
}
