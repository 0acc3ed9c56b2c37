package cdi

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
)

const (
	lull                  = 20 * time.Millisecond // from the first event of a burst to the look at the directory
	firstWrite, lastWrite = 200 * time.Millisecond, 30 * time.Second
	firstWatch, lastWatch = time.Second, time.Minute
	mostChanges           = 1024 // of the allocator, that are read at once
)

// Run keeps the files as they should be until ctx ends, which is not an error: they follow what plugins grant and which pods there are, and are
// written again when another process has changed them. When it ends, the files stay; the hook sees no containers from then on.
func (f *Files) Run(ctx context.Context) error {
	revision := f.catchUp()
	watcher := f.watch()
	defer func() { watcher.Close() }()
	defer func() {
		f.SetHook(Away, 0)
		f.restore(nil, true)
	}()
	writes, watches := loops.Backoff{First: firstWrite, Last: lastWrite}, loops.Backoff{First: firstWatch, Last: lastWatch}
	var look, again, rewatch <-chan time.Time
	look = time.After(0)                                 // what happened before the watch
	touched, all := map[device.ClaimRequest]bool{}, true // files to look at
	for {
		updated := f.Allocator.Updated() // before anything is read
		f.refresh()                      // first, since the process may be killed at any moment
		revision = f.follow(revision)
		f.compareAll(ctx)
		f.mu.Lock()
		failed, stale := len(f.unwritten) > 0, f.stale
		f.stale = false
		f.mu.Unlock()
		if stale {
			f.restore(nil, true)
		}
		switch {
		case !failed:
			again = nil
			writes.Reset()
		case again == nil:
			again = time.After(writes.Next())
		}
		if watcher.Events == nil && rewatch == nil {
			rewatch = time.After(watches.Next())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-updated:
		case <-f.kick:
		case e := <-watcher.Events:
			name := filepath.Base(e.Name)
			of, ours := requestOf(name)
			if !ours {
				of, ours = metadataOf(name)
			}
			if ours {
				touched[of] = true
			} else if e.Name == f.Dir {
				all = true
			}
			if look == nil && (ours || all) {
				look = time.After(lull)
			}
			if e.Name == f.Dir && e.Has(dirwatch.Remove|dirwatch.Rename) {
				watcher.Close()
				watcher = f.watch()
			}
		case <-watcher.Errors: // events are lost
			watcher.Close()
			watcher = f.watch()
			all = true
			if look == nil {
				look = time.After(lull)
			}
		case <-look:
			look = nil
			if all {
				touched = nil
			}
			f.restore(touched, false)
			touched, all = map[device.ClaimRequest]bool{}, false
		case <-again:
			again = nil
			f.restore(nil, false)
		case <-rewatch:
			rewatch, look, all = nil, time.After(0), true
			if watcher = f.watch(); watcher.Events != nil {
				watches.Reset()
			}
		}
	}
}

// watch follows the directory, and makes it if it is missing. If that fails, it returns a Watcher without events: the directory is looked at as often as
// the watch is tried.
func (f *Files) watch() *dirwatch.Watcher {
	w, err := dirwatch.Start()
	if err == nil {
		if err = os.MkdirAll(f.Dir, 0o755); err == nil {
			err = w.AddPath(f.Dir)
		}
		if err != nil {
			w.Close()
		}
	}
	if err != nil {
		f.Log.Warn("cannot watch the directory of CDI files; looking at it now and then", "dir", f.Dir, "err", err)
		return new(dirwatch.Watcher)
	}
	return w
}

// outdate has the files of a pod's containers compared.
func (f *Files) outdate(p *device.PodAllocation) {
	for _, as := range p.Assignments {
		f.Outdated(as.Container)
	}
}

// follow takes over the allocator's changes since a revision, and returns the latest.
func (f *Files) follow(revision uint64) uint64 {
	for {
		changes, complete := f.Allocator.ChangesSince(revision, mostChanges)
		if !complete {
			return f.catchUp()
		}
		for _, c := range changes {
			revision = c.Revision
			if c.After == nil {
				f.gone(c.Before.Pod.UID)
			} else {
				f.outdate(c.After)
			}
		}
		if len(changes) < mostChanges {
			return revision
		}
	}
}

// catchUp takes over all pods, and forgets the others. It returns the revision at which follow continues.
func (f *Files) catchUp() (revision uint64) {
	gone := map[device.PodUID]bool{} // of those known before the snapshot: others may be newer
	f.mu.Lock()
	for _, users := range f.users {
		for uid := range users {
			gone[uid] = true
		}
	}
	f.mu.Unlock()
	s := f.Allocator.Snapshot()
	for _, p := range s.Pods {
		delete(gone, p.Pod.UID)
		f.outdate(p.PodAllocation)
	}
	for uid := range gone {
		f.gone(uid)
	}
	return s.Revision
}

// compareAll compares the files of the containers that may get something else now.
func (f *Files) compareAll(ctx context.Context) {
	f.mu.Lock()
	all := slices.Collect(maps.Keys(f.outdated))
	clear(f.outdated)
	f.mu.Unlock()
	for _, c := range all {
		if ctx.Err() == nil {
			f.compare(ctx, c)
		}
	}
}

// restore writes those files again that are missing, or that say something else; nil: all of them. stale: the guards are as of another Hook.
func (f *Files) restore(which map[device.ClaimRequest]bool, stale bool) {
	f.writing.Lock()
	defer f.writing.Unlock()
	for _, of := range f.sorted(func(of device.ClaimRequest) bool { return which == nil || which[of] }) {
		one, there := f.File(of)
		if !there || f.written(&one) {
			continue
		}
		if !stale || !one.Guard {
			f.Log.Warn("CDI file of a claim was changed or removed; writing it again", "path", filepath.Join(f.Dir, fileName(of)))
		}
		_ = f.put(&one)
	}
}
