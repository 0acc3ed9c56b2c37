package registry_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

func TestListenMakesDirectory(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	root := socketDir(t)
	f := start(t, at(filepath.Join(root, "a", "b")))
	for path, want := range map[string]fs.FileMode{
		filepath.Join(root, "a"): 0o755, f.dir: 0o750, filepath.Join(f.dir, "kubelet.sock"): 0o660,
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, want %v (%v)", path, info.Mode().Perm(), want, err)
		}
	}
	f.eventually("registration is served", func() bool { return f.Check() == nil })
}

func TestListen_SecondDaemon_IsRefused(t *testing.T) {
	t.Parallel()
	first := start(t)
	second := prepare(t, at(first.dir))
	err := second.Listen()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d)", os.Getpid())) {
		t.Errorf("err = %v, want the pid %d in it", err, os.Getpid())
	}
	if err := second.Run(t.Context(), registry.Neighbours{}); err == nil {
		t.Error("a second Run serves while the first one does")
	}
	p := plugintest.Start(t, first.dir, gpu, plugintest.Devices(1)...) // the first one was not disturbed
	first.eventually("the plugin serves", first.servesNumber(1))
	p.Stop()
}

func TestListenReplacesDeadSocket(t *testing.T) {
	t.Parallel()
	first := start(t)
	first.stop()
	second := start(t, at(first.dir))
	plugintest.Start(t, second.dir, gpu, plugintest.Devices(1)...)
	second.eventually("the plugin serves", second.servesNumber(1))
}

