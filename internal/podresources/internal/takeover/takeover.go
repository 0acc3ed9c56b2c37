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

	"golang.org/x/time/rate"

	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// A Takeover keeps devmgrd's socket at the kubelet's path.
type Takeover struct {
	// Immutable.
	dir                  string
	path, hidden, theirs string // the three names

	log      *slog.Logger
	listener *listener
	watcher  func() (*dirwatch.Watcher, error)
	files    files

	// Run owns these fields, and before it Listen.
	own     fs.FileInfo // of devmgrd's socket
	mode    fs.FileMode // of devmgrd's socket: as the kubelet's last one
	pace    pace
	trouble bool // logged: devmgrd's socket cannot be put at the path

	faults, strays, takings *rate.Sometimes // limits on log messages that another process can cause at will
}

const (
	lastRetry  = time.Second // the longest pause before the next try, while the path cannot be taken or watched
	socketMode = 0o750       // of a kubelet's socket with the usual umask, within widestMode
	dirMode    = 0o750       // of the directory, if devmgrd makes it: as the kubelet does

	widestMode fs.FileMode = 0o770 // the most permissions that devmgrd copies from a socket

	hiddenSocket = ".devmgrd.sock"
)

// New makes a Takeover of the kubelet's socket at path. It changes no file before Listen.
func New(path string, log *slog.Logger) *Takeover {
	dir, name := filepath.Split(filepath.Clean(path))
	return &Takeover{
		dir:      filepath.Clean(dir),
		path:     filepath.Join(dir, name),
		hidden:   filepath.Join(dir, hiddenSocket),
		theirs:   Aside(path),
		log:      log,
		listener: &listener{addr: path},
		watcher:  dirwatch.Start,
		files:    newFiles(filepath.Clean(dir)),
		mode:     socketMode,
		faults:   loops.Seldom(), strays: loops.Seldom(), takings: loops.Seldom(),
	}
}

// Aside returns the name of the kubelet's socket while devmgrd's is at path.
func Aside(path string) string {
	end := filepath.Ext(path)
	return strings.TrimSuffix(filepath.Clean(path), end) + "-own" + end
}

// Listen binds devmgrd's socket. Clients do not find it before Run. The listener stays the same when Run binds the socket again.
// The caller closes it after Run has returned.
func (t *Takeover) Listen() (net.Listener, error) {
	if err := t.bind(); err != nil {
		return nil, fmt.Errorf("taking over %s: %w", t.path, err)
	}
	return t.listener, nil
}

// Run keeps devmgrd's socket at the path until ctx ends. Then it returns the path to the kubelet, or leaves it empty without one.
func (t *Takeover) Run(ctx context.Context) error {
	pause := loops.Backoff{First: lastRetry / 20, Last: lastRetry}
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
			_ = t.look() // look has logged its error
		}
		pause.Wait(ctx)
	}
	if err := t.leave(); err != nil {
		return fmt.Errorf("giving %s back to the kubelet: %w", t.path, err)
	}
	return nil
}

var errGone = errors.New("the directory is another one, or gone")

// watchOnce keeps devmgrd's socket at the path until the watch breaks or the directory is gone.
func (t *Takeover) watchOnce(ctx context.Context) error {
	watcher, err := t.watcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if _, err := shareddir.Make(t.dir, dirMode); err != nil {
		return err
	}
	watched, err := shareddir.Open(t.dir)
	if err != nil {
		return err
	}
	defer watched.Close()
	if err := watcher.Add(watched); err != nil {
		return err
	}
	var retry <-chan time.Time // while the last look has failed
	again := loops.Backoff{First: lastRetry / 10, Last: lastRetry}
	look := func() error {
		if retry = nil; t.look() == nil {
			again.Reset()
		} else {
			retry = time.After(again.Next())
		}
		// The kernel does not report the directory's removal while a socket that was bound in it is open, as devmgrd's is. And
		// the look may have made the directory again.
		if !watched.Current() {
			return errGone
		}
		return nil
	}
	// This look sees the changes from before the watch.
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
			case event.Name == t.dir && event.Has(dirwatch.Remove|dirwatch.Rename):
				return errGone
			case event.Name != t.path && event.Name != t.hidden, !event.Has(dirwatch.Create | dirwatch.Remove | dirwatch.Rename):
				continue
			}
			t.pace.wait(ctx)
			if err := look(); err != nil {
				return err
			}
		}
	}
}

// look puts devmgrd's socket at the path, if it is not there. It logs the first failure of a row, and the row's end.
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

// A pace limits how often devmgrd takes the path from another process: 200 times in one go, then 10 times a second. A kubelet's
// starts stay below that.
type pace struct {
	due time.Time // the time of the latest taking, had all of them been an interval apart
}

const (
	burst    = 200
	interval = 100 * time.Millisecond
)

// took counts a taking.
func (p *pace) took(now time.Time) {
	if first := now.Add(-burst * interval); p.due.Before(first) {
		p.due = first
	}
	p.due = p.due.Add(interval)
}

// wait returns when the next taking is due, or ctx ends.
func (p *pace) wait(ctx context.Context) {
	if early := time.Until(p.due); early > 0 {
		loops.Sleep(ctx, early)
	}
}
