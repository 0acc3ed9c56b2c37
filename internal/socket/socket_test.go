package socket_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/devmgrd/devmgrd/internal/socket"
)

// tempDir is short, since a socket's path may have 107 bytes and a test's own directory bears its name.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "socket")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func listen(t *testing.T, dir string) (*net.UnixListener, os.FileInfo) {
	t.Helper()
	l, info, err := socket.Listen(filepath.Join(dir, "a.sock"), filepath.Join(dir, ".a.new"), 0o660)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, info
}

// names gives what is in a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// The mode is the one that was asked for, what was there is replaced, a draft of before too, and the file outlives the
// listener.
func TestListen(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	dir := tempDir(t)
	path := filepath.Join(dir, "a.sock")
	for _, left := range []string{path, filepath.Join(dir, ".a.new")} {
		if err := os.WriteFile(left, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, info := listen(t, dir)
	seen, err := os.Lstat(path)
	if err != nil || !socket.Same(info, seen) || seen.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("there is %v, want %v with mode 0660 (%v)", seen, info, err)
	}
	l.Close()
	if got := names(t, dir); !slices.Equal(got, []string{"a.sock"}) {
		t.Errorf("left are %q", got)
	}
	if _, again := listen(t, dir); socket.Same(info, again) {
		t.Error("another socket is taken for the same")
	}
}

// Whoever sees the socket is let in.
func TestListenIsSeenListening(t *testing.T) {
	dir := tempDir(t)
	var dialler sync.WaitGroup
	defer dialler.Wait()
	for range 50 {
		os.Remove(filepath.Join(dir, "a.sock"))
		seen := make(chan error, 1)
		dialler.Go(func() {
			for t.Context().Err() == nil {
				conn, err := net.Dial("unix", filepath.Join(dir, "a.sock"))
				if errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if err == nil {
					conn.Close()
				}
				seen <- err
				return
			}
		})
		l, _ := listen(t, dir)
		if err := <-seen; err != nil {
			t.Error(err)
		}
		l.Close()
	}
}

func TestListenFails(t *testing.T) {
	dir := tempDir(t)
	long := filepath.Join(dir, strings.Repeat("l", socket.MaxPath))
	full := filepath.Join(dir, "full")
	if err := os.MkdirAll(filepath.Join(full, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct{ path, draft, want string }{
		"the path is too long":        {long, dir + "/n", "107 bytes"},
		"the draft is too long":       {dir + "/p", long, "107 bytes"},
		"a draft that is no file":     {dir + "/p", full, "directory not empty"},
		"no such directory":           {dir + "/no/p", dir + "/no/n", "no such file"},
		"a directory is at the path":  {full, dir + "/n", "file exists"},
		"the draft is somewhere else": {"/proc/p", dir + "/n", "cross-device"},
	} {
		if _, _, err := socket.Listen(test.path, test.draft, 0o600); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	if got := names(t, dir); !slices.Equal(got, []string{"full"}) {
		t.Errorf("left are %q", got)
	}
}

func TestVacant(t *testing.T) {
	for name, test := range map[string]struct {
		make func(path string)
		live bool
		want string // empty: it is vacant
	}{
		"nothing there": {func(string) {}, false, ""},
		"left behind": {func(path string) {
			l, _ := listen(t, filepath.Dir(path))
			l.Close()
		}, false, ""},
		"somebody listens": {func(path string) { listen(t, filepath.Dir(path)) }, true, "socket.test (pid "},
		"somebody who does not answer": {func(path string) {
			fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
			if err == nil {
				t.Cleanup(func() { syscall.Close(fd) })
				err = errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 0))
			}
			for err == nil { // until its queue is full
				var conn net.Conn
				if conn, err = net.Dial("unix", path); err == nil {
					t.Cleanup(func() { conn.Close() })
				}
			}
			if !errors.Is(err, syscall.EAGAIN) {
				t.Fatal(err)
			}
		}, true, "does not answer; stop them"},
		"a file":      {func(path string) { os.WriteFile(path, nil, 0o600) }, false, "is there and is not a socket; remove it"},
		"a directory": {func(path string) { os.Mkdir(path, 0o700) }, false, "is there and is not a socket; remove it"},
		"a link":      {func(path string) { os.Symlink("elsewhere", path) }, false, "is there and is not a socket; remove it"},
	} {
		path := filepath.Join(tempDir(t), "a.sock")
		test.make(path)
		err := socket.Vacant(path)
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var taken *socket.TakenError
		if !errors.As(err, &taken) || taken.Path != path || taken.Live != test.live || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	file := filepath.Join(tempDir(t), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := socket.Vacant(filepath.Join(file, "a.sock")); err == nil {
		t.Error("a path below a file is vacant")
	}
}

func TestMakeDir(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	root := tempDir(t) // its own mode is 0700 and stays so
	dir := filepath.Join(root, "a", "b")
	for _, want := range [][]string{{filepath.Dir(dir), dir}, nil} {
		if made, err := socket.MakeDir(dir, 0o750); err != nil || !slices.Equal(made, want) {
			t.Errorf("made %q, want %q (%v)", made, want, err)
		}
	}
	for path, want := range map[string]fs.FileMode{root: 0o700, filepath.Dir(dir): 0o755, dir: 0o750} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v (%v)", path, info.Mode().Perm(), want, err)
		}
	}
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "b")} {
		if _, err := socket.MakeDir(dir, 0o755); err == nil || !strings.Contains(err.Error(), "not a directory") {
			t.Errorf("%s: %v", dir, err)
		}
	}
}
