package podresources

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/socket"
)

// bind makes our socket, under its hidden name. It fails if another devmgrd has one there.
func (t *takeover) bind() error {
	dir := filepath.Dir(t.path)
	if err := socket.CheckPath(t.theirs); err != nil {
		return err
	}
	if _, err := socket.MakeDir(dir, takeoverDir); err != nil {
		return err
	}
	if err := socket.Vacant(t.hidden); err != nil {
		return takeoverRemedy(err)
	}
	l, info, err := socket.Listen(t.hidden, filepath.Join(dir, ".devmgrd.new"), t.mode)
	if err != nil {
		return err
	}
	t.own = info
	return t.listener.replace(l)
}

// takeoverRemedy adds to what can be done what the configuration has to offer.
func takeoverRemedy(err error) error {
	if errors.As(err, new(*socket.TakenError)) {
		return fmt.Errorf("%w or set podResources.takeover to false", err)
	}
	return err
}

// takePath makes the path ours, if it is not.
func (t *takeover) takePath() error {
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
func (t *takeover) settle(step func() (done bool, err error)) error {
	var last error
	for range 10 {
		done, err := step()
		switch {
		case done:
			return nil
		case err != nil && !errors.Is(err, fs.ErrExist) && !errors.Is(err, fs.ErrNotExist):
			return takeoverRemedy(err)
		}
		last = err
	}
	if last != nil {
		return last
	}
	return fmt.Errorf("somebody else takes %s all the time; stop them or set podResources.takeover to false", t.path)
}

// takeOnce is one step towards a path that is ours. It is done when it finds it so.
func (t *takeover) takeOnce() (done bool, err error) {
	// Somebody may have removed our socket's hidden name, mostly with the whole directory. Without a name it gets none again.
	if info, err := os.Lstat(t.hidden); err != nil || !t.ours(info) {
		if err := t.bind(); err != nil {
			return false, err
		}
	}
	at, aside, err := t.lookAtBoth()
	switch {
	case err != nil:
		return false, err
	case at.who == takeoverOurs:
		return true, nil
	case at.who == takeoverNobody:
		return false, t.files.link(t.hidden, t.path) // never over what has come meanwhile
	case at.who == takeoverOther:
		return false, &socket.TakenError{Path: t.path}
	case aside.who == takeoverOther:
		return false, &socket.TakenError{Path: t.theirs}
	case at.who == takeoverDead && aside.who == takeoverLive:
		return false, t.swap()
	case aside.is(at): // to rename one to the other would do nothing
		return false, t.files.remove(t.theirs)
	}
	if mode := at.info.Mode().Perm(); mode != t.mode {
		if err := os.Chmod(t.hidden, mode); err != nil {
			return false, err
		}
		t.mode = mode
	}
	if err := t.files.rename(t.path, t.theirs); err != nil {
		return false, err
	}
	if err := t.files.link(t.hidden, t.path); err != nil {
		return false, err
	}
	if at.who == takeoverLive {
		t.log.Info("the kubelet's PodResources socket is taken over", "path", t.path, "kubelet", t.theirs)
		return false, nil
	}
	if aside, err = t.lookAt(t.theirs); err != nil || aside.who != takeoverDead {
		return false, err
	}
	return false, t.files.remove(t.theirs)
}

// leave gives the path back and removes what is ours.
func (t *takeover) leave() error {
	err := t.settle(t.giveBackOnce)
	if info, e := os.Lstat(t.hidden); e == nil && t.ours(info) {
		err = errors.Join(err, t.files.remove(t.hidden))
	}
	return err
}

// giveBackOnce is one step towards a path that is the kubelet's if somebody listens on its socket, and else nobody's. It is
// done when it finds it so, and nothing aside.
func (t *takeover) giveBackOnce() (done bool, err error) {
	at, aside, err := t.lookAtBoth()
	if err != nil {
		return false, err
	}
	switch aside.who {
	case takeoverOurs, takeoverDead:
		return false, t.files.remove(t.theirs)
	case takeoverNobody:
		if at.who == takeoverOurs {
			return false, t.files.rename(t.path, t.theirs) // or whatever is there by now
		}
		return true, nil
	case takeoverOther:
		if at.who == takeoverOurs {
			return false, &socket.TakenError{Path: t.theirs}
		}
		return true, nil
	}
	switch { // somebody listens aside
	case at.who == takeoverNobody:
		return false, t.files.link(t.theirs, t.path)
	case aside.is(at):
		return false, t.files.remove(t.theirs)
	case at.who == takeoverOurs || at.who == takeoverDead:
		return false, t.swap()
	}
	return true, nil // both stay
}

// swap exchanges what is at the path and aside: in one step, where the file system can. Where it cannot, a kubelet that has
// started since we looked can be reached nowhere between the first of three steps and the last.
func (t *takeover) swap() error {
	err := t.files.exchange(t.theirs, t.path)
	if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	between := filepath.Join(filepath.Dir(t.path), ".devmgrd.swap")
	if err := t.files.rename(t.path, between); err != nil {
		return err
	}
	if err := t.files.link(t.theirs, t.path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return t.files.rename(between, t.theirs)
}

// takeoverFiles is how names are changed.
type takeoverFiles struct {
	link, rename, exchange func(from, to string) error
	remove                 func(name string) error
}

func newTakeoverFiles() takeoverFiles {
	return takeoverFiles{link: os.Link, rename: os.Rename, remove: os.Remove, exchange: func(a, b string) error {
		return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	}}
}

// A takeoverSeen is what was seen at a name.
type takeoverSeen struct {
	who  takeoverWho
	info os.FileInfo // nil: nothing
}

// A takeoverWho says who is at a name.
type takeoverWho int

const (
	takeoverNobody takeoverWho = iota // nothing is there
	takeoverOurs                      // our socket
	takeoverLive                      // a socket on which somebody else listens: the kubelet
	takeoverDead                      // one on which nobody does, whosever it was
	takeoverOther                     // no socket
)

// is tells whether two names are of one file.
func (s takeoverSeen) is(other takeoverSeen) bool {
	return s.info != nil && other.info != nil && socket.Same(s.info, other.info)
}

func (t *takeover) lookAtBoth() (at, aside takeoverSeen, err error) {
	if at, err = t.lookAt(t.path); err == nil {
		aside, err = t.lookAt(t.theirs)
	}
	return at, aside, err
}

// lookAt tells who is at a name.
func (t *takeover) lookAt(name string) (takeoverSeen, error) {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return takeoverSeen{who: takeoverNobody}, nil
	case err != nil:
		return takeoverSeen{}, err
	case t.ours(info):
		return takeoverSeen{takeoverOurs, info}, nil
	}
	var taken *socket.TakenError
	switch err := socket.Vacant(name); {
	case err == nil:
		return takeoverSeen{takeoverDead, info}, nil
	case !errors.As(err, &taken):
		return takeoverSeen{}, err
	case taken.Live:
		return takeoverSeen{takeoverLive, info}, nil
	}
	return takeoverSeen{takeoverOther, info}, nil
}

// ours tells whether a file is our socket, under whatever name.
func (t *takeover) ours(info os.FileInfo) bool { return t.own != nil && socket.Same(t.own, info) }
