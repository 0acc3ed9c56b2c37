package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sweepPause = 10 * time.Minute // between two sweeps
	deadAge    = 5 * time.Minute  // of a socket that a sweep removes: its owner binds it a moment before it listens
	maxSwept   = 4096             // directory entries that a sweep looks at
)

// sweep removes sockets from the socket directory that refuse a connection and belong to no resource: plugins that name
// their socket after their process leave one behind at each crash. Plugins may exchange a file there at any time,
// so each is opened without following links, and the connection goes to what was opened.
func (r *Registry) sweep(ctx context.Context) {
	dir, err := os.OpenFile(r.cfg.SocketDir, unix.O_DIRECTORY, 0)
	if err != nil {
		return // the watch of the directory says so
	}
	defer dir.Close()
	names, err := dir.Readdirnames(maxSwept)
	if err != nil && !errors.Is(err, io.EOF) {
		r.log.Debug("cannot list socket directory", "err", err)
		return
	}
	removed := 0
	kept := r.endpointFiles()
	for _, name := range names {
		if ctx.Err() != nil {
			break
		}
		if name == socketName || name == bindName || kept[name] {
			continue
		}
		switch dead, err := removeDead(int(dir.Fd()), name); {
		case err != nil:
			r.log.Debug("cannot look at socket", "file", name, "err", err)
		case dead:
			removed++
		}
	}
	if removed > 0 {
		r.log.Info("dead sockets removed", "dir", r.cfg.SocketDir, "sockets", removed)
	}
}

// endpointFiles returns the files in the socket directory that belong to a resource: those that its endpoint names, and
// those that links with such a name lead to.
func (r *Registry) endpointFiles() map[string]bool {
	files := map[string]bool{}
	for _, endpoint := range r.Endpoints() {
		path := locate(r.cfg.SocketDir, endpoint)
		files[filepath.Base(path)] = true
		if target, err := filepath.EvalSymlinks(path); err == nil {
			files[filepath.Base(target)] = true
		}
	}
	return files
}

// removeDead removes a file of the directory if it is a socket, was made some time ago, and refuses a connection.
func removeDead(dir int, name string) (bool, error) {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var opened, now unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil {
		return false, err
	}
	if opened.Mode&unix.S_IFMT != unix.S_IFSOCK || time.Since(time.Unix(opened.Mtim.Unix())) < deadAge {
		return false, nil
	}
	conn, err := net.Dial("unix", fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil {
		return false, conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return false, err
	}
	if err := unix.Fstatat(dir, name, &now, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return false, err
	}
	if now.Dev != opened.Dev || now.Ino != opened.Ino || now.Mtim != opened.Mtim {
		return false, nil // another file has that name now
	}
	return true, unix.Unlinkat(dir, name, 0)
}
