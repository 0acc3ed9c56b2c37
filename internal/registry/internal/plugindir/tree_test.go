package plugindir_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry/internal/plugindir"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

var pod = device.Pod{UID: "8f2b1c3d-0000-4000-8000-123456789abc", Namespace: "kube-system", Name: "gpu-plugin-x7k2p"}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// Plugins of all users reach their own directories, and none reaches the directories above.
func TestMake(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	root := filepath.Join(t.TempDir(), "run", "plugins")
	tree := plugindir.At(root)
	dir, err := tree.Make(pod)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(root, string(pod.UID)); dir.Owner != pod || dir.Sockets != want+"/device-plugins" || dir.Registry != want+"/plugins_registry" {
		t.Errorf("made %+v", dir)
	}
	for path, mode := range map[string]fs.FileMode{root: 0o700, filepath.Dir(dir.Sockets): 0o700, dir.Sockets: 0o755, dir.Registry: 0o755} {
		if info, err := os.Stat(path); err != nil || info.Mode() != fs.ModeDir|mode {
			t.Errorf("%s has mode %v, want %v (%v)", path, info.Mode(), mode, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir.Sockets, "gpu.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := tree.Make(pod); err != nil || again.Sockets != dir.Sockets || !slices.Equal(names(t, dir.Sockets), []string{"gpu.sock"}) {
		t.Errorf("made again: %+v, %v; it holds %q", again, err, names(t, dir.Sockets))
	}
}

func TestMakeFails(t *testing.T) {
	root := t.TempDir()
	tree := plugindir.At(root)
	for _, uid := range []device.PodUID{"", ".", "..", "../x", "-x", "a/b", "a\x00b", ".hidden", device.PodUID(strings.Repeat("u", 129))} {
		if dir, err := tree.Make(device.Pod{UID: uid, Name: "p"}); err == nil {
			t.Errorf("UID %q: made %+v", uid, dir)
		}
	}
	if _, err := tree.Make(device.Pod{UID: "u", Name: strings.Repeat("n", 5000)}); err == nil {
		t.Error("a name that could not be read again is taken")
	}
	if got, err := tree.Known(); err != nil || len(got) != 0 {
		t.Errorf("known are %+v, %v", got, err)
	}
	if left := names(t, root); len(left) != 0 {
		t.Errorf("left are %q", left)
	}
}

// What is complete is known again. What is not goes, links without being followed.
func TestKnown(t *testing.T) {
	root := filepath.Join(t.TempDir(), "plugins")
	tree := plugindir.At(root)
	if got, err := tree.Known(); err != nil || len(got) != 0 {
		t.Fatalf("of an empty tree: %+v, %v", got, err)
	}
	want, err := tree.Make(pod)
	if err != nil {
		t.Fatal(err)
	}
	precious := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "begun", "device-plugins"), 0o700),
		os.MkdirAll(filepath.Join(root, "other"), 0o700),
		os.WriteFile(filepath.Join(root, "other", "owner.json"), []byte(`{"uid":"another"}`), 0o600),
		os.MkdirAll(filepath.Join(root, "damaged"), 0o700),
		os.WriteFile(filepath.Join(root, "damaged", "owner.json"), []byte(`{`), 0o600),
		os.WriteFile(filepath.Join(root, "file"), nil, 0o600),
		os.WriteFile(filepath.Join(precious, "f"), nil, 0o600),
		os.Symlink(precious, filepath.Join(root, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := tree.Known()
	if err != nil || len(got) != 1 || got[0].Owner != pod || got[0].Sockets != want.Sockets {
		t.Errorf("known are %+v, %v", got, err)
	}
	if left := names(t, root); !slices.Equal(left, []string{string(pod.UID)}) {
		t.Errorf("left are %q", left)
	}
	if left := names(t, precious); len(left) != 1 {
		t.Error("a link was followed")
	}
}

// What cannot be read now may be a running plugin's: it stays.
func TestKnown_CannotBeRead_Stays(t *testing.T) {
	root := t.TempDir()
	tree := plugindir.At(root)
	if _, err := tree.Make(pod); err != nil {
		t.Fatal(err)
	}
	owner := filepath.Join(root, string(pod.UID), "owner.json")
	if err := errors.Join(os.Rename(owner, owner+".old"), os.Mkdir(owner, 0o700)); err != nil {
		t.Fatal(err)
	}
	if got, err := tree.Known(); err == nil || len(got) != 0 {
		t.Errorf("known are %+v, %v", got, err)
	}
	if err := errors.Join(os.Remove(owner), os.Rename(owner+".old", owner)); err != nil {
		t.Fatal(err)
	}
	if got, err := tree.Known(); err != nil || len(got) != 1 {
		t.Errorf("known are %+v, %v", got, err)
	}
}

// A pod leaves trees that are deeper than a process has descriptors, and directories that may not be written. devmgrd removes them
// without the capability to write everything.
func TestRemove_HostileTree(t *testing.T) {
	plugintest.StartAttack(t, "TestRemoveWithoutCapabilities", 1, "TREE="+t.TempDir()).Wait()
}

// TestRemoveWithoutCapabilities is no test, but the process that TestRemove_HostileTree starts.
func TestRemoveWithoutCapabilities(t *testing.T) {
	plugintest.Attacking(t)
	root := os.Getenv("TREE")
	tree := plugindir.At(root)
	dir, err := tree.Make(pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 64, Max: 64}); err != nil {
		t.Fatal(err)
	}
	at, err := syscall.Open(dir.Sockets, syscall.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		if err := syscall.Mkdirat(at, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := syscall.Openat(at, "d", syscall.O_DIRECTORY, 0)
		syscall.Close(at)
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	syscall.Close(at)
	locked := filepath.Join(dir.Registry, "a")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(locked, "b"), 0o700), os.WriteFile(filepath.Join(locked, "b", "f"), nil, 0o600),
		os.Chmod(filepath.Join(locked, "b"), 0o500), os.Chmod(locked, 0o500), os.Chmod(dir.Registry, 0o500), os.Chmod(dir.Sockets, 0o500),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3000 {
		if err := os.WriteFile(filepath.Join(filepath.Dir(dir.Registry), fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.Remove(pod.UID); err != nil {
		t.Error(err)
	}
	if left := names(t, root); len(left) != 0 {
		t.Errorf("left are %q", left)
	}
}

func TestRemove(t *testing.T) {
	root := t.TempDir()
	tree := plugindir.At(root)
	dir, err := tree.Make(pod)
	if err != nil {
		t.Fatal(err)
	}
	precious := t.TempDir()
	for _, err := range []error{
		os.WriteFile(filepath.Join(precious, "f"), nil, 0o600),
		os.Symlink(precious, filepath.Join(dir.Sockets, "link")),
		os.MkdirAll(filepath.Join(dir.Registry, "a", "b"), 0o700),
		tree.Remove(pod.UID),
		tree.Remove(pod.UID), // which is gone
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if left := names(t, root); len(left) != 0 {
		t.Errorf("left are %q", left)
	}
	if left := names(t, precious); len(left) != 1 {
		t.Error("a link was followed")
	}
}
