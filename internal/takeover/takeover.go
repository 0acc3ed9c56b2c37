package takeover

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/time/rate"

	"github.com/devmgrd/devmgrd/internal/backoff"
	"github.com/devmgrd/devmgrd/internal/shareddir"
)

// A takeover puts our socket where agents look for the kubelet's, and the kubelet's next to it. Three names, all in one
// directory:
//
//	kubelet.sock       the path. A kubelet removes what is there when it starts, and renames a socket of its own to it.
//	                   It never looks at it again, and leaves it behind when it dies
//	.devmgrd.sock      our socket, under the name that no kubelet touches. At the path is a hard link of it: so one
//	                   listener serves permanently, whatever becomes of the path
//	kubelet-own.sock   aside: the kubelet's
//
// A kubelet may start between any two system calls of ours. So nothing is removed from the path, and nothing renamed over
// what is there: whatever it is, it is moved aside in one step, and looked at there. Ours comes to the path by a link, which
// fails if something has come meanwhile. A crash between any two leaves what the next look makes good: nothing has to be
// remembered.
//
// What is no socket at one of the names is treated like a dead one, and told. Agents may write in the directory, so all goes through
// package shareddir.
//
// Whose a socket is its inode says. One that nobody listens on is nobody's: a dead kubelet's, or ours of a devmgrd that was
// killed. It never takes the place of one that somebody listens on.
type Takeover struct {
	dir                  string // immutable, as what follows
	path, hidden, theirs string

	log      *slog.Logger
	listener *listener
	watcher  func() (*fsnotify.Watcher, error)
	files    files

	// What follows is Run's, and before it Listen's.
	own     fs.FileInfo // of our socket
	mode    fs.FileMode // of our socket: as the kubelet's last one
	pace    pace
	trouble bool // it has been told that the path cannot be ours

	faults, strays, takings *rate.Sometimes // of what is logged, since another process can have it happen as often as it likes
}

const (
	lastRetry  = time.Second // the longest pause before the next try, while the path is not ours or cannot be watched
	socketMode = 0o750       // of a kubelet's socket, with the usual umask, less what widestMode leaves out
	dirMode    = 0o750       // of the directory, if we make it: the kubelet's

	widestMode fs.FileMode = 0o770 // the most that is taken over of a socket's mode

	hiddenSocket = ".devmgrd.sock"
)

// New makes a takeover of the kubelet's socket at path. Nothing is touched before Listen.
func New(path string, log *slog.Logger) *Takeover {
	dir, name := filepath.Split(filepath.Clean(path))
	return &Takeover{
		dir:      filepath.Clean(dir),
		path:     filepath.Join(dir, name),
		hidden:   filepath.Join(dir, hiddenSocket),
		theirs:   Aside(path),
		log:      log,
		listener: &listener{addr: path},
		watcher:  fsnotify.NewWatcher,
		files:    newFiles(filepath.Clean(dir)),
		mode:     socketMode,
		faults:   seldom(), strays: seldom(), takings: seldom(),
	}
}

// Aside returns where the kubelet's socket is when its path is ours.
func Aside(path string) string {
	end := filepath.Ext(path)
	return strings.TrimSuffix(filepath.Clean(path), end) + "-own" + end
}

// Listen binds our socket. Nobody finds it before Run. The listener stays the same whatever Run has to do, and is the
// caller's to close, once Run has returned.
func (t *Takeover) Listen() (net.Listener, error) {
	if err := t.bind(); err != nil {
		return nil, fmt.Errorf("taking over %s: %w", t.path, err)
	}
	return t.listener, nil
}

// Run keeps the path ours until ctx ends. Then the kubelet has it again, or nobody if there is no kubelet.
func (t *Takeover) Run(ctx context.Context) error {
	pause := backoff.Backoff{First: lastRetry / 20, Last: lastRetry}
	blind := false
	for ctx.Err() == nil {
		began := time.Now()
		err := t.watchOnce(ctx)
		if time.Since(began) > lastRetry {
			pause.Reset()
			blind = false
		}
		if ctx.Err() == nil && !errors.Is(err, errGone) {
			if !blind {
				t.log.Warn("cannot watch kubelet's PodResources directory; polling", "dir", filepath.Dir(t.path), "err", err)
				blind = true
			}
			_ = t.look() // it has been told
		}
		pause.Wait(ctx)
	}
	if err := t.leave(); err != nil {
		return fmt.Errorf("giving %s back to the kubelet: %w", t.path, err)
	}
	return nil
}

var errGone = errors.New("the directory is another one, or gone")

// watchOnce keeps the path ours until the watch breaks or the directory is gone.
func (t *Takeover) watchOnce(ctx context.Context) error {
	watcher, err := t.watcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if _, err := shareddir.Make(t.dir, dirMode); err != nil {
		return err
	}
	if err := watcher.Add(t.dir); err != nil {
		return err
	}
	watched, err := shareddir.Open(t.dir)
	if err != nil {
		return err
	}
	defer watched.Close()
	var retry <-chan time.Time // while the path is not ours
	again := backoff.Backoff{First: lastRetry / 10, Last: lastRetry}
	look := func() error {
		if retry = nil; t.look() == nil {
			again.Reset()
		} else {
			retry = time.After(again.Next())
		}
		// The directory's own end is not told while a socket that was bound in it is open, as ours is; and the look may have
		// made it again.
		if !watched.Current() {
			return errGone
		}
		return nil
	}
	// Whatever happened before the watch was in place is seen here.
	if err := look(); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
			if err := look(); err != nil {
				return err
			}
		case err := <-watcher.Errors:
			return err // events may have been lost
		case event := <-watcher.Events:
			switch {
			case event.Name == t.dir && event.Has(fsnotify.Remove|fsnotify.Rename):
				return errGone
			case event.Name != t.path && event.Name != t.hidden, !event.Has(fsnotify.Create | fsnotify.Remove | fsnotify.Rename):
				continue
			}
			t.pace.wait(ctx)
			if err := look(); err != nil {
				return err
			}
		}
	}
}

// look makes the path ours, if it is not, and says so when that begins to fail and when it has ended.
func (t *Takeover) look() error {
	err := t.takePath()
	switch {
	case err != nil && !t.trouble:
		t.faults.Do(func() {
			t.trouble = true
			t.log.Error("cannot take over kubelet's PodResources socket", "path", t.path, "err", err)
		})
	case err == nil && t.trouble:
		t.trouble = false
		t.log.Info("took over kubelet's PodResources socket again", "path", t.path)
	}
	return err
}

// seldom is for a line of the log that another process can have written as often as it likes.
func seldom() *rate.Sometimes { return &rate.Sometimes{First: 5, Interval: time.Minute} }
