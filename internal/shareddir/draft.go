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

// Draft returns a name that no process can foresee, for a file that is to become name. A listing by a kubelet does not show
// it, since it begins with a dot.
func (d *Dir) Draft(name string) string { return draftPrefix(name) + fmt.Sprint(rand.Uint64()) }

func draftPrefix(name string) string { return "." + strings.TrimLeft(name, ".") + "." }

// IsDraft reports whether a file's name is one that a draft of name may have.
func IsDraft(file, name string) bool {
	number, is := strings.CutPrefix(file, draftPrefix(name))
	return is && number != "" && strings.Trim(number, "0123456789") == ""
}

// RemoveDrafts removes drafts of name that a crash has left behind.
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

// Replace renames a draft to name, over what is there. A directory there is exchanged for the draft in one step, so that no other
// process can make another one in between, and then removed as far as possible.
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

// Remove removes what is at a name, links without following them. A directory is renamed aside, so that its name is free, and
// removed as far as possible.
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

// removeAll removes a name in an open directory, and what is below it: at most left files, not deeper than depth. No link is
// followed.
func removeAll(dir int, name string, depth int, left *int) error {
	if *left--; *left < 0 {
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

// WriteFile puts data at name, in one step and durably: a reader finds the old file or the new one, whose mode is 0600 as that
// of a kubelet's files. A directory there is an error.
func (d *Dir) WriteFile(name string, data []byte) error {
	if err := d.write(name, data, (*os.File).Sync, d.Rename); err != nil {
		return err
	}
	return d.sync()
}

// ReplaceFile puts data at name, in one step, whatever is there: see Replace. After a power cut the file may be empty or an old
// one.
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

// CreateFile makes a file with this content. It fails where something has that name.
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

// sync makes durable which names the directory has.
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
