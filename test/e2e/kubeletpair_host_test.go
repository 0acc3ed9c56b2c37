//go:build e2e

package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The host's side of what plugins grant.
const vendor = "/run/vendor"

// makeHost makes the files that the plugins grant.
func makeHost(t *testing.T) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(vendor); err != nil {
			t.Error(err)
		}
		if err := os.Remove(cdiFile); err != nil {
			t.Error(err)
		}
	})
	makeDev := func(name string, kind, mode uint32, major, minor uint32) {
		t.Helper()
		path := filepath.Join(vendor, name)
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(unix.Mknod(path, kind|mode, int(unix.Mkdev(major, minor))))
		must(unix.Chmod(path, mode))
	}
	makeDev("gpu0", unix.S_IFCHR, 0o640, 10, 237) // the loop devices' control node: no default rule allows it
	makeDev("gpu1", unix.S_IFCHR, 0o1626, 10, 229)
	must(os.Chown(filepath.Join(vendor, "gpu1"), 44, 105))
	makeDev("disk0", unix.S_IFBLK, 0o660, 7, 0)
	makeDev("dev/null", unix.S_IFCHR, 0o666, 1, 3) // a whole /dev
	for _, name := range []string{"a", "console", "sub/b", "sub/console/c", "pts/d", "shm/e", "fd/f", "mqueue/g", ".lxc/h", ".lxd-mounts/i", ".udev/j"} {
		makeDev("all/"+name, unix.S_IFCHR, 0o600, 10, 229)
	}
	makeDev("all/disk", unix.S_IFBLK, 0o600, 7, 0)
	makeDev("all/fifo", unix.S_IFIFO, 0o600, 0, 0)
	must(os.WriteFile(filepath.Join(vendor, "all/file"), nil, 0o600))
	must(os.MkdirAll(filepath.Join(vendor, "driver/lib"), 0o755))
	must(os.WriteFile(filepath.Join(vendor, "driver/lib/lib.so"), nil, 0o644))
	must(os.WriteFile(filepath.Join(vendor, "file"), nil, 0o644))
	must(os.Mkdir(filepath.Join(vendor, "secret"), 0o700)) // of the host's root alone
	must(os.WriteFile(filepath.Join(vendor, "secret/file"), nil, 0o600))
	for name, to := range map[string]string{
		"link": "gpu0", "all-link": "all", "driver-link": "driver", "all/to-a": "a", "all/to-sub": "sub",
	} {
		must(os.Symlink(to, filepath.Join(vendor, name)))
	}
	must(os.MkdirAll(filepath.Dir(cdiFile), 0o755))
	must(os.WriteFile(cdiFile, []byte(cdiText), 0o644))
}
