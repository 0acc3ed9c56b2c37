package store

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// takeLock takes the lock at path and writes devmgrd's pid into it, or reports the process that has the lock. The lock holds
// even if the pid cannot be written or the file is read-only. It keeps a second devmgrd away until the file is closed: the kernel does that at
// any exit. The file stays: after its removal two processes could lock two files of one name.
func takeLock(path string) (*os.File, error) {
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
	_ = f.Truncate(int64(n)) // after the write, so that a full disk still has space for the new pid: the old one is as long
	return f, nil
}
