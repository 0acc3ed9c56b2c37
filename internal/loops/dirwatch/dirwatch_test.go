package dirwatch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
	"github.com/devmgrd/devmgrd/test/plugintest"
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

// start starts a Watcher of some directories.
func start(t *testing.T, dirs ...string) *Watcher {
	t.Helper()
	w, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	for _, dir := range dirs {
		if err := w.AddPath(dir); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// until reads events up to the creation of a file, which it makes. It returns those before.
func until(t *testing.T, w *Watcher, end string) (seen []string) {
	t.Helper()
	within(t, func() error {
		if err := os.Mkdir(end, 0o755); err != nil {
			return err
		}
		for {
			select {
			case e := <-w.Events:
				if e == (Event{end, Create}) {
					return nil
				}
				seen = append(seen, e.String())
			case err := <-w.Errors:
				return fmt.Errorf("reported: %w", err)
			}
		}
	})
	return seen
}

// watches returns how many directories the kernel watches for a Watcher, and how many the Watcher knows.
func (w *Watcher) watches(t *testing.T) (kernel, known int) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	text, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", w.fd))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(text, []byte("inotify wd:")), len(w.places)
}

// hasWatches fails unless the kernel and the Watcher have that many.
func (w *Watcher) hasWatches(t *testing.T, want int) {
	t.Helper()
	if kernel, known := w.watches(t); kernel != want || known != want {
		t.Errorf("the kernel watches %d directories, the Watcher knows %d, want %d", kernel, known, want)
	}
}

func TestEvents(t *testing.T) {
	top := t.TempDir()
	at := func(name string) string { return filepath.Join(top, name) }
	dir := func(path string) func() error { return func() error { return os.Mkdir(path, 0o755) } }
	if err := errors.Join(dir(at("watched"))(), dir(at("other"))(), os.WriteFile(at("watched/file"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	for i, test := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"create", dir(at("watched/sub")), []string{`create of "watched/sub"`}},
		{"write", func() error { return os.Truncate(at("watched/file"), 5) }, []string{`write of "watched/file"`}},
		{"chmod", func() error { return os.Chmod(at("watched/file"), 0o600) }, []string{`chmod of "watched/file"`}},
		{"rename", func() error { return os.Rename(at("watched/file"), at("watched/to")) }, []string{`rename of "watched/file"`, `create of "watched/to"`}},
		{"move out", func() error { return os.Rename(at("watched/to"), at("other/to")) }, []string{`rename of "watched/to"`}},
		{"remove", func() error { return os.Remove(at("watched/sub")) }, []string{`remove of "watched/sub"`}},
		{"its own", func() error { return os.Chmod(at("watched"), 0o700) }, []string{`chmod of "watched"`, `chmod of "watched"`}},
		{"elsewhere", dir(at("other/sub")), nil},
		{"move itself", func() error { return os.Rename(at("watched"), at("moved")) }, []string{`rename of "watched"`, `create of "moved"`, `rename of "watched"`}},
		{"moved", dir(at("moved/sub")), nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := start(t, top+"/./") // events have the clean path
			if _, err := os.Stat(at("watched")); err == nil {
				if err := w.AddPath(at("watched")); err != nil {
					t.Fatal(err)
				}
			}
			if err := test.do(); err != nil {
				t.Fatal(err)
			}
			seen := until(t, w, at(fmt.Sprint("end", i)))
			if got := strings.ReplaceAll(strings.Join(seen, "; "), top+"/", ""); got != strings.Join(test.want, "; ") {
				t.Errorf("seen: %s", got)
			}
		})
	}
}

// A directory that is removed is an event of its own, with the last one. Its watch ends.
func TestEvents_WatchedDirectoryRemoved(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "dir")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := start(t, top, dir)
	w.hasWatches(t, 2)
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if seen := until(t, w, filepath.Join(top, "end")); len(seen) != 2 || seen[0] != fmt.Sprintf("remove of %q", dir) || seen[1] != seen[0] {
		t.Errorf("seen: %q", seen)
	}
	w.hasWatches(t, 1)
}

