package store

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A lock keeps a second devmgrd away for as long as this process lives, however it ends: the kernel drops it.
type lock struct{ file *os.File }

// takeLock takes the lock at path and notes our pid in it, or says who has it. The note may fail, and the file may be one
// that cannot be written: the lock holds all the same.
func takeLock(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, unix.EROFS) {
		f, err = os.Open(path)
	}
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
	note := []byte(strconv.Itoa(os.Getpid()) + "\n")
	n, _ := f.WriteAt(note, 0)
	_ = f.Truncate(int64(n)) // after it, so that a full disk has room for it: the note before was as long
	return &lock{f}, nil
}

// release returns the lock back. The file stays: removing it would let two processes lock two files of one name.
func (l *lock) release() error { return l.file.Close() }
