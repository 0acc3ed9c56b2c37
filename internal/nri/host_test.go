package nri

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// null is what every Linux host has at /dev/null.
func isNull(n node) bool { return n.kind == "c" && n.major == 1 && n.minor == 3 && n.mode == 0o666 }

// nodes returns what a container gets for a grant.
func nodes(n device.Node) ([]node, error) {
	found, err := hostDevicesAt(n.HostPath)
	return found.granted(n), err
}

func TestHostNodes_FileLinkDirectory(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "gpu0")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/dev/null", link} {
		got, err := nodes(device.Node{HostPath: path, ContainerPath: "/dev/gpu", Permissions: "rw"})
		if err != nil || len(got) != 1 || got[0].path != "/dev/gpu" || got[0].permissions != "rw" || !isNull(got[0]) {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	got, err := nodes(device.Node{HostPath: "/dev", ContainerPath: "/host", Permissions: "r"})
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(got, func(n node) bool { return n.path == "/host/null" }); i < 0 || !isNull(got[i]) {
		t.Errorf("/dev has no null: %+v", got)
	}
	for _, n := range got {
		if strings.HasPrefix(n.path, "/host/pts/") || n.path == "/host/console" || n.path == "/host/stdin" {
			t.Errorf("%s is no device of the host's", n.path)
		}
	}
}

// Without a place in the container, a device is where it is on the host, and a link's is where it leads to.
func TestHostNodes_NoContainerPath_TakeTheHostPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link, deep := filepath.Join(dir, "gpu0"), filepath.Join(dir, "dev", "null")
	for from, to := range map[string]string{link: "/dev/null", filepath.Join(dir, "dev"): "/dev"} {
		if err := os.Symlink(to, from); err != nil {
			t.Fatal(err)
		}
	}
	for host, want := range map[string]string{"/dev/null": "/dev/null", link: "/dev/null", deep: deep} {
		got, err := nodes(device.Node{HostPath: host, Permissions: "rw"})
		if err != nil || len(got) != 1 || got[0].path != want || !isNull(got[0]) {
			t.Errorf("%s: %+v, %v; want it at %s", host, got, err, want)
		}
	}
	got, err := nodes(device.Node{HostPath: filepath.Join(dir, "dev"), Permissions: "rw"})
	if err != nil || !slices.ContainsFunc(got, func(n node) bool { return n.path == "/dev/null" }) {
		t.Errorf("a link to /dev: %+v, %v", got, err)
	}
}

// All bits of a node's mode count, not only who may read and write.
func TestHostNodes_FileMode(t *testing.T) {
	plugintest.NeedRoot(t)
	t.Parallel()
	path := filepath.Join(t.TempDir(), "gpu0")
	if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
		t.Fatalf("making a device node: %v", err)
	}
	if err := unix.Chmod(path, 0o3626); err != nil {
		t.Fatal(err)
	}
	got, err := nodes(device.Node{HostPath: path, ContainerPath: "/dev/gpu", Permissions: "rw"})
	if err != nil || len(got) != 1 || got[0].mode != 0o3626 {
		t.Errorf("%+v, %v; want the mode 03626", got, err)
	}
}

func TestHost_MissingPath_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "none"), file} {
		_, err := nodes(device.Node{HostPath: path, ContainerPath: "/dev/x", Permissions: "rw"})
		var no *device.Refusal
		if !errors.As(err, &no) || no.Reason != device.HostDeviceMissing || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A directory that is too large to look through in a hook is refused.
func TestHost_DirectoryTooLarge_IsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range maxEntries {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := nodes(device.Node{HostPath: dir, ContainerPath: "/x"}); err == nil || !strings.Contains(err.Error(), "more than 4096") {
		t.Errorf("%v, want that there are too many files", err)
	}
}

func TestHost_MissingMountSource_IsCreated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "real"), link); err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(dir, "real", "deep")
	if got, err := sourceAt(want); err != nil || got != want {
		t.Fatalf("sourceAt(%s) = %s, %v", want, got, err)
	}
	if got, err := sourceAt(filepath.Join(link, "deep")); err != nil || got != want {
		t.Errorf("through a link: %s, %v; want %s", got, err, want)
	}
}
