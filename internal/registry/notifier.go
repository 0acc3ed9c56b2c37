package registry

import (
	"errors"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// A notifier shares one inotify instance among the watchers of many directories: a user has few of them on most machines (128),
// and each plugin pod has two directories.
type notifier struct {
	mu      sync.Mutex
	watcher *fsnotify.Watcher // nil: nobody watches
	users   map[*notices]bool
	work    sync.WaitGroup
}

// notices are what a notifier tells one of its users, until Close. They are never waited for: what does not fit is lost, and
// told as an error.
type notices struct {
	Events chan fsnotify.Event
	Errors chan error

	notifier *notifier
	watcher  *fsnotify.Watcher
	dirs     map[string]bool // guarded by notifier.mu
}

const maxNotices = 256 // that wait to be read

var errNoticesLost = errors.New("more has happened in the directory than could be followed")

func newNotifier() *notifier { return &notifier{users: map[*notices]bool{}} }

// open returns notices of nothing yet.
func (n *notifier) open() (*notices, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watcher == nil {
		w, err := fsnotify.NewWatcher()
		if err != nil {
			return nil, err
		}
		n.watcher = w
		n.work.Go(func() { n.deliver(w) }) // it ends when w is closed: with its last user
	}
	user := &notices{
		Events: make(chan fsnotify.Event, maxNotices), Errors: make(chan error, 1),
		notifier: n, watcher: n.watcher, dirs: map[string]bool{},
	}
	n.users[user] = true
	return user, nil
}

// Add has a directory watched.
func (u *notices) Add(dir string) error {
	n := u.notifier
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := u.watcher.Add(dir); err != nil {
		return err
	}
	u.dirs[dir] = true
	return nil
}

// Close ends the notices.
func (u *notices) Close() {
	n := u.notifier
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.users, u)
	last := true
	for other := range n.users {
		last = last && other.watcher != u.watcher
	}
	if last {
		if n.watcher == u.watcher {
			n.watcher = nil
		}
		u.watcher.Close()
		return
	}
	for dir := range u.dirs {
		if !n.watchedLocked(dir, u.watcher) {
			_ = u.watcher.Remove(dir) // it may be gone
		}
	}
}

func (n *notifier) watchedLocked(dir string, w *fsnotify.Watcher) bool {
	for u := range n.users {
		if u.watcher == w && u.dirs[dir] {
			return true
		}
	}
	return false
}

// deliver hands on what w tells.
func (n *notifier) deliver(w *fsnotify.Watcher) {
	for {
		select {
		case event, open := <-w.Events:
			if !open {
				return
			}
			n.hand(w, event)
		case err, open := <-w.Errors:
			if !open {
				return
			}
			n.fail(w, err)
		}
	}
}

// hand gives an event to those who watch the directory in which it happened, or which it is about.
func (n *notifier) hand(w *fsnotify.Watcher, event fsnotify.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	dir := filepath.Dir(event.Name)
	for u := range n.users {
		if u.watcher != w || !u.dirs[dir] && !u.dirs[event.Name] {
			continue
		}
		select {
		case u.Events <- event:
		default:
			u.fail(errNoticesLost)
		}
	}
}

// fail tells all that events have been lost. They look at everything anew, through a new watcher.
func (n *notifier) fail(w *fsnotify.Watcher, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watcher == w {
		n.watcher = nil
	}
	for u := range n.users {
		if u.watcher == w {
			u.fail(err)
		}
	}
}

func (u *notices) fail(err error) {
	select {
	case u.Errors <- err:
	default: // it has one to read
	}
}
