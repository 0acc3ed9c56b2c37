package registry

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/socket"
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

// bind makes the socket, which plugins see only once it listens.
func bind(dir string) (net.Listener, os.FileInfo, error) {
	path := filepath.Join(dir, socketName)
	if err := socket.CheckPath(path); err != nil {
		return nil, nil, fmt.Errorf("%w; choose a shorter plugins.socketDir", err)
	}
	// Its file stays when it is closed: see "Leaving kubelet.sock behind" in doc.go.
	l, info, err := socket.Listen(path, filepath.Join(dir, bindName), 0o660)
	if err != nil {
		return nil, nil, err
	}
	return l, info, nil
}

// vacant fails if path cannot be taken: because somebody listens there, or because it is no socket.
func vacant(path string) error {
	err := socket.Vacant(path)
	if errors.As(err, new(*socket.TakenError)) {
		return fmt.Errorf("%w or choose another plugins.socketDir", err)
	}
	return err
}

// makeDirectory makes dir and what is missing above it so that plugins of other users can pass, and of other containers.
// What is there already keeps its mode and its label.
func makeDirectory(dir string) error {
	made, err := socket.MakeDir(dir, 0o755)
	for _, d := range made {
		label(d)
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
