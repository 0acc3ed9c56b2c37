package shareddir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A Dir is an open directory that other processes write. Names are single file names in it unless a method says otherwise.
// Errors name the whole path.
type Dir struct {
	path string
	file *os.File // O_PATH
}

// Open opens the directory at path, through links: the configuration names the directory.
func Open(path string) (*Dir, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return &Dir{path: filepath.Clean(path), file: os.NewFile(uintptr(fd), path)}, nil
}

// Split opens the directory of path, and returns it with the file's name.
func Split(path string) (*Dir, string, error) {
	d, err := Open(filepath.Dir(path))
	return d, filepath.Base(path), err
}

// Close closes the directory's descriptor. Entries stay open.
func (d *Dir) Close() error { return d.file.Close() }

// Path returns the path by which the directory was opened.
func (d *Dir) Path() string { return d.path }

// Join returns the path of a name in the directory, for messages and for other processes.
func (d *Dir) Join(name string) string { return filepath.Join(d.path, name) }

// Through returns a path that leads through the open directory, even after the directory has been moved.
func (d *Dir) Through(name string) string { return through(d.file) + "/" + name }

// Real returns the directory's path without links.
func (d *Dir) Real() (string, error) { return os.Readlink(through(d.file)) }

// Current reports whether the directory's path still leads to it.
func (d *Dir) Current() bool {
	now, err := os.Stat(d.path)
	if err != nil {
		return false
	}
	opened, err := d.file.Stat()
	return err == nil && os.SameFile(now, opened)
}

// Open opens the file of any type at a path below the directory. It follows no link: it opens a link at the end of the path, and
// fails with ENOTDIR if there is one before.
func (d *Dir) Open(below string) (*Entry, error) {
	path := d.Join(below)
	steps := strings.Split(below, "/")
	at := int(d.file.Fd())
	for i, step := range steps {
		if step == "" || step == "." || step == ".." {
			if i > 0 {
				unix.Close(at)
			}
			return nil, &fs.PathError{Op: "open", Path: path, Err: unix.EINVAL}
		}
		flags := unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
		if i < len(steps)-1 {
			flags |= unix.O_DIRECTORY
		}
		fd, err := retry(func() (int, error) { return unix.Openat(at, step, flags, 0) })
		if i > 0 {
			unix.Close(at)
		}
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		at = fd
	}
	return newEntry(at, path)
}

// OpenDir opens a directory below the directory, without following links.
func (d *Dir) OpenDir(below string) (*Dir, error) {
	e, err := d.Open(below)
	if err != nil {
		return nil, err
	}
	if !e.info.IsDir() {
		e.Close()
		return nil, &fs.PathError{Op: "open", Path: e.path, Err: unix.ENOTDIR}
	}
	return &Dir{path: e.path, file: e.file}, nil
}

// Stat describes the file at a path below the directory, without following links.
func (d *Dir) Stat(below string) (fs.FileInfo, error) {
	e, err := d.Open(below)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.info, nil
}

