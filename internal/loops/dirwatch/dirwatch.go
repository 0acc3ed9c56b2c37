// Package dirwatch watches directories, through inotify, for loops that read events, add directories and close the watch in one goroutine.
//
// Package fsnotify 1.10.1 would hang such loops: it sends errors with the lock held that Add and Close take, and it adds watches by path, so that a link
// in a directory that other processes write leads it to any file system, also one that does not answer.
//
// A Watcher watches at most the directories that were added: it ends the watch of a directory that is moved, and Prune ends others.
package dirwatch

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/locks"
)

// An Event is a change of a watched directory, or of a file in one.
type Event struct {
	Name string // the directory's, joined with the file's name if it is about a file
	Op   Op
}

// An Op is what happened: some of the bits below.
type Op uint32

// The bits of an Op, for Event.Has. A rename is the event of the former name; the new name is created. A directory whose file system is unmounted counts as
// removed.
const (
	Create Op = 1 << iota
	Remove
	Rename
	Write
	Chmod // or another change of the inode
)

// Has reports whether one of these has happened.
func (e Event) Has(some Op) bool { return e.Op&some != 0 }

func (e Event) String() string {
	var names []string
	for i, name := range []string{"create", "remove", "rename", "write", "chmod"} {
		if e.Has(1 << i) {
			names = append(names, name)
		}
	}
	return fmt.Sprintf("%s of %q", strings.Join(names, " and "), e.Name)
}

// An Open is a directory that is open, as a *shareddir.Dir is.
type Open interface {
	// Path returns the path that is part of events' names.
	Path() string
	// Through returns the path of a name in the directory, that leads through the open directory.
	Through(name string) string
}

var (
	// ErrOverflow reports that events were dropped, since they were not read in time. No directory is watched until it is added again.
	ErrOverflow = errors.New("too many changes of the watched directories")
	// ErrClosed reports that the Watcher is closed.
	ErrClosed = errors.New("the directory watch is closed")
)

// A Watcher watches directories. The goroutine that reads Events and Errors may call its methods, and so may others. The zero Watcher is closed, and
// its channels are nil.
type Watcher struct {
	Events <-chan Event // the oldest first; closed by Close
	Errors <-chan error // ErrOverflow, or the last error before Close: nothing is watched then; closed by Close

	file *os.File // of inotify; the kernel keeps events until they are read, up to its limit
	done chan struct{}
	work sync.WaitGroup

	mu     locks.Mutex[locks.Leaf]
	fd     int // file's; -1: closed
	places map[int32]*place
}

// A place is a directory that is watched.
type place struct {
	path  string
	added bool // since the last Prune
}

// Start starts a Watcher of no directory yet. It takes an inotify instance and runs a goroutine until Close.
func Start() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	events, failures := make(chan Event), make(chan error)
	w := &Watcher{
		Events: events, Errors: failures, file: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{}), fd: fd, places: make(map[int32]*place),
	}
	w.work.Go(func() {
		defer close(events)
		defer close(failures)
		w.read(events, failures)
	})
	return w, nil
}

// Add watches an open directory too, which may be closed afterwards. A directory that is watched already gets the path of this one.
func (w *Watcher) Add(dir Open) error {
	defer runtime.KeepAlive(dir)
	_, err := w.add(dir.Through("."), dir.Path())
	return err
}

// AddPath is Add for the directory at a path, through links: no other process may choose where the path leads. It fails if another one is there by then.
func (w *Watcher) AddPath(path string) error {
	dir, err := os.OpenFile(path, unix.O_PATH|unix.O_DIRECTORY, 0) // it may take long, so without the lock
	if err != nil {
		return err
	}
	defer dir.Close()
	wd, err := w.add(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()), filepath.Clean(path))
	if err != nil {
		return err
	}
	opened, err := dir.Stat()
	now, other := os.Stat(path)
	if err = cmp.Or(err, other); err == nil && !os.SameFile(opened, now) {
		err = &fs.PathError{Op: "watch", Path: path, Err: errors.New("the directory has been replaced")}
	}
	if err != nil {
		w.end(wd)
	}
	return err
}

const mask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF |
	unix.IN_ONLYDIR

// add watches the open directory to which through leads. A network's or user's file system may be asked for its rights, as when it was opened. add holds the
// lock so that the reader knows the watch when it has its first event.
func (w *Watcher) add(through, path string) (wd int32, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file == nil || w.fd < 0 {
		return 0, ErrClosed
	}
	n, err := unix.InotifyAddWatch(w.fd, through, mask)
	if err != nil {
		return 0, &fs.PathError{Op: "watch", Path: path, Err: err}
	}
	wd = int32(n)
	w.places[wd] = &place{path: path, added: true}
	return wd, nil
}

// end ends a watch.
func (w *Watcher) end(wd int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd >= 0 {
		w.endLocked(wd)
	}
}

// Prune ends the watches of the directories that were not added since the last Prune.
func (w *Watcher) Prune() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for wd, at := range w.places {
		if !at.added {
			w.endLocked(wd)
		}
		at.added = false
	}
}

// endLocked ends a watch. Its events that have not been read are dropped.
func (w *Watcher) endLocked(wd int32) {
	delete(w.places, wd)
	_, _ = unix.InotifyRmWatch(w.fd, uint32(wd)) // it fails if the kernel has ended the watch
}

// Close ends the watch, and drops what has not been read. It may be called again.
func (w *Watcher) Close() error {
	if w.file == nil {
		return nil
	}
	w.mu.Lock()
	first := w.fd >= 0
	w.fd = -1
	w.mu.Unlock()
	var err error
	if first {
		close(w.done)
		err = w.file.Close()
	}
	w.work.Wait()
	return err
}

// bufferSize is room for 60 of the longest events.
const bufferSize = 16 << 10

// read sends events and errors until Close.
func (w *Watcher) read(events chan<- Event, failures chan<- error) {
	buffer := make([]byte, bufferSize)
	for {
		n, err := w.file.Read(buffer)
		for rest := buffer[:n]; err == nil && len(rest) > 0; {
			var c change
			if c, rest, err = next(rest); err != nil {
				break
			}
			e, overflow := w.take(c)
			switch {
			case overflow:
				select {
				case failures <- ErrOverflow:
				case <-w.done:
					return
				}
			case e.Op != 0:
				select {
				case events <- e:
				case <-w.done:
					return
				}
			}
		}
		if err == nil {
			continue
		}
		w.endAll()
		select { // the kernel does not fail here, except after Close
		case failures <- fmt.Errorf("reading changes of directories: %w", err):
			<-w.done
		case <-w.done:
		}
		return
	}
}

// take returns the event of a change; zero: there is none. It ends watches first, so that the reader of the event adds them again.
func (w *Watcher) take(c change) (e Event, overflow bool) {
	if c.mask&unix.IN_Q_OVERFLOW != 0 { // the kernel may have dropped the end of a watch, or a move
		w.endAll()
		return Event{}, true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.places[c.wd]
	if at == nil || w.fd < 0 {
		return Event{}, false
	}
	switch {
	case c.mask&unix.IN_IGNORED != 0: // an event was the reason
		delete(w.places, c.wd)
		return Event{}, false
	case c.mask&unix.IN_MOVE_SELF != 0:
		w.endLocked(c.wd)
	}
	return Event{Name: filepath.Join(at.path, c.name), Op: c.op()}, false
}

// endAll ends all watches.
func (w *Watcher) endAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fd < 0 {
		return
	}
	for wd := range w.places {
		w.endLocked(wd)
	}
}