// The end of a file system counts as the removal of its directories.
func TestEvents_Unmounted(t *testing.T) {
	plugintest.NeedRoot(t)
	top, dir := t.TempDir(), t.TempDir()
	if err := unix.Mount("dirwatch", dir, "tmpfs", 0, ""); err != nil {
		t.Fatalf("mounting a tmpfs: %v", err)
	}
	w := start(t, top, dir)
	if err := unix.Unmount(dir, 0); err != nil {
		t.Fatal(err)
	}
	if seen := until(t, w, filepath.Join(top, "end")); len(seen) != 1 || seen[0] != fmt.Sprintf("remove of %q", dir) {
		t.Errorf("seen: %q", seen)
	}
	w.hasWatches(t, 1)
}

// An open directory is watched, whatever is at its path by then, under its path when it was opened.
func TestAdd_OpenDirectory(t *testing.T) {
	top := t.TempDir()
	path, away := filepath.Join(top, "dir"), filepath.Join(top, "away")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := shareddir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(path, away), os.Symlink(t.TempDir(), path)); err != nil {
		t.Fatal(err)
	}
	w := start(t)
	within(t, func() error { return errors.Join(w.Add(d), w.Add(d), d.Close()) })
	w.hasWatches(t, 1)
	if err := os.Mkdir(filepath.Join(away, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	within(t, func() error {
		if e := <-w.Events; e != (Event{path + "/sub", Create}) {
			return fmt.Errorf("seen: %s", e)
		}
		return nil
	})
	if err := w.Add(d); err == nil {
		t.Error("a closed directory is watched")
	}
}

// Only a directory is watched.
func TestAddPath_NoDirectory_Fails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w := start(t)
	for path, want := range map[string]error{file: unix.ENOTDIR, file + "2": os.ErrNotExist} {
		if err := w.AddPath(path); !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// A directory that is watched already gets the newer path, and no second watch.
func TestAdd_Again_IsOneWatch(t *testing.T) {
	top := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(top, link); err != nil {
		t.Fatal(err)
	}
	w := start(t, top, top, link)
	w.hasWatches(t, 1)
	if err := os.Mkdir(filepath.Join(top, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	within(t, func() error {
		if e := <-w.Events; e.Name != link+"/sub" {
			return fmt.Errorf("seen: %s", e)
		}
		return nil
	})
}

// Directories that are moved away leave no watch behind: those that move themselves at once, those in them with Prune.
func TestWatches_MovedAway_End(t *testing.T) {
	top, away := t.TempDir(), t.TempDir()
	w := start(t, top)
	sub := filepath.Join(top, "sub")
	for i := range 200 {
		below := filepath.Join(sub, "below")
		if err := errors.Join(os.MkdirAll(below, 0o755), w.AddPath(sub), os.Rename(sub, filepath.Join(away, fmt.Sprint("a", i)))); err != nil {
			t.Fatal(err)
		}
		until(t, w, filepath.Join(top, fmt.Sprint("a", i)))
	}
	w.hasWatches(t, 1)
	for i := range 200 {
		below := filepath.Join(sub, "below")
		err := errors.Join(os.MkdirAll(below, 0o755), w.AddPath(top), w.AddPath(sub), w.AddPath(below), os.Rename(sub, filepath.Join(away, fmt.Sprint("b", i))))
		if err != nil {
			t.Fatal(err)
		}
		until(t, w, filepath.Join(top, fmt.Sprint("b", i)))
		w.Prune()
		if kernel, _ := w.watches(t); kernel > 2 {
			t.Fatalf("there are %d watches after %d rounds", kernel, i)
		}
	}
	if err := w.AddPath(top); err != nil {
		t.Fatal(err)
	}
	w.Prune()
	w.hasWatches(t, 1)
}

// moveAndRemove makes a directory in top, has both watched, and moves and removes it before an event is read. The last event has the name.
func moveAndRemove(w *Watcher, top string) (last string, err error) {
	path, moved := filepath.Join(top, "a"), filepath.Join(top, "b")
	return moved, errors.Join(w.AddPath(top), os.Mkdir(path, 0o755), w.AddPath(path), os.Rename(path, moved), os.Remove(moved))
}

// A goroutine that reads the events can also add directories. The end of a watch is an event, and not an error.
func TestAdd_MovedAndRemoved_DoesNotHang(t *testing.T) {
	top := t.TempDir()
	w := start(t, top)
	within(t, func() error {
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
				if err := w.AddPath(top); err != nil {
					return err
				}
			}
		}
		return nil
	})
	until(t, w, filepath.Join(top, "end"))
	w.hasWatches(t, 1)
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
			if err := w.AddPath(top); !errors.Is(err, ErrClosed) {
				return fmt.Errorf("AddPath after Close: %w", err)
			}
			w.Prune()
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

// Close ends a read, while directories are added.
func TestClose_WhileRead_EndsTheRead(t *testing.T) {
	top := t.TempDir()
	for range 100 {
		w := start(t, top)
		within(t, func() error {
			ended, added := make(chan struct{}), make(chan error)
			go func() {
				for range w.Events {
				}
				close(ended)
			}()
			go func() {
				for {
					if err := w.AddPath(top); err != nil {
						added <- err
						return
					}
					w.Prune()
				}
			}()
			runtime.Gosched()
			err := w.Close()
			<-ended
			if err := <-added; !errors.Is(err, ErrClosed) {
				return err
			}
			return err
		})
	}
}

func TestZeroWatcher_IsClosed(t *testing.T) {
	w := new(Watcher)
	w.Prune()
	if err := w.AddPath(t.TempDir()); !errors.Is(err, ErrClosed) || w.Close() != nil || w.Events != nil || w.Errors != nil {
		t.Errorf("AddPath: %v", err)
	}
}

// The kernel bounds what is not read. The reader gets the oldest events, and then an error: nothing is watched until it adds directories again.
func TestEvents_NotRead_Overflow(t *testing.T) {
	text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	if limit > 1<<17 {
		t.Skipf("the kernel's queue has %d events, which take long to fill", limit)
	}
	top, away := t.TempDir(), t.TempDir()
	at := func(i int) string { return filepath.Join(top, fmt.Sprint(i%2)) }
	w := start(t, top, away)
	changes := limit + 2*bufferSize/16 // more than the Watcher has read already
	if err := os.WriteFile(at(0), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range changes / 2 {
		if err := os.Rename(at(i), at(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	moved := filepath.Join(away, "top")
	if err := os.Rename(top, moved); err != nil { // which the queue has no room for
		t.Fatal(err)
	}
	within(t, func() error {
		read := 0
		for {
			select {
			case e := <-w.Events:
				read++
				if !strings.HasPrefix(e.Name, top+"/") {
					return fmt.Errorf("event %d: %s", read, e)
				}
			case err := <-w.Errors:
				if !errors.Is(err, ErrOverflow) || read < limit {
					return fmt.Errorf("after %d events: %w", read, err)
				}
				return nil
			}
		}
	})
	w.hasWatches(t, 0)
	if err := w.AddPath(away); err != nil {
		t.Fatal(err)
	}
	if seen := until(t, w, filepath.Join(away, "end")); len(seen) > 0 {
		t.Errorf("seen: %q", seen)
	}
	w.hasWatches(t, 1)
	if err := os.Rename(moved, top); err != nil {
		t.Fatal(err)
	}
}

// A directory is replaced while it is added by its path: either that fails, or there is an event.
func TestAddPath_DirectoryIsReplaced_IsNoticed(t *testing.T) {
	top := t.TempDir()
	path, other := filepath.Join(top, "a"), filepath.Join(top, "b")
	if err := errors.Join(os.Mkdir(path, 0o755), os.Mkdir(other, 0o755)); err != nil {
		t.Fatal(err)
	}
	for round := range 200 {
		w, err := Start()
		if err != nil {
			t.Fatal(err)
		}
		exchanged := make(chan error, 1)
		go func() { exchanged <- unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE) }()
		added := w.AddPath(path)
		if err := <-exchanged; err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, strconv.Itoa(round)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if added == nil {
			select {
			case <-w.Events:
			case <-time.After(time.Minute):
				t.Fatalf("round %d: the watch is blind", round)
			}
		}
		w.Close()
	}
}
