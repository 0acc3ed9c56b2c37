package shareddir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// An Entry is a file of any type that was opened without following links. It stays the same file when the name changes.
type Entry struct {
	path string
	file *os.File // O_PATH
	info fs.FileInfo
}

func newEntry(fd int, path string) (*Entry, error) {
	e := &Entry{path: path, file: os.NewFile(uintptr(fd), path)}
	var err error
	e.info, err = e.file.Stat()
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// A TypeError reports that a file has another type than the required one.
type TypeError struct {
	Path string
	Type fs.FileMode // what it is; of a regular file 0
	Want string
}

func (e *TypeError) Error() string {
	return fmt.Sprintf("%s is a %s, not a %s", e.Path, TypeName(e.Type), e.Want)
}

// TypeName returns the common name of a file's type.
func TypeName(mode fs.FileMode) string {
	switch mode.Type() {
	case 0:
		return "regular file"
	case fs.ModeDir:
		return "directory"
	case fs.ModeSymlink:
		return "symbolic link"
	case fs.ModeNamedPipe:
		return "FIFO"
	case fs.ModeSocket:
		return "socket"
	}
	return "device"
}

// Close closes the descriptor.
func (e *Entry) Close() error { return e.file.Close() }

// Info returns the file's type, mode and times when it was opened.
func (e *Entry) Info() fs.FileInfo { return e.info }

// Path returns the path at which the file was opened.
func (e *Entry) Path() string { return e.path }

// IsSocket reports whether the file is a unix socket.
func (e *Entry) IsSocket() bool { return e.info.Mode().Type() == fs.ModeSocket }

// Dial connects to the socket. It fails with a *TypeError if the file is no socket.
func (e *Entry) Dial(ctx context.Context) (*net.UnixConn, error) {
	if !e.IsSocket() {
		return nil, &TypeError{Path: e.path, Type: e.info.Mode().Type(), Want: "socket"}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", through(e.file))
	if err != nil {
		if op := new(net.OpError); errors.As(err, &op) {
			op.Addr = &net.UnixAddr{Name: e.path, Net: "unix"} // the path says more than the descriptor's number
		}
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// Read reads the file without waiting for a writer. It fails with a *TypeError if the file is not regular, and if it has more than
// limit bytes.
func (e *Entry) Read(limit int64) ([]byte, error) {
	if !e.info.Mode().IsRegular() {
		return nil, &TypeError{Path: e.path, Type: e.info.Mode().Type(), Want: "regular file"}
	}
	if e.info.Size() > limit {
		return nil, e.tooLong(limit)
	}
	file, err := os.OpenFile(through(e.file), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: e.path, Err: errors.Unwrap(err)}
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit { // it has grown
		err = e.tooLong(limit)
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}

func (e *Entry) tooLong(limit int64) error {
	return fmt.Errorf("%s is longer than the %d bytes that are read", e.path, limit)
}

// Chmod sets the mode of a socket. It fails with a *TypeError if the file is no socket.
func (e *Entry) Chmod(mode fs.FileMode) error {
	if !e.IsSocket() {
		return &TypeError{Path: e.path, Type: e.info.Mode().Type(), Want: "socket"}
	}
	return os.Chmod(through(e.file), mode)
}

// ReadLink returns the target of a symbolic link.
func (e *Entry) ReadLink() (string, error) {
	text := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(e.file.Fd()), "", text)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: e.path, Err: err}
	}
	return string(text[:n]), nil
}

// Same reports whether two FileInfos describe one file. A file system may reuse a deleted file's number, so Same compares times
// too.
func Same(a, b fs.FileInfo) bool {
	return a != nil && b != nil && os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
