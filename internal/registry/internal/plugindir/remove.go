package plugindir

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// removeBatch is the number of names per read.
const removeBatch = 1024

// removeAll removes a path with everything below. No process writes there any longer, but one may have left trees that are deeper
// than the limit of descriptors, and directories that root cannot write without CAP_DAC_OVERRIDE. So directories are moved to the
// top before they are emptied, and made writable.
func removeAll(path string) error {
	top, name, err := shareddir.Split(path)
	if err != nil {
		return err
	}
	defer top.Close()
	dir, err := top.OpenDir(name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTDIR):
		return os.Remove(path)
	case err != nil:
		return err
	}
	defer dir.Close()
	r := remover{top: dir}
	for done := false; !done; {
		if done, err = r.empty(dir); err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// A remover empties a directory.
type remover struct {
	top   *shareddir.Dir
	moved int
}

// empty removes a batch of a directory's names, and first moves directories to the top. done reports whether the directory is
// empty.
func (r *remover) empty(dir *shareddir.Dir) (done bool, err error) {
	fd, err := unix.Open(dir.Through("."), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false, &os.PathError{Op: "open", Path: dir.Path(), Err: err}
	}
	file := os.NewFile(uintptr(fd), dir.Path())
	defer file.Close()
	names, err := file.Readdirnames(removeBatch)
	if errors.Is(err, io.EOF) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, name := range names {
		switch err := unix.Unlinkat(fd, name, 0); {
		case err == nil || err == unix.ENOENT:
		case err != unix.EISDIR:
			return false, &os.PathError{Op: "remove", Path: filepath.Join(dir.Path(), name), Err: err}
		default:
			_ = unix.Fchmodat(fd, name, 0o700, 0) // another user's stays as it is
			if dir == r.top {
				err = r.removeDir(name)
			} else {
				err = r.lift(fd, name)
			}
			if err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// removeDir removes a directory in the top.
func (r *remover) removeDir(name string) error {
	dir, err := r.top.OpenDir(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	for done := false; !done; {
		if done, err = r.empty(dir); err != nil {
			return err
		}
	}
	if err := os.Remove(r.top.Through(name)); err != nil {
		return &os.PathError{Op: "remove", Path: dir.Path(), Err: err}
	}
	return nil
}

// lift moves a directory to the top, which empty reads again.
func (r *remover) lift(from int, name string) error {
	for {
		r.moved++
		err := os.Rename("/proc/self/fd/"+strconv.Itoa(from)+"/"+name, r.top.Through(".removed."+strconv.Itoa(r.moved)))
		if !errors.Is(err, os.ErrExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
}
