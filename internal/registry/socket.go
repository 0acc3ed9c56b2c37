package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/devmgrd/devmgrd/internal/shareddir"
	"github.com/devmgrd/devmgrd/internal/socket"
)

const (
	socketName = "kubelet.sock" // the name that every plugin knows

	// The label by which, under SELinux, containers may reach the sockets in the directory: the kubelet's.
	directoryLabel = "system_u:object_r:container_file_t:s0"
)

// isOwn reports whether a file in the socket directory is devmgrd's by its name.
func isOwn(name string) bool { return name == socketName || shareddir.IsDraft(name, socketName) }

// Listen binds the registration socket. From the moment that kubelet.sock is seen, whoever dials it is queued, and
// served once Run runs. It fails if somebody else listens there.
func (r *Registry) Listen() error {
	if err := r.listen(); err != nil {
		return fmt.Errorf("plugin registration: %w", err)
	}
	return nil
}

func (r *Registry) listen() error {
	if err := makeDirectory(r.cfg.SocketDir); err != nil {
		return err
	}
	d, err := shareddir.Open(r.cfg.SocketDir)
	if err != nil {
		return err
	}
	defer d.Close()
	if handed := r.cfg.Listener; handed != nil {
		info, err := reached(d, handed)
		if err == nil {
			r.adopt(handed, info)
			return nil
		}
		r.log.Warn("nobody can dial the registration socket that was handed over; making another", "err", err)
		handed.Close()
	}
	if err := r.vacant(d); err != nil {
		return err
	}
	listener, info, err := bind(d)
	if err != nil {
		return err
	}
	r.adopt(listener, info)
	return nil
}

// reached returns the file of a socket that was handed over. It fails if a plugin that dials the file does not reach that socket:
// the file has been removed meanwhile, and what is there now is what the process before this one has put back, or another
// process.
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

// adopt makes l the registration socket, in place of one whose file has gone.
func (r *Registry) adopt(l net.Listener, info fs.FileInfo) {
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
func bind(d *shareddir.Dir) (net.Listener, fs.FileInfo, error) {
	if err := socket.CheckPath(d.Join(socketName)); err != nil {
		return nil, nil, fmt.Errorf("%w; choose a shorter plugins.socketDir", err)
	}
	// Its file stays when it is closed: see "Leaving kubelet.sock behind" in doc.go.
	l, info, err := socket.Listen(d, socketName, 0o660)
	if err != nil {
		return nil, nil, err
	}
	return l, info, nil
}

// vacant fails if another process listens on kubelet.sock. It warns of what is there if that is no socket, since it is replaced.
func (r *Registry) vacant(d *shareddir.Dir) error {
	stray, err := socket.Vacant(d, socketName)
	if stray != nil {
		r.strays.Do(func() {
			r.log.Warn("registration socket's name taken; replacing file", "path", d.Join(socketName), "type", shareddir.TypeName(stray.Mode()))
		})
	}
	if errors.As(err, new(*socket.TakenError)) {
		return fmt.Errorf("%w or choose another plugins.socketDir", err)
	}
	return err
}

// makeDirectory makes dir and what is missing above it so that plugins of other users can pass, and of other containers.
// What is there already keeps its mode and its label.
func makeDirectory(dir string) error {
	made, err := shareddir.Make(dir, 0o755)
	for _, d := range made {
		label(d)
	}
	return err
}

// label lets containers in where SELinux is on. As in the kubelet it is no error if that fails: an administrator may
// have given the directory a label of another kind.
func label(dir string) {
	d, err := shareddir.Open(dir)
	if err != nil {
		return
	}
	defer d.Close()
	_ = d.SetLabel(directoryLabel)
}
