package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
)

// MaxPath is what the kernel takes as a unix socket's path: 108 bytes with the final NUL.
const MaxPath = 107

// CheckPath fails if path is too long for a socket.
func CheckPath(path string) error {
	if len(path) > MaxPath {
		return fmt.Errorf("%s is longer than the %d bytes that a socket's path may have", path, MaxPath)
	}
	return nil
}

// Listen makes a socket at draft and renames it to path when it listens and has its mode. Whoever watches the directory
// dials as soon as the file is seen, and the file is made by bind, a moment before listen: they would be refused, or let in
// by the umask. The draft is another name in the same directory, which nobody else uses.
//
// Whatever is at path is replaced: see Vacant. The file stays where it is when the listener is closed.
func Listen(path, draft string, mode fs.FileMode) (*net.UnixListener, os.FileInfo, error) {
	for _, p := range []string{path, draft} {
		if err := CheckPath(p); err != nil {
			return nil, nil, err
		}
	}
	if err := os.Remove(draft); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err // left behind by a crash, and not to be removed
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: draft, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	l.SetUnlinkOnClose(false)
	info, err := show(draft, path, mode)
	if err != nil {
		l.Close()
		os.Remove(draft)
		return nil, nil, err
	}
	return l, info, nil
}

func show(draft, path string, mode fs.FileMode) (os.FileInfo, error) {
	if err := os.Chmod(draft, mode); err != nil {
		return nil, err
	}
	info, err := os.Lstat(draft)
	if err != nil {
		return nil, err
	}
	return info, os.Rename(draft, path)
}

// Same tells whether two looks were at one file. A file system may give a deleted file's number to the next one: the time
// tells them apart.
func Same(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}
