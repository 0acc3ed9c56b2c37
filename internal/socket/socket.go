package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// MaxPath is what the kernel takes as a unix socket's path: 108 bytes with the final NUL.
const MaxPath = 107

const (
	bindTries = 100 // until a draft stays what it was for as long as it takes to open it
	selfLimit = 5 * time.Second

	queueTries = 100                    // connections that Reaches closes while the queue is full: another process may fill it again
	queueLimit = 200 * time.Millisecond // for one of them
)

// CheckPath fails if path is too long for a socket.
func CheckPath(path string) error {
	if len(path) > MaxPath {
		return fmt.Errorf("%s is longer than the %d bytes that a socket's path may have", path, MaxPath)
	}
	return nil
}

// Listen creates a socket as a draft, and renames it to name when it listens and has its mode. Without the draft, a process that
// watches the directory could dial between bind and listen and would be refused, or would be accepted because of the umask. Listen
// replaces a file of any type at name: see Vacant. The path may be longer than CheckPath allows, for processes that reach the
// directory by a shorter one. The file stays when the listener is closed.
func Listen(d *shareddir.Dir, name string, mode fs.FileMode) (*net.UnixListener, fs.FileInfo, error) {
	_ = d.RemoveDrafts(name) // one that stays is in the way of nothing
	var err error
	for range bindTries {
		var l *net.UnixListener
		var info fs.FileInfo
		l, info, err = listen(d, name, mode)
		if exchanged := new(exchangedError); !errors.As(err, &exchanged) {
			return l, info, err
		}
	}
	return nil, nil, err
}

// ListenPath is Listen at a path that VacantPath has checked.
func ListenPath(path string, mode fs.FileMode) (*net.UnixListener, error) {
	return ListenPathFrom(filepath.Dir(path), path, mode)
}

// ListenPathFrom is ListenPath with the socket created in the directory staging, and then renamed to path: a process that watches the
// directory of path sees no name that is gone when it looks. If staging is on another mount, where a rename does not lead, the socket is
// created at path: a process that dials within the microseconds from bind to listen is refused. Its mode is mode less the umask.
func ListenPathFrom(staging, path string, mode fs.FileMode) (*net.UnixListener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if err := VacantPath(path); err != nil {
		return nil, err
	}
	d, name, err := shareddir.Split(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	from, err := shareddir.Open(staging)
	if err != nil {
		return nil, err
	}
	defer from.Close()
	l, _, err := Listen(from, name, mode)
	if err != nil {
		return nil, err
	}
	if err = from.MoveTo(d, name); err == nil {
		return l, nil
	}
	l.Close()
	_ = from.Unlink(name)
	if errors.Is(err, unix.EXDEV) {
		return listenInPlace(d, name, mode)
	}
	return nil, err
}

// listenInPlace creates a socket without a draft.
func listenInPlace(d *shareddir.Dir, name string, mode fs.FileMode) (*net.UnixListener, error) {
	if err := d.Unlink(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l, err := bind(d.Through(name), mode)
	if err != nil {
		return nil, fmt.Errorf("listen %s: %w", d.Join(name), err)
	}
	return l, nil
}

func listen(d *shareddir.Dir, name string, mode fs.FileMode) (_ *net.UnixListener, _ fs.FileInfo, err error) {
	draft := d.Draft(name)
	bound := d.Through(draft)
	l, err := bind(bound, mode)
	if err != nil {
		return nil, nil, fmt.Errorf("listen %s: %w", d.Join(name), err)
	}
	defer func() {
		if err != nil {
			l.Close()
			_ = d.Unlink(draft)
		}
	}()
	e, err := d.Open(draft)
	if errors.Is(err, fs.ErrNotExist) {
		err = &exchangedError{d.Join(draft), err}
	}
	if err != nil {
		return nil, nil, err
	}
	defer e.Close()
	if err := Reaches(e, l); err != nil {
		return nil, nil, &exchangedError{e.Path(), err}
	}
	if err := accept(l, selfLimit); err != nil { // Reaches' connection, which is the first unless a process has dialled the draft
		return nil, nil, err
	}
	if err := e.Chmod(mode); err != nil {
		return nil, nil, err
	}
	err = d.Replace(draft, name)
	if errors.Is(err, fs.ErrNotExist) {
		err = &exchangedError{d.Join(draft), err} // another process has removed it
	}
	if err != nil {
		return nil, nil, err
	}
	return l, e.Info(), nil
}

// bind creates a socket that listens at path. Its mode is never wider than mode: the kernel takes the descriptor's mode, less the
// umask.
func bind(path string, mode fs.FileMode) (*net.UnixListener, error) {
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), uint32(mode.Perm())) })
		return errors.Join(err, failed)
	}}
	l, err := config.Listen(context.Background(), "unix", path)
	if err != nil {
		if op := new(net.OpError); errors.As(err, &op) {
			err = op.Err // the path says nothing
		}
		return nil, err
	}
	listener := l.(*net.UnixListener)
	listener.SetUnlinkOnClose(false)
	return listener, nil
}

// Reaches fails if the opened file is not l's socket, since another process may have exchanged it. It connects to the file and asks
// the kernel for the listener: the process that made l listen, at the address of l. No other socket of that process has the address
// of a draft, whose name is random. The queue of a socket from systemd may be full of connections whose clients have gone: Reaches
// then closes the oldest ones.
func Reaches(e *shareddir.Entry, l *net.UnixListener) error {
	ctx, cancel := context.WithTimeout(context.Background(), selfLimit)
	defer cancel()
	conn, err := e.Dial(ctx)
	for tries := 0; errors.Is(err, unix.EAGAIN) && tries < queueTries; tries++ {
		if err = accept(l, queueLimit); err != nil {
			return fmt.Errorf("%s: the queue of the process that listens there is full, and this listener's is not: %w", e.Path(), err)
		}
		conn, err = e.Dial(ctx)
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	theirs, err := Peer(conn)
	if err != nil {
		return err
	}
	ours, err := peer(l) // of a socket that listens: the process that made it listen
	if err != nil {
		return err
	}
	if at, want := conn.RemoteAddr().String(), l.Addr().String(); theirs != ours.Pid || at != want {
		return fmt.Errorf("process %d listens on %s, which was bound to %s, instead of process %d, bound to %s", theirs, e.Path(), at, ours.Pid, want)
	}
	return nil
}

// accept accepts and closes the first connection in the queue.
func accept(l *net.UnixListener, limit time.Duration) error {
	if err := l.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	conn, err := l.Accept()
	if err != nil {
		return errors.Join(err, l.SetDeadline(time.Time{}))
	}
	return errors.Join(conn.Close(), l.SetDeadline(time.Time{}))
}

// An exchangedError reports that another process has exchanged a draft.
type exchangedError struct {
	path string
	err  error
}

func (e *exchangedError) Error() string {
	return fmt.Sprintf("another process has exchanged %s; find the process that changes names in that directory: %v", e.path, e.err)
}

func (e *exchangedError) Unwrap() error { return e.err }

// Dial connects to the socket at path, without following a link there.
func Dial(ctx context.Context, path string) (*net.UnixConn, error) {
	d, name, err := shareddir.Split(path)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	e, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Dial(ctx)
}
