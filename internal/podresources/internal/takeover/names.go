package takeover

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
)

// bind makes devmgrd's socket, under its hidden name. It fails if another devmgrd listens there.
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

// stray warns of a file at one of the names that is about to be replaced, since it is not a socket.
func (t *Takeover) stray(path string, info fs.FileInfo) {
	if info != nil {
		t.strays.Do(func() {
			t.log.Warn("PodResources socket's name taken; replacing file", "path", path, "type", shareddir.TypeName(info.Mode()))
		})
	}
}

// remedy adds the configuration's remedy to an error that names another process.
func remedy(err error) error {
	if errors.As(err, new(*socket.TakenError)) {
		return fmt.Errorf("%w or set podResources.takeover to false", err)
	}
	return err
}

// takePath puts devmgrd's socket at the path, if it is not there.
func (t *Takeover) takePath() error {
	return t.settle(func() (bool, error) {
		done, err := t.takeOnce()
		if !done {
			t.pace.took(time.Now())
		}
		return done, err
	})
}

// settle repeats step until nothing is left to do. Each step begins with the names' files at that time: a name may come or go at
// any time.
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

// takeOnce is one step towards devmgrd's socket at the path. It is done when it finds the socket there.
func (t *Takeover) takeOnce() (done bool, err error) {
	// Another process may have removed the hidden name, mostly with the whole directory. A socket without a name cannot get
	// one again.
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
		return false, t.files.link(t.hidden, t.path) // never over a file that has come meanwhile
	case aside.who == noSocket:
		t.stray(t.theirs, aside.info)
		return false, t.files.remove(t.theirs)
	case at.who != liveSocket && aside.who == liveSocket: // at the path: a dead socket or none
		return false, t.swap()
	case aside.is(at): // a rename of one to the other would change nothing
		return false, t.files.remove(t.theirs)
	}
	if at.who == noSocket {
		t.stray(t.path, at.info)
		if err := t.files.remove(t.theirs); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err // a rename does not replace a socket with a directory
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

// setMode sets the mode of the kubelet's socket on devmgrd's, so that the same processes may dial it. The mode is never wider
// than widestMode: another process may have put a socket with any mode at the path.
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

// leave returns the path to the kubelet and removes devmgrd's socket.
func (t *Takeover) leave() error {
	err := t.settle(t.giveBackOnce)
	if info, e := t.stat(t.hidden); e == nil && t.ours(info) {
		err = errors.Join(err, t.files.remove(t.hidden))
	}
	return err
}

// giveBackOnce is one step towards the kubelet's socket at the path, or an empty path if no kubelet listens. It is done when it
// finds that, and no file aside.
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
			return false, t.files.rename(t.path, t.theirs) // or another file that has come there meanwhile
		}
		return true, nil
	}
	switch { // aside is a live socket
	case at.who == nothing:
		return false, t.files.link(t.theirs, t.path)
	case aside.is(at):
		return false, t.files.remove(t.theirs)
	case at.who != liveSocket: // ours, dead or no socket
		return false, t.swap()
	}
	return true, nil // both stay
}

// swap exchanges the files at the path and aside: in one step, where the file system can. Where it cannot, a kubelet that has
// started since the look is out of reach between the first of three steps and the last.
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
		// Another process was faster. The file in between replaces the kubelet's only if it is a kubelet's itself.
		if seen, err := t.lookAt(between); err == nil && seen.who != liveSocket {
			return t.files.remove(between)
		}
	} else if err != nil {
		return err
	}
	err = t.files.rename(between, t.theirs)
	if errors.Is(err, unix.ENOTDIR) { // the file in between is a directory, which does no harm there
		return t.files.remove(between)
	}
	return err
}
