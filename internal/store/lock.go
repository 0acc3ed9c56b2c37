package store

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A lock keeps a second devmgrd away for as long as this process lives, however it ends: the kernel drops it.
type lock struct{ file *os.File }

// takeLock takes the lock at path and notes our pid in it, or says who has it.
func takeLock(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if err != unix.EWOULDBLOCK {
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		note := make([]byte, 32)
		n, _ := f.ReadAt(note, 0)
		pid, _ := strconv.Atoi(strings.TrimSpace(string(note[:n])))
		return nil, &LockedError{Path: path, PID: pid}
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("noting the pid in %s: %w", path, err)
	}
	return &lock{f}, nil
}

// release gives the lock back. The file stays: removing it would let two processes lock two files of one name.
func (l *lock) release() error { return l.file.Close() }
