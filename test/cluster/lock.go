package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// errLocked says that another process holds the lock.
var errLocked = errors.New("locked by another process")

// tryLock takes an exclusive lock that lasts until the returned file is closed. The kernel drops it when its holder
// dies.
func tryLock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
	if err == nil {
		return f, nil
	}
	f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		err = errLocked
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// locked reports whether a process holds the lock. It neither takes the lock, not even for a moment, nor makes its file.
func locked(path string) bool {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	query := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &query)
	return err == nil && query.Type != unix.F_UNLCK
}

// lock is tryLock that waits for the other process; waiting is called once, when there is something to wait for.
func lock(ctx context.Context, path string, waiting func()) (*os.File, error) {
	f, err := tryLock(path)
	if !errors.Is(err, errLocked) {
		return f, err
	}
	waiting()
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		f, err = tryLock(path)
		if errors.Is(err, errLocked) {
			return false, nil
		}
		return err == nil, err
	})
	return f, err
}