// Foreign files at devmgrd's names neither stop it from starting nor from serving. devmgrd logs them.
func TestListen_ForeignFiles_AreLogged(t *testing.T) {
	t.Parallel()
	outside := socketDir(t)
	if err := os.WriteFile(filepath.Join(outside, "precious"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, leave := range map[string]func(path string) error{
		"file":          func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"symbolic link": func(path string) error { return os.Symlink(filepath.Join(outside, "precious"), path) },
		"FIFO":          func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"directory": func(path string) error {
			return errors.Join(os.MkdirAll(filepath.Join(path, "a"), 0o700), os.Symlink(outside, filepath.Join(path, "link")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := prepare(t)
			path := filepath.Join(f.dir, "kubelet.sock")
			for _, p := range []string{path, filepath.Join(f.dir, ".kubelet.sock.1"), filepath.Join(f.dir, ".kubelet.new")} {
				if err := leave(p); err != nil {
					t.Fatal(err)
				}
			}
			f.run()
			f.eventually("registration is served", func() bool { return f.Check() == nil })
			if f.logs.count("replacing file") != 1 || f.logs.count(name) == 0 {
				t.Error("what was at the socket's name is not told")
			}
			f.eventually("it is there again", func() bool {
				if os.Rename(filepath.Join(f.dir, ".kubelet.new"), path) == nil {
					return true
				}
				_ = os.Remove(path) // which a directory cannot replace, and which devmgrd puts back at once
				return false
			})
			p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
			p.Serve()
			f.eventually("a plugin can register again", func() bool { return p.Register() == nil })
			f.eventually("the plugin serves", f.servesNumber(1))
			if got := files(t, f.dir); !slices.Equal(got, []string{"kubelet.sock", p.Endpoint}) {
				t.Errorf("left are %q", got)
			}
			if text, err := os.ReadFile(filepath.Join(outside, "precious")); string(text) != "precious" {
				t.Errorf("a link was followed: %v", err)
			}
		})
	}
}

// A process that takes kubelet.sock away in a loop costs neither a core nor the log's space, and the socket comes back.
func TestSocket_RemovedInALoop_IsRestoredAtALimit(t *testing.T) {
	t.Parallel()
	f := start(t)
	path := filepath.Join(f.dir, "kubelet.sock")
	began, removed := time.Now(), 0
	for removed < 23 { // of which 20 are put back at once
		if os.Remove(path) == nil {
			removed++
		}
		f.eventually("kubelet.sock is back", func() bool { _, err := os.Lstat(path); return err == nil })
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("it was put back %d times in %s", removed, took)
	}
	if n := f.logs.count("registration socket restored"); n > 5+int(time.Since(began)/time.Minute) {
		t.Errorf("it was told %d times", n)
	}
	f.eventually("registration is served", func() bool { return f.Check() == nil })
}

func TestListenPathTooLong(t *testing.T) {
	t.Parallel()
	f := prepare(t, at(filepath.Join(socketDir(t), strings.Repeat("long", 25))))
	if err := f.Listen(); err == nil || !strings.Contains(err.Error(), "107 bytes") {
		t.Errorf("err = %v", err)
	}
}

// A socket that systemd holds for us outlives us: nothing is bound, and its file is left alone.
func TestListenerHandedOver(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	path := filepath.Join(dir, "kubelet.sock")
	unit, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer unit.Close()
	before, _ := os.Lstat(path)
	for range 2 {
		file, err := unit.File()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.FileListener(file)
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		f := start(t, at(dir), func(c *registry.Config) { c.Listener = l })
		p := plugintest.Start(t, dir, gpu, plugintest.Devices(1)...)
		f.eventually("the plugin serves", f.servesNumber(1))
		f.stop()
		p.Stop()
	}
	if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("the socket was touched: %v", err)
	}
}

// Its file was removed once, and the process before us has put another one back, which died with it. The socket that
// systemd still holds leads nowhere.
func TestListenerHandedOverWithoutItsFile(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	path := filepath.Join(dir, "kubelet.sock")
	bound := func() *net.UnixListener {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		return l
	}
	unit := bound()
	defer unit.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	bound().Close()
	f := start(t, at(dir), func(c *registry.Config) { c.Listener = unit })
	plugintest.Start(t, dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
}

// From the moment that kubelet.sock exists, no connection to it is refused.
func TestSocketAcceptsWhenSeen(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	path := filepath.Join(dir, "kubelet.sock")
	ctx, cancel := context.WithCancel(t.Context())
	var dialler sync.WaitGroup
	for range 50 {
		_ = os.Remove(path) // the first time there is none
		seen := make(chan error, 1)
		dialler.Go(func() {
			for ctx.Err() == nil {
				conn, err := net.Dial("unix", path)
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
		f := prepare(t, at(dir))
		if err := f.Listen(); err != nil {
			t.Fatal(err)
		}
		if err := <-seen; err != nil {
			t.Fatal(err)
		}
		runCtx, stop := context.WithCancel(ctx)
		stop()
		if err := f.Run(runCtx, f.with); err != nil { // closes it
			t.Fatal(err)
		}
	}
	cancel()
	dialler.Wait()
}

// If a process wipes the directory, plugins find a socket again at once.
func TestSocket_Removed_IsRestored(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.eventually("registration is served", func() bool { return f.Check() == nil })
	if err := os.Remove(filepath.Join(f.dir, "kubelet.sock")); err != nil {
		t.Fatal(err)
	}
	f.eventually("kubelet.sock is back", func() bool { _, err := os.Lstat(filepath.Join(f.dir, "kubelet.sock")); return err == nil })
	plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))

	if err := os.RemoveAll(f.dir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
		t.Fatal(err)
	}
	f.eventually("the directory is back too", func() bool { _, err := os.Lstat(filepath.Join(f.dir, "kubelet.sock")); return err == nil })
	f.eventually("registration is served", func() bool { return f.Check() == nil })
	other := plugintest.New(t, f.dir, "vendor.example/other", plugintest.Devices(1)...)
	other.Serve()
	f.eventually("registration is served", func() bool { return other.Register() == nil })
}

// devmgrd does not replace the socket of another process that serves at the path, but reports it.
func TestSocket_TakenByLiveProcess_IsReported(t *testing.T) {
	t.Parallel()
	f := start(t)
	path := filepath.Join(f.dir, "kubelet.sock")
	theirs, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(f.dir, "theirs"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	theirs.SetUnlinkOnClose(false)
	f.eventually("registration is served", func() bool { return f.Check() == nil })
	if err := os.Rename(filepath.Join(f.dir, "theirs"), path); err != nil {
		t.Fatal(err)
	}
	f.eventually("Check says so", func() bool { err := f.Check(); return err != nil && strings.Contains(err.Error(), "(pid ") })
	theirs.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	f.eventually("registration is served again", func() bool { return f.Check() == nil })
}

// The one who took the path may die and leave the file behind, which nothing tells.
func TestSocket_TakenByDeadProcess_IsRestored(t *testing.T) {
	t.Parallel()
	f := start(t)
	f.eventually("registration is served", func() bool { return f.Check() == nil })
	theirs, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(f.dir, "theirs"), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	theirs.SetUnlinkOnClose(false)
	if err := os.Rename(filepath.Join(f.dir, "theirs"), filepath.Join(f.dir, "kubelet.sock")); err != nil {
		t.Fatal(err)
	}
	f.eventually("Check says so", func() bool { return f.Check() != nil })
	theirs.Close()
	f.eventually("registration is served again", func() bool { return f.Check() == nil })
	plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
}

func TestNewIsComplete(t *testing.T) {
	t.Parallel()
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "Config.") || !strings.Contains(got, "is missing") {
			t.Errorf("panic = %q", got)
		}
	}()
	registry.New(registry.Config{})
}
