package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	socketName = "kubelet.sock" // the name that every plugin knows
	bindName   = ".kubelet.new" // where it is bound before it is shown; not a longer name, since paths are limited

	// The label by which, under SELinux, containers may reach the sockets in the directory: the kubelet's.
	directoryLabel = "system_u:object_r:container_file_t:s0"
)

// Listen binds the registration socket. From the moment that kubelet.sock is seen, whoever dials it is queued, and
// served once Run runs. It fails if somebody else listens there.
func (r *Registry) Listen() error {
	if err := r.listen(); err != nil {
		return fmt.Errorf("plugin registration: %w", err)
	}
	return nil
}

func (r *Registry) listen() error {
	path := filepath.Join(r.cfg.SocketDir, socketName)
	if handed := r.cfg.Listener; handed != nil {
		info, err := os.Lstat(path)
		if err == nil {
			err = reached(path)
		}
		if err == nil {
			r.adopt(handed, info)
			return nil
		}
		r.log.Warn("nobody can dial the registration socket that was handed over; making another", "err", err)
		handed.Close()
	}
	if err := makeDirectory(r.cfg.SocketDir); err != nil {
		return err
	}
	if err := vacant(path); err != nil {
		return err
	}
	listener, info, err := bind(r.cfg.SocketDir)
	if err != nil {
		return err
	}
	r.adopt(listener, info)
	return nil
}

// reached fails if nobody listens at the path. Then a socket that was handed over is another one: its file has been removed
// meanwhile, and what is at the path now is what the process before this one has put back.
func reached(path string) error {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return err
	}
	return conn.Close()
}

// adopt makes l the registration socket, in place of one whose file has gone.
func (r *Registry) adopt(l net.Listener, info os.FileInfo) {
	r.mu.Lock()
	old := r.listener
	if r.closing {
		old = l // too late
	} else {
		r.listener, r.own, r.trouble = l, info, nil
		if old != nil {
			r.serveLocked()
		}
	}
	r.mu.Unlock()
	if old != nil {
		old.Close()
	}
}

// serveLocked serves registrations from the current listener until that is closed.
func (r *Registry) serveLocked() {
	l := r.listener
	r.work.Go(func() {
		err := r.server.Serve(l)
		r.mu.Lock()
		expected := r.closing || r.listener != l
		r.mu.Unlock()
		if expected {
			return
		}
		select {
		case r.failed <- fmt.Errorf("plugin registration: serve: %w", err):
		default: // Run ends already
		}
	})
}

// bind makes the socket elsewhere and renames it into place when it listens. Plugins that watch the directory dial as
// soon as they see kubelet.sock, and the file is made by bind, a moment before listen: they would be refused.
func bind(dir string) (net.Listener, os.FileInfo, error) {
	hidden, path := filepath.Join(dir, bindName), filepath.Join(dir, socketName)
	if len(path) > maxSocketPath {
		return nil, nil, fmt.Errorf("%s is longer than the %d bytes that a socket's path may have; choose a shorter plugins.socketDir", path, maxSocketPath)
	}
	if err := os.Remove(hidden); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err // left behind by a crash, and not to be removed
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false) // see "Leaving kubelet.sock behind" in doc.go
	info, err := show(hidden, path)
	if err != nil {
		l.Close()
		os.Remove(hidden)
		return nil, nil, err
	}
	return l, info, nil
}

func show(hidden, path string) (os.FileInfo, error) {
	if err := os.Chmod(hidden, 0o660); err != nil {
		return nil, err
	}
	info, err := os.Lstat(hidden)
	if err != nil {
		return nil, err
	}
	return info, os.Rename(hidden, path)
}

// vacant fails if path cannot be taken: because somebody listens there, or because it is no socket.
func vacant(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s is there and is not a socket; remove it or choose another plugins.socketDir", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil // left behind
	case errors.Is(err, syscall.EAGAIN):
		return fmt.Errorf("somebody listens on %s and does not answer; stop them or choose another plugins.socketDir", path)
	case err != nil:
		return err
	}
	defer conn.Close()
	return &occupiedError{path: path, by: listenerOf(conn.(*net.UnixConn))}
}

// An occupiedError says that somebody else serves registrations at our path.
type occupiedError struct{ path, by string }

func (e *occupiedError) Error() string {
	return fmt.Sprintf("%s listens on %s already; stop it or choose another plugins.socketDir", e.by, e.path)
}

// listenerOf names the process at the other end: the one that called listen.
func listenerOf(conn *net.UnixConn) string {
	raw, err := conn.SyscallConn()
	if err != nil {
		return "another process"
	}
	var peer *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) { peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err != nil || failed != nil {
		return "another process"
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", peer.Pid))
	if err != nil { // gone or hidden: the pid has to do
		name = []byte("another process")
	}
	return fmt.Sprintf("%s (pid %d)", strings.TrimSpace(string(name)), peer.Pid)
}

// makeDirectory makes dir and what is missing above it so that plugins of other users can pass, whatever our umask is.
// What is there already keeps its mode.
func makeDirectory(dir string) error {
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeDirectory(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o755)
	}
	switch {
	case err == nil:
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
		label(dir)
		return nil
	case errors.Is(err, fs.ErrExist):
		if info, err := os.Stat(dir); err != nil || info.IsDir() {
			return err
		}
		return fmt.Errorf("%s is not a directory", dir)
	}
	return err
}

// label lets containers in where SELinux is on. As in the kubelet it is no error if that fails: an administrator may
// have given the directory a label of another kind.
func label(dir string) {
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err == nil {
		_ = unix.Lsetxattr(dir, "security.selinux", []byte(directoryLabel), 0)
	}
}
