// Package tempdir puts the temporary directories of tests into memory. A test whose subject is not the disk does not wait for the
// disk's fsync.
package tempdir

import (
	"os"

	"golang.org/x/sys/unix"
)

const (
	memory   = "/dev/shm" // a tmpfs on Linux
	leastMiB = 512        // free, or the directories stay on the disk
)

// InMemory makes t.TempDir and os.MkdirTemp of this process and its children use a tmpfs, if the machine has one with room. It is
// for TestMain.
func InMemory() {
	var fs unix.Statfs_t
	if unix.Statfs(memory, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize)>>20 >= leastMiB {
		os.Setenv("TMPDIR", memory)
	}
}
