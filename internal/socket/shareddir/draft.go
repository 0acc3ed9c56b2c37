package shareddir

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	maxListed   = 4096 // names that RemoveDrafts looks at
	maxRemoved  = 4096 // files below a directory that Remove removes
	maxDepth    = 8    // of those
	maxReplaced = 100  // times that Replace finds a directory in its way
)

// Draft returns a random name for a file that becomes name. It begins with a dot, so that a kubelet's listing ignores it.
func (d *Dir) Draft(name string) string { return draftPrefix(name) + fmt.Sprint(rand.Uint64()) }

func draftPrefix(name string) string { return "." + strings.TrimLeft(name, ".") + "." }

// IsDraft reports whether a file name is a possible result of Draft(name).
func IsDraft(file, name string) bool {
	number, is := strings.CutPrefix(file, draftPrefix(name))
	return is && number != "" && strings.Trim(number, "0123456789") == ""
}

// RemoveDrafts removes drafts of name that a crash has left.
func (d *Dir) RemoveDrafts(name string) error {
	names, _, err := d.Names(maxListed)
	for _, n := range names {
		if IsDraft(n, name) {
			left := maxRemoved
			err = errors.Join(err, d.pathError(n, removeAll(int(d.file.Fd()), n, maxDepth, &left)))
		}
	}
	return err
}

// Replace renames a draft to name, and replaces an existing file. It exchanges an existing directory for the draft in one step, so
// that no process can create another one in between, and then removes it within removeAll's limits.
func (d *Dir) Replace(draft, name string) error {
	var err error
	for range maxReplaced {
		err = d.Rename(draft, name)
		if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		switch err := d.Exchange(draft, name); {
		case err == nil:
			left := maxRemoved
			_ = removeAll(int(d.file.Fd()), draft, maxDepth, &left) // what cannot be removed is in the way of nothing
			return nil
		case errors.Is(err, fs.ErrNotExist): // the directory, unless it is the draft: the next rename says so
		case errors.Is(err, unix.EINVAL): // the file system does not know how
			if err := d.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		default:
			return err
		}
	}
	return fmt.Errorf("another process keeps making a directory there: %w", err)
}

// Remove removes a name, a link without following it. It renames a directory, so that the name is free, and then removes it within
// removeAll's limits.
func (d *Dir) Remove(name string) error {
	err := d.Unlink(name)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	aside := d.Draft(name) // where RemoveDrafts finds what is left of it
	if err := d.Rename(name, aside); err != nil {
		return err
	}
	left := maxRemoved
	_ = removeAll(int(d.file.Fd()), aside, maxDepth, &left) // what cannot be removed is in the way of nothing
	return nil
}

// removeAll removes a name in an open directory with everything below: at most left files, not deeper than depth, without following
// links.
func removeAll(dir int, name string, depth int, left *int) error {
	*left--
	if *left < 0 {
		return unix.ENOTEMPTY
	}
	err := unix.Unlinkat(dir, name, 0)
	switch {
	case err == nil || err == unix.ENOENT:
		return nil
	case err != unix.EISDIR || depth == 0:
		return err
	}
	fd, err := retry(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return err
	}
	below := os.NewFile(uintptr(fd), name)
	defer below.Close()
	names, _ := below.Readdirnames(*left + 1)
	for _, n := range names {
		_ = removeAll(fd, n, depth-1, left) // the directory's own removal fails if one is left
	}
	return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
}

// WriteFile writes data to name durably and in one step: a reader finds the old file or the new one. The mode is 0600, like that of
// a kubelet's files. It fails if name is a directory.
func (d *Dir) WriteFile(name string, data []byte) error {
	if err := d.write(name, data, (*os.File).Sync, d.Rename); err != nil {
		return err
	}
	return d.sync()
}

// ReplaceFile writes data to name in one step, and replaces a file of any type: see Replace. After a power cut the file may be
// empty or old.
func (d *Dir) ReplaceFile(name string, data []byte) error {
	return d.write(name, data, func(*os.File) error { return nil }, d.Replace)
}

func (d *Dir) write(name string, data []byte, sync func(*os.File) error, put func(draft, name string) error) error {
	draft := d.Draft(name)
	file, err := d.create(draft, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.Write(data); err == nil {
		err = sync(file)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = put(draft, name)
	}
	if err != nil {
		_ = d.Unlink(draft)
	}
	return err
}

// CreateFile creates a file with this content. It fails if the name exists.
func (d *Dir) CreateFile(name string, data []byte, mode fs.FileMode) error {
	file, err := d.create(name, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

func (d *Dir) create(name string, mode fs.FileMode) (*os.File, error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(int(d.file.Fd()), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
	})
	if err != nil {
		return nil, d.pathError(name, err)
	}
	return os.NewFile(uintptr(fd), d.Join(name)), nil
}

// sync makes the directory's names durable.
func (d *Dir) sync() error {
	fd, err := retry(func() (int, error) {
		return unix.Openat(int(d.file.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return d.pathError(".", err)
	}
	file := os.NewFile(uintptr(fd), d.path)
	return errors.Join(file.Sync(), file.Close())
}

func (d *Dir) pathError(name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "write", Path: d.Join(name), Err: err}
}
