// Package dirwatch watches directories for loops that read events, add directories and close the watch in one goroutine.
//
// Package fsnotify 1.10.1 holds its lock while it sends an error, and Add and Close take that lock. It has an error to send when a watched directory is
// moved and removed at once, so such a loop would hang. A goroutine of the Watcher receives events and errors all the time, and keeps them until the loop
// reads them.
package dirwatch

import (
	"sync"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// maxPending is the number of events that a Watcher keeps: other processes choose how many there are.
const maxPending = 4096

// An Event is a change of a watched directory, or of a file in one.
type Event = fsnotify.Event

// An Op is what happened: some of the bits below.
type Op = fsnotify.Op

// The bits of an Op, for Event.Has. A rename is the event of the former name; the new name is created.
const (
	Create = fsnotify.Create
	Remove = fsnotify.Remove
	Rename = fsnotify.Rename
	Write  = fsnotify.Write
)

// ErrOverflow reports that events were dropped: by the kernel, or by the Watcher because they were not read. The watch goes on.
var ErrOverflow = fsnotify.ErrEventOverflow

// A Watcher watches directories. The goroutine that reads Events and Errors may call its methods, and so may others. The zero Watcher is closed, and
// its channels are nil.
type Watcher struct {
	Events <-chan Event // the oldest first; closed by Close
	Errors <-chan error // events may be missing; one error covers all that went missing before it is read; closed by Close

	source *fsnotify.Watcher
	work   sync.WaitGroup
}

// Start starts a Watcher of no directory yet. It takes an inotify instance and runs a goroutine until Close.
func Start() (*Watcher, error) {
	source, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	events, errors := make(chan Event), make(chan error)
	w := &Watcher{Events: events, Errors: errors, source: source}
	w.work.Go(func() { w.pass(events, errors) })
	return w, nil
}

// Add watches a directory too. It does nothing if the directory is watched already.
func (w *Watcher) Add(dir string) error {
	if w.source == nil {
		return fsnotify.ErrClosed
	}
	return w.source.Add(dir)
}

// Close ends the watch, and drops what has not been read. It may be called again.
func (w *Watcher) Close() error {
	if w.source == nil {
		return nil
	}
	err := w.source.Close()
	w.work.Wait()
	return err
}

// pass passes on events and errors until the source is closed. It never waits for the reader alone.
func (w *Watcher) pass(events chan<- Event, errors chan<- error) {
	defer close(errors)
	defer close(events)
	var pending []Event
	var lost error // not read yet; one is enough
	for {
		var next Event
		var toEvents chan<- Event // nil: nothing to send
		if len(pending) > 0 {
			next, toEvents = pending[0], events
		}
		var toErrors chan<- error
		if lost != nil {
			toErrors = errors
		}
		select {
		case e, open := <-w.source.Events:
			switch {
			case !open:
				return
			case len(pending) < maxPending:
				pending = append(pending, e)
			case lost == nil:
				lost = ErrOverflow
			}
		case err, open := <-w.source.Errors:
			switch {
			case !open:
				return
			case err == unix.EINVAL: // no event is missing: the kernel ended the watch of a moved and removed directory before fsnotify did
			case lost == nil:
				lost = err
			}
		case toEvents <- next:
			pending = pending[1:]
		case toErrors <- lost:
			lost = nil
		}
	}
}
