package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"

	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

const socketName = "kubelet.sock" // the name that every plugin knows

// isOwn reports whether a file in the socket directory is devmgrd's by its name.
func isOwn(name string) bool { return name == socketName || shareddir.IsDraft(name, socketName) }

// Listen binds the registration sockets. Run serves them; earlier connections wait. It fails if another process listens there.
func (r *Registry) Listen() error {
	if err := r.listen(); err != nil {
		return fmt.Errorf("plugin registration: %w", err)
	}
	if r.tree != nil {
		r.restore()
	}
	return nil
}

func (r *Registry) listen() error {
	if err := r.common.make(); err != nil {
		return err
	}
	// Plugins dial it by its path, unless they are in a container.
	if err := socket.CheckPath(filepath.Join(r.common.sockets, socketName)); err != nil {
		return fmt.Errorf("%w; choose a shorter plugins.socketDir", err)
	}
	if handed := r.cfg.Listener; handed != nil {
		err := r.common.take(handed)
		if err == nil {
			return nil
		}
		r.log.Warn("passed registration socket unreachable; creating another", "err", err)
		handed.Close()
	}
	return r.common.listen()
}

// listen binds the directory's registration socket.
func (d *directory) listen() error {
	dir, err := shareddir.Open(d.sockets)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := d.vacant(dir); err != nil {
		return err
	}
	listener, info, err := socket.Listen(dir, socketName, 0o660) // its file stays: see "Leaving kubelet.sock behind" in doc.go
	if err != nil {
		return err
	}
	d.adopt(listener, info)
	return nil
}

// take takes over a socket from systemd.
func (d *directory) take(handed net.Listener) error {
	dir, err := shareddir.Open(d.sockets)
	if err != nil {
		return err
	}
	defer dir.Close()
	info, err := reached(dir, handed)
	if err != nil {
		return err
	}
	d.adopt(handed, info)
	return nil
}

// reached returns the file of a socket from systemd. It fails if the path leads to another socket: the file was removed and recreated.
func reached(d *shareddir.Dir, handed net.Listener) (fs.FileInfo, error) {
	l, is := handed.(*net.UnixListener)
	if !is {
		return nil, fmt.Errorf("%T is no unix socket", handed)
	}
	e, err := d.Open(socketName)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Info(), socket.Reaches(e, l)
}

// adopt makes l the registration socket.
func (d *directory) adopt(l net.Listener, info fs.FileInfo) {
	r := d.registry
	r.mu.Lock()
	old := d.listener
	if r.closing || d.leaving {
		old = l // too late
	} else {
		d.listener, d.own, d.trouble = l, info, nil
		if d.watched {
			d.serveLocked()
		}
	}
	r.mu.Unlock()
	if old != nil {
		old.Close()
	}
}

// serveLocked serves registrations until the current listener is closed.
func (d *directory) serveLocked() {
	r, l := d.registry, d.listener
	r.work.Go(func() {
		err := r.server.Serve(directoryListener{l, d})
		r.mu.Lock()
		expected := r.closing || d.listener != l
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

// vacant fails if another process listens on kubelet.sock. It logs that a file other than a socket will be replaced.
func (d *directory) vacant(dir *shareddir.Dir) error {
	stray, err := socket.Vacant(dir, socketName)
	if stray != nil {
		d.strays.Do(func() {
			d.log.Warn("registration socket's name taken; replacing file", "path", dir.Join(socketName), "type", shareddir.TypeName(stray.Mode()))
		})
	}
	if errors.As(err, new(*socket.TakenError)) && !d.pod.Known() {
		return fmt.Errorf("%w or choose another plugins.socketDir", err)
	}
	return err
}
