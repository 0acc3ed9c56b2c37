// Package hostcheckstest mounts file systems that never answer, for tests.
package hostcheckstest

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// HungMount returns the directory of a file system that never answers, until the test has ended.
func HungMount(t testing.TB) string {
	t.Helper()
	plugintest.NeedRoot(t)
	dir := t.TempDir()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		err = unix.Mount("hung", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", f.Fd()))
	}
	if err != nil {
		t.Fatalf("mounting a file system of FUSE (modprobe fuse): %v", err)
	}
	t.Cleanup(func() { // which ends the checks
		if err := errors.Join(f.Close(), unix.Unmount(dir, unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	})
	return dir
}
