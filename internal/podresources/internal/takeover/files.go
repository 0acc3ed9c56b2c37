package takeover

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// files changes names.
type files struct {
	link, rename, exchange func(from, to string) error
	remove                 func(name string) error
}

// newFiles returns the changes of names in dir: relative to the open directory.
func newFiles(dir string) files {
	in := func(change func(d *shareddir.Dir) error) error {
		d, err := shareddir.Open(dir)
		if err != nil {
			return err
		}
		defer d.Close()
		return change(d)
	}
	pair := func(change func(d *shareddir.Dir, from, to string) error) func(from, to string) error {
		return func(from, to string) error {
			return in(func(d *shareddir.Dir) error { return change(d, filepath.Base(from), filepath.Base(to)) })
		}
	}
	return files{
		link: pair((*shareddir.Dir).Link), rename: pair((*shareddir.Dir).Replace), exchange: pair((*shareddir.Dir).Exchange),
		remove: func(name string) error {
			return in(func(d *shareddir.Dir) error { return d.Remove(filepath.Base(name)) })
		},
	}
}

// A seen is the file at a name, when it was last looked at.
type seen struct {
	who  occupant
	info fs.FileInfo // nil: nothing
}

// An occupant says whose file is at a name.
type occupant int

const (
	nothing    occupant = iota // no file
	ourSocket                  // devmgrd's socket
	liveSocket                 // a socket on which another process listens: the kubelet
	deadSocket                 // a socket without a listener, of an ended kubelet or devmgrd
	noSocket                   // a file that is not a socket
)

// is reports whether two names have the same file.
func (s seen) is(other seen) bool {
	return s.info != nil && other.info != nil && shareddir.Same(s.info, other.info)
}

func (t *Takeover) lookAtBoth() (at, aside seen, err error) {
	if at, err = t.lookAt(t.path); err == nil {
		aside, err = t.lookAt(t.theirs)
	}
	return at, aside, err
}

// lookAt returns the file at a name, and whose it is.
func (t *Takeover) lookAt(name string) (seen, error) {
	info, err := t.stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return seen{who: nothing}, nil
	case err != nil:
		return seen{}, err
	case t.ours(info):
		return seen{ourSocket, info}, nil
	}
	d, err := shareddir.Open(t.dir)
	if err != nil {
		return seen{}, err
	}
	defer d.Close()
	stray, err := socket.Vacant(d, filepath.Base(name))
	switch {
	case errors.As(err, new(*socket.TakenError)):
		return seen{liveSocket, info}, nil
	case err != nil:
		return seen{}, err
	case stray != nil:
		return seen{noSocket, info}, nil
	}
	return seen{deadSocket, info}, nil
}

// stat returns the file at a name.
func (t *Takeover) stat(name string) (fs.FileInfo, error) {
	d, err := shareddir.Open(t.dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Stat(filepath.Base(name))
}

// ours reports whether a file is devmgrd's socket, under any name. The file's times do not count: an agent may set them. The kernel
// does not reuse an inode while its socket is open.
func (t *Takeover) ours(info fs.FileInfo) bool { return t.own != nil && os.SameFile(t.own, info) }