// Names returns at most most names in the directory; more reports whether it has others.
func (d *Dir) Names(most int) (names []string, more bool, err error) {
	fd, err := retry(func() (int, error) {
		return unix.Openat(int(d.file.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, false, &fs.PathError{Op: "read", Path: d.path, Err: err}
	}
	file := os.NewFile(uintptr(fd), d.path)
	defer file.Close()
	names, err = file.Readdirnames(most + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	if len(names) > most {
		return names[:most], true, nil
	}
	return names, false, nil
}

// ReadFile reads a regular file of at most limit bytes.
func (d *Dir) ReadFile(name string, limit int64) ([]byte, error) {
	e, err := d.Open(name)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Read(limit)
}

// Rename renames a file, and replaces a file at the new name unless that is a directory.
func (d *Dir) Rename(from, to string) error {
	return d.linkError("rename", from, to, unix.Renameat(int(d.file.Fd()), from, int(d.file.Fd()), to))
}

// MoveTo renames a file into another directory, and replaces a file there. It fails with EXDEV if that is on another mount.
func (d *Dir) MoveTo(to *Dir, name string) error {
	if err := unix.Renameat(int(d.file.Fd()), name, int(to.file.Fd()), name); err != nil {
		return &os.LinkError{Op: "rename", Old: d.Join(name), New: to.Join(name), Err: err}
	}
	return nil
}

// Exchange exchanges two names in one step. Some file systems do not support that (EINVAL).
func (d *Dir) Exchange(a, b string) error {
	return d.linkError("exchange", a, b, unix.Renameat2(int(d.file.Fd()), a, int(d.file.Fd()), b, unix.RENAME_EXCHANGE))
}

// Link adds a second name to a file. It fails if the name exists.
func (d *Dir) Link(from, to string) error {
	return d.linkError("link", from, to, unix.Linkat(int(d.file.Fd()), from, int(d.file.Fd()), to, 0))
}

func (d *Dir) linkError(op, from, to string, err error) error {
	if err == nil {
		return nil
	}
	return &os.LinkError{Op: op, Old: d.Join(from), New: d.Join(to), Err: err}
}

// Unlink removes the name of a file. It fails for a directory.
func (d *Dir) Unlink(name string) error {
	if err := unix.Unlinkat(int(d.file.Fd()), name, 0); err != nil {
		return &fs.PathError{Op: "remove", Path: d.Join(name), Err: err}
	}
	return nil
}

// containerLabel is the kubelet's SELinux label for directories with sockets for containers.
const containerLabel = "system_u:object_r:container_file_t:s0"

// Make creates the directory at path with this mode, and missing parents with mode 0755, whatever the umask is. Existing
// directories keep their mode. Make returns the created directories, the uppermost first.
func Make(path string, mode fs.FileMode) (made []string, err error) { return makeAll(path, mode, "") }

// MakeShared is Make for directories that containers mount: where SELinux is on, the created ones let containers in.
func MakeShared(path string, mode fs.FileMode) error {
	label := containerLabel
	if _, err := os.Stat("/sys/fs/selinux/enforce"); err != nil {
		label = ""
	}
	_, err := makeAll(path, mode, label)
	return err
}

func makeAll(path string, mode fs.FileMode, label string) (made []string, err error) {
	path = filepath.Clean(path)
	d, name, err := Split(path)
	if errors.Is(err, fs.ErrNotExist) {
		if made, err = makeAll(filepath.Dir(path), 0o755, label); err != nil {
			return made, err
		}
		d, name, err = Split(path)
	}
	if err != nil {
		return made, err
	}
	defer d.Close()
	err = d.mkdir(name, mode, label)
	if !errors.Is(err, fs.ErrExist) {
		if err == nil {
			made = append(made, path)
		}
		return made, err
	}
	if info, err := os.Stat(path); err != nil || info.IsDir() {
		return made, err
	}
	return made, fmt.Errorf("%s is not a directory", path)
}

// mkdir creates a directory. One that cannot get its mode is removed: the next call would take it as it is.
func (d *Dir) mkdir(name string, mode fs.FileMode, label string) (err error) {
	if err := unix.Mkdirat(int(d.file.Fd()), name, uint32(mode.Perm())); err != nil {
		return d.pathError(name, err)
	}
	made, err := d.OpenDir(name)
	if err == nil {
		defer made.Close()
		if label != "" {
			_ = unix.Setxattr(through(made.file), "security.selinux", []byte(label), 0) // as in the kubelet a failure is no error
		}
		err = os.Chmod(through(made.file), mode)
	}
	if err != nil {
		_ = unix.Unlinkat(int(d.file.Fd()), name, unix.AT_REMOVEDIR)
	}
	return err
}

// through returns the path by which this process reaches an open file, even after it has been renamed.
func through(file *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", file.Fd()) }

// retry repeats a system call that a signal has interrupted.
func retry(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}
