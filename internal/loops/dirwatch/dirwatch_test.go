package dirwatch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// within runs what may hang, and fails if it does.
func within(t *testing.T, do func() error) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- do() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it hangs")
	}
}

// moveAndRemove makes a directory in top, has both watched, and moves and removes it before an event is read. The last event has the name.
func moveAndRemove(w *Watcher, top string) (last string, err error) {
	path, moved := filepath.Join(top, "a"), filepath.Join(top, "b")
	return moved, errors.Join(w.Add(top), os.Mkdir(path, 0o755), w.Add(path), os.Rename(path, moved), os.Remove(moved))
}

// A goroutine that reads the events can also add directories. The end of a watch is an event, and not an error.
func TestAdd_MovedAndRemoved_DoesNotHang(t *testing.T) {
	top := t.TempDir()
	within(t, func() error {
		w, err := Start()
		if err != nil {
			return err
		}
		defer w.Close()
		for range 1000 {
			last, err := moveAndRemove(w, top)
			if err != nil {
				return err
			}
			for ended := false; !ended; {
				select {
				case e := <-w.Events:
					ended = e.Name == last && e.Has(Remove)
				case err := <-w.Errors:
					return fmt.Errorf("reported: %w", err)
				}
				if err := w.Add(top); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Close ends the goroutine and the inotify instance, whatever has not been read yet.
func TestClose_MovedAndRemoved_Ends(t *testing.T) {
	top := t.TempDir()
	before := instances(t)
	within(t, func() error {
		for i := range 50 {
			w, err := Start()
			if err != nil {
				return err
			}
			if _, err := moveAndRemove(w, top); err != nil {
				return err
			}
			for range i % 5 {
				<-w.Events
			}
			if err := errors.Join(w.Close(), w.Close()); err != nil {
				return err
			}
			_, events := <-w.Events
			_, failures := <-w.Errors
			if events || failures {
				return errors.New("the goroutine has not ended")
			}
			if err := w.Add(top); !errors.Is(err, fsnotify.ErrClosed) {
				return fmt.Errorf("Add after Close: %w", err)
			}
		}
		return nil
	})
	if after := instances(t); after != before {
		t.Errorf("%d inotify instances are left", after-before)
	}
}

// instances returns how many inotify instances the process has.
func instances(t *testing.T) (n int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && to == "anon_inode:inotify" { // ReadDir's own is gone
			n++
		}
	}
	return n
}

// Close ends a read.
func TestClose_WhileRead_EndsTheRead(t *testing.T) {
	within(t, func() error {
		w, err := Start()
		if err != nil {
			return err
		}
		ended := make(chan struct{})
		go func() {
			for range w.Events {
			}
			close(ended)
		}()
		err = w.Close()
		<-ended
		return err
	})
}

func TestZeroWatcher_IsClosed(t *testing.T) {
	w := new(Watcher)
	if err := w.Add(t.TempDir()); !errors.Is(err, fsnotify.ErrClosed) || w.Close() != nil || w.Events != nil || w.Errors != nil {
		t.Errorf("Add: %v", err)
	}
}

// fake makes a Watcher whose events and errors a test sends.
func fake(t *testing.T) (w *Watcher, events chan<- Event, failures chan<- error) {
	in, inErrors, out, outErrors := make(chan Event), make(chan error), make(chan Event), make(chan error)
	w = &Watcher{Events: out, Errors: outErrors, source: &fsnotify.Watcher{Events: in, Errors: inErrors}}
	w.work.Go(func() { w.pass(out, outErrors) })
	t.Cleanup(func() { close(in); w.work.Wait() })
	return w, in, inErrors
}

// What is not read is bounded. The reader learns that events are missing, each time, and reads the oldest of them.
func TestEvents_NotRead_Overflow(t *testing.T) {
	w, events, _ := fake(t)
	within(t, func() error {
		sent, read := 0, 0
		send := func(count int) {
			for range count {
				events <- Event{Name: strconv.Itoa(sent)}
				sent++
			}
		}
		receive := func(count int) error {
			for range count {
				if e := <-w.Events; e.Name != strconv.Itoa(read) {
					return fmt.Errorf("read %s, want %d", e.Name, read)
				}
				read++
			}
			return nil
		}
		send(maxPending + 10)
		if err := <-w.Errors; !errors.Is(err, ErrOverflow) {
			return err
		}
		if err := receive(10); err != nil {
			return err
		}
		sent = maxPending // the others before are lost
		send(10)
		select {
		case err := <-w.Errors:
			return fmt.Errorf("reported although there is room: %w", err)
		case e := <-w.Events:
			if e.Name != "10" {
				return fmt.Errorf("read %s, want 10", e.Name)
			}
			read++
		}
		send(2)
		if err := <-w.Errors; !errors.Is(err, ErrOverflow) {
			return err
		}
		return receive(maxPending)
	})
}

// Errors are passed on, the first of those that are not read.
func TestErrors(t *testing.T) {
	w, events, failures := fake(t)
	first, second := errors.New("first"), errors.New("second")
	within(t, func() error {
		failures <- unix.EINVAL // from fsnotify's end of a watch
		failures <- first
		failures <- second
		events <- Event{Name: "a"}
		if err := <-w.Errors; err != first {
			return fmt.Errorf("reported: %w", err)
		}
		select {
		case err := <-w.Errors:
			return fmt.Errorf("reported again: %w", err)
		case <-w.Events:
		}
		failures <- second
		if err := <-w.Errors; err != second {
			return fmt.Errorf("reported: %w", err)
		}
		return nil
	})
}
