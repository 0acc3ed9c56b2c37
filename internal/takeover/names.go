package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/shareddir"
	"github.com/devmgrd/devmgrd/internal/socket"
)

// bind makes our socket, under its hidden name. It fails if another devmgrd has one there.
func (t *Takeover) bind() error {
	if err := socket.CheckPath(t.theirs); err != nil {
		return err
	}
	if _, err := shareddir.Make(t.dir, dirMode); err != nil {
		return err
	}
	d, err := shareddir.Open(t.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	stray, err := socket.Vacant(d, hiddenSocket)
	if err != nil {
		return remedy(err)
	}
	t.stray(t.hidden, stray)
	l, info, err := socket.Listen(d, hiddenSocket, t.mode)
	if err != nil {
		return err
	}
	t.own = info
	return t.listener.replace(l)
}

// stray warns of a file at one of the names that is about to be replaced, since it is no socket.
func (t *Takeover) stray(path string, info fs.FileInfo) {
	if info != nil {
		t.strays.Do(func() {
			t.log.Warn("PodResources socket's name taken; replacing file", "path", path, "type", shareddir.TypeName(info.Mode()))
		})
	}
}

// remedy adds to what can be done what the configuration has to offer.
func remedy(err error) error {
	if errors.As(err, new(*socket.TakenError)) {
		return fmt.Errorf("%w or set podResources.takeover to false", err)
	}
	return err
}

// takePath makes the path ours, if it is not.
func (t *Takeover) takePath() error {
	return t.settle(func() (bool, error) {
		done, err := t.takeOnce()
		if !done {
			t.pace.took(time.Now())
		}
		return done, err
	})
}

// settle takes one step after the other until nothing is left to do. Each begins with what is there then: a name may come
// or go at any time.
func (t *Takeover) settle(step func() (done bool, err error)) error {
	var last error
	for range 10 {
		done, err := step()
		switch {
		case done:
			return nil
		case err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist):
			return remedy(err)
		}
		last = err
	}
	if last != nil {
		return last
	}
	return fmt.Errorf("another process keeps taking %s; stop it or set podResources.takeover to false", t.path)
}

// takeOnce is one step towards a path that is ours. It is done when it finds it so.
func (t *Takeover) takeOnce() (done bool, err error) {
	// Somebody may have removed our socket's hidden name, mostly with the whole directory. Without a name it gets none again.
	if info, err := t.stat(t.hidden); err != nil || !t.ours(info) {
		if err := t.bind(); err != nil {
			return false, err
		}
	}
	at, aside, err := t.lookAtBoth()
	switch {
	case err != nil:
		return false, err
	case at.who == ourSocket:
		return true, nil
	case at.who == nothing:
		return false, t.files.link(t.hidden, t.path) // never over what has come meanwhile
	case aside.who == noSocket:
		t.stray(t.theirs, aside.info)
		return false, t.files.remove(t.theirs)
	case at.who != liveSocket && aside.who == liveSocket: // dead or no socket
		return false, t.swap()
	case aside.is(at): // to rename one to the other would do nothing
		return false, t.files.remove(t.theirs)
	}
	if at.who == noSocket {
		t.stray(t.path, at.info)
		if err := t.files.remove(t.theirs); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err // rename puts no directory in the place of a socket
		}
	} else if err := t.setMode(at.info.Mode()); err != nil {
		return false, err
	}
	if err := t.files.rename(t.path, t.theirs); err != nil {
		return false, err
	}
	if err := t.files.link(t.hidden, t.path); err != nil {
		return false, err
	}
	if at.who == liveSocket {
		t.takings.Do(func() {
			t.log.Info("took over kubelet's PodResources socket", "path", t.path, "kubelet", t.theirs)
		})
		return false, nil
	}
	if aside, err = t.lookAt(t.theirs); err != nil || aside.who != deadSocket && aside.who != noSocket {
		return false, err
	}
	return false, t.files.remove(t.theirs)
}

