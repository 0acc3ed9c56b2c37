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

	"github.com/devmgrd/devmgrd/internal/loops/dirwatch"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
	"github.com/devmgrd/devmgrd/test/plugintest"
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

func open(t *testing.T, dir string) *shareddir.Dir {
	t.Helper()
	d, err := shareddir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func listen(t *testing.T, dir string) (*net.UnixListener, os.FileInfo) {
	t.Helper()
	d := open(t, dir)
	l, info, err := socket.Listen(d, "a.sock", 0o660)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, info
}

// names returns what is in a directory.
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
	for _, left := range []string{path, filepath.Join(dir, ".a.sock.1")} {
		if err := os.WriteFile(left, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, info := listen(t, dir)
	seen, err := os.Lstat(path)
	if err != nil || !shareddir.Same(info, seen) || seen.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("there is %v, want %v with mode 0660 (%v)", seen, info, err)
	}
	l.Close()
	if got := names(t, dir); !slices.Equal(got, []string{"a.sock"}) {
		t.Errorf("left are %q", got)
	}
	if _, again := listen(t, dir); shareddir.Same(info, again) {
		t.Error("another socket is taken for the same")
	}
}

// A client that sees the socket can connect.
func TestListen_VisibleSocket_Accepts(t *testing.T) {
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
	d := open(t, dir)
	if _, err := socket.ListenPath(filepath.Join(dir, strings.Repeat("l", socket.MaxPath)), 0o600); err == nil || !strings.Contains(err.Error(), "107 bytes") {
		t.Errorf("a path that is too long: %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, _, err := socket.Listen(d, "a.sock", 0o600); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), dir+"/a.sock") {
		t.Errorf("a directory that is gone: %v", err)
	}
}

// strays are what another process may leave at a name.
var strays = map[string]func(path string) error{
	"a file":                             func(path string) error { return os.WriteFile(path, []byte("precious"), 0o600) },
	"a link":                             func(path string) error { return os.Symlink("/etc", path) },
	"a link to a link that is not there": func(path string) error { return os.Symlink("nothing", path) },
	"a FIFO":                             func(path string) error { return syscall.Mkfifo(path, 0o600) },
	"a device":                           func(path string) error { return syscall.Mknod(path, syscall.S_IFCHR|0o600, 1<<8|5) },
	"an empty directory":                 func(path string) error { return os.Mkdir(path, 0o700) },
	"a full directory": func(path string) error {
		return errors.Join(os.MkdirAll(path+"/x/y", 0o700), os.WriteFile(path+"/x/f", nil, 0o400), os.Symlink("/etc", path+"/x/l"))
	},
	"a socket for datagrams": func(path string) error {
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_DGRAM, 0)
		return errors.Join(err, syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Close(fd))
	},
}

// Listen logs and replaces a file that is no socket, and does not follow it.
func TestListen_ForeignFile_IsReplaced(t *testing.T) {
	for name, leave := range strays {
		t.Run(name, func(t *testing.T) {
			dir := tempDir(t)
			path := filepath.Join(dir, "a.sock")
			if name == "a device" {
				plugintest.NeedRoot(t)
			}
			for range 2 {
				if err := leave(path); err != nil {
					t.Fatal(err)
				}
				seen, _ := os.Lstat(path)
				stray, err := socket.Vacant(open(t, dir), "a.sock")
				if err != nil || seen.Mode().Type() != fs.ModeSocket && (stray == nil || !os.SameFile(stray, seen)) {
					t.Errorf("found %v, want %v (%v)", stray, seen, err)
				}
				l, _ := listen(t, dir)
				conn, err := net.Dial("unix", path)
				if err != nil {
					t.Fatal(err)
				}
				conn.Close()
				l.Close()
				if got := names(t, dir); !slices.Equal(got, []string{"a.sock"}) {
					t.Errorf("left are %q", got)
				}
				os.Remove(path)
			}
		})
	}
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
}

// Reaches distinguishes two listeners of one process, and those of two processes.
func TestReaches(t *testing.T) {
	dir := tempDir(t)
	first, _ := listen(t, dir)
	reaches := func(l *net.UnixListener) error {
		t.Helper()
		e, err := open(t, dir).Open("a.sock")
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close()
		return socket.Reaches(e, l)
	}
	if err := reaches(first); err != nil {
		t.Error(err)
	}
	second, _ := listen(t, dir)
	if err := reaches(second); err != nil {
		t.Error(err)
	}
	if err := reaches(first); err == nil || !strings.Contains(err.Error(), filepath.Join(dir, "a.sock")) {
		t.Errorf("the first listener is taken for the second: %v", err)
	}
}

func TestVacant(t *testing.T) {
	for name, test := range map[string]struct {
		make func(path string)
		want string // empty: it is vacant
	}{
		"nothing there": {func(string) {}, ""},
		"left behind": {func(path string) {
			l, _ := listen(t, filepath.Dir(path))
			l.Close()
		}, ""},
		"another process listens": {func(path string) { listen(t, filepath.Dir(path)) }, "socket.test (pid "},
		"a process that does not answer": {func(path string) {
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
		}, "does not answer; stop it"},
	} {
		path := filepath.Join(tempDir(t), "a.sock")
		test.make(path)
		stray, err := socket.Vacant(open(t, filepath.Dir(path)), "a.sock")
		if stray != nil {
			t.Errorf("%s: %v is no socket", name, stray)
		}
		if test.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var taken *socket.TakenError
		if !errors.As(err, &taken) || taken.Path != path || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// A link is not dialled, whatever it leads to.
func TestDialFollowsNoLink(t *testing.T) {
	dir := tempDir(t)
	listen(t, dir)
	if conn, err := socket.Dial(t.Context(), filepath.Join(dir, "a.sock")); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}
	if err := os.Symlink("a.sock", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Dial(t.Context(), filepath.Join(dir, "link")); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link is dialled: %v", err)
	}
}

// Where no other user writes, a file that is no socket is not devmgrd's to replace.
func TestListenPath(t *testing.T) {
	path := filepath.Join(tempDir(t), "a.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := socket.ListenPath(path, 0o600); err == nil || err.Error() != path+" is a regular file, not a socket; remove it" {
		t.Errorf("over a file: %v", err)
	}
	if text, err := os.ReadFile(path); string(text) != "precious" {
		t.Errorf("the file holds %q, %v", text, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second finds the first one's file
		l, err := socket.ListenPath(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}

// A kubelet looks at each new name in its directory plugins_registry, and logs an error if it is gone. It sees the socket's own name only,
// also when the socket replaces one that was left behind.
func TestListenPathFrom_WatchedDirectory_SeesNoDraft(t *testing.T) {
	for name, staging := range map[string]func(t *testing.T) string{
		"one mount": tempDir,
		"another mount": func(t *testing.T) string { // as in a container
			staging, err := os.MkdirTemp("/dev/shm", "socket")
			if err != nil {
				t.Fatalf("making a directory on a second file system, at /dev/shm: %v", err)
			}
			t.Cleanup(func() { os.RemoveAll(staging) })
			if err := os.Rename(staging, filepath.Join(t.TempDir(), "x")); !errors.Is(err, syscall.EXDEV) {
				t.Fatalf("/dev/shm and the temporary directories are on one file system (TMPDIR=/tmp): %v", err)
			}
			return staging
		},
	} {
		t.Run(name, func(t *testing.T) { seesNoDraft(t, staging(t), tempDir(t)) })
	}
}

func seesNoDraft(t *testing.T, staging, watched string) {
	watcher, err := dirwatch.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	if err := watcher.AddPath(watched); err != nil {
		t.Fatal(err)
	}
	path, end := filepath.Join(watched, "a.sock"), filepath.Join(watched, "end")
	for range 2 {
		l, err := socket.ListenPathFrom(staging, path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if conn, err := net.Dial("unix", path); err != nil {
			t.Error(err)
		} else {
			conn.Close()
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%v, %v", info, err)
		}
		l.Close()
	}
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	created := false
	for e := range watcher.Events {
		if e.Name == end {
			break
		}
		created = created || e.Has(dirwatch.Create)
		if e.Name != path {
			t.Errorf("seen in the directory: %s", e)
		}
	}
	if left := slices.Concat(names(t, staging), names(t, watched)); !created || !slices.Equal(left, []string{"a.sock", "end"}) {
		t.Errorf("created: %v, left: %q", created, left)
	}
}

// systemd holds a socket while devmgrd is away. Connections fill its queue, and stay in it when their clients have gone. devmgrd takes
// the socket over all the same.
func TestReaches_FullQueue(t *testing.T) {
	dir := tempDir(t)
	path := filepath.Join(dir, "a.sock")
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(syscall.Bind(fd, &syscall.SockaddrUnix{Name: path}), syscall.Listen(fd, 1)); err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), path)
	handed, err := net.FileListener(file)
	file.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer handed.Close()
	for err == nil {
		var conn net.Conn
		if conn, err = net.Dial("unix", path); err == nil {
			conn.Close()
		}
	}
	if !errors.Is(err, syscall.EAGAIN) {
		t.Fatal(err)
	}
	e, err := open(t, dir).Open("a.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := socket.Reaches(e, handed.(*net.UnixListener)); err != nil {
		t.Error(err)
	}
	other, _ := listen(t, tempDir(t)) // whose queue is empty
	for err == nil {
		_, err = net.Dial("unix", path)
	}
	if err := socket.Reaches(e, other); err == nil {
		t.Error("another listener's full queue is taken for this one's")
	}
}