// setMode gives our socket the mode of the kubelet's, so that the same processes may dial it. It is never wider than
// widestMode: another process may have put a socket with any mode at the path.
func (t *Takeover) setMode(mode fs.FileMode) error {
	mode = mode.Perm() & widestMode
	if mode == t.mode {
		return nil
	}
	d, err := shareddir.Open(t.dir)
	if err != nil {
		return err
	}
	defer d.Close()
	e, err := d.Open(hiddenSocket)
	if err != nil {
		return err
	}
	defer e.Close()
	if !t.ours(e.Info()) {
		return fmt.Errorf("%s has been exchanged: %w", t.hidden, fs.ErrNotExist) // the next step makes another
	}
	if err := e.Chmod(mode); err != nil {
		return err
	}
	t.mode = mode
	return nil
}

// leave returns the path back and removes what is ours.
func (t *Takeover) leave() error {
	err := t.settle(t.giveBackOnce)
	if info, e := t.stat(t.hidden); e == nil && t.ours(info) {
		err = errors.Join(err, t.files.remove(t.hidden))
	}
	return err
}

// giveBackOnce is one step towards a path that is the kubelet's if somebody listens on its socket, and else nobody's. It is
// done when it finds it so, and nothing aside.
func (t *Takeover) giveBackOnce() (done bool, err error) {
	at, aside, err := t.lookAtBoth()
	if err != nil {
		return false, err
	}
	switch aside.who {
	case ourSocket, deadSocket, noSocket:
		return false, t.files.remove(t.theirs)
	case nothing:
		if at.who == ourSocket {
			return false, t.files.rename(t.path, t.theirs) // or whatever is there by now
		}
		return true, nil
	}
	switch { // somebody listens aside
	case at.who == nothing:
		return false, t.files.link(t.theirs, t.path)
	case aside.is(at):
		return false, t.files.remove(t.theirs)
	case at.who != liveSocket: // ours, dead or no socket
		return false, t.swap()
	}
	return true, nil // both stay
}

// swap exchanges what is at the path and aside: in one step, where the file system can. Where it cannot, a kubelet that has
// started since we looked can be reached nowhere between the first of three steps and the last.
func (t *Takeover) swap() error {
	err := t.files.exchange(t.theirs, t.path)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	between := filepath.Join(t.dir, ".devmgrd.swap")
	if err := t.files.rename(t.path, between); err != nil {
		return err
	}
	if err := t.files.link(t.theirs, t.path); errors.Is(err, fs.ErrExist) {
		// Another process was faster. What is in between takes the kubelet's name only if it is a kubelet's itself.
		if seen, err := t.lookAt(between); err == nil && seen.who != liveSocket {
			return t.files.remove(between)
		}
	} else if err != nil {
		return err
	}
	err = t.files.rename(between, t.theirs)
	if errors.Is(err, unix.ENOTDIR) { // it was a directory, which is in the way of nothing there
		return t.files.remove(between)
	}
	return err
}

// files is how names are changed.
type files struct {
	link, rename, exchange func(from, to string) error
	remove                 func(name string) error
}

// newFiles returns how names in dir are changed: relative to the open directory.
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

// A seen is what was seen at a name.
type seen struct {
	who  occupant
	info fs.FileInfo // nil: nothing
}

// A occupant says who is at a name.
type occupant int

const (
	nothing    occupant = iota // nothing is there
	ourSocket                  // our socket
	liveSocket                 // a socket on which somebody else listens: the kubelet
	deadSocket                 // one on which nobody does, whosever it was
	noSocket                   // something else than a socket that a server could have
)

// is reports whether two names are of one file.
func (s seen) is(other seen) bool {
	return s.info != nil && other.info != nil && shareddir.Same(s.info, other.info)
}

func (t *Takeover) lookAtBoth() (at, aside seen, err error) {
	if at, err = t.lookAt(t.path); err == nil {
		aside, err = t.lookAt(t.theirs)
	}
	return at, aside, err
}

// lookAt tells who is at a name.
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

// stat returns what is at a name.
func (t *Takeover) stat(name string) (fs.FileInfo, error) {
	d, err := shareddir.Open(t.dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Stat(filepath.Base(name))
}

// ours reports whether a file is devmgrd's socket, under whatever name. Its times say nothing: an agent may set them. Its number is
// not given to another file while the socket is open.
func (t *Takeover) ours(info fs.FileInfo) bool { return t.own != nil && os.SameFile(t.own, info) }
