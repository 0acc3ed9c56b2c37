package nri

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// null is what every Linux host has at /dev/null.
func isNull(n node) bool { return n.kind == "c" && n.major == 1 && n.minor == 3 && n.mode == 0o666 }

func TestNodesOfAPathALinkAndADirectory(t *testing.T) {
	link := filepath.Join(t.TempDir(), "gpu0")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/dev/null", link} {
		got, err := nodes(context.Background(), device.Node{HostPath: path, ContainerPath: "/dev/gpu", Permissions: "rw"})
		if err != nil || len(got) != 1 || got[0].path != "/dev/gpu" || got[0].permissions != "rw" || !isNull(got[0]) {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	got, err := nodes(context.Background(), device.Node{HostPath: "/dev", ContainerPath: "/host", Permissions: "r"})
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

func TestWhatIsMissingOnTheHostIsARefusal(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "none"), file} {
		_, err := nodes(context.Background(), device.Node{HostPath: path, ContainerPath: "/dev/x", Permissions: "rw"})
		var no *device.Refusal
		if !errors.As(err, &no) || no.Reason != device.HostDeviceMissing || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A directory that is too large to look through in a hook is refused, and so is one that takes too long.
func TestADirectoryThatIsTooLarge(t *testing.T) {
	dir := t.TempDir()
	for i := range maxEntries {
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := nodes(context.Background(), device.Node{HostPath: dir, ContainerPath: "/x"}); err == nil || !strings.Contains(err.Error(), "more than 4096") {
		t.Errorf("%v, want that there are too many files", err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := nodes(over, device.Node{HostPath: dir, ContainerPath: "/x"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that time is over", err)
	}
}

func TestAMountSourceThatIsMissingIsMade(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "real"), link); err != nil {
		t.Fatal(err)
	}
	want := filepath.Join(dir, "real", "deep")
	if got, err := source(device.Mount{HostPath: want}); err != nil || got != want {
		t.Fatalf("source(%s) = %s, %v", want, got, err)
	}
	if got, err := source(device.Mount{HostPath: filepath.Join(link, "deep")}); err != nil || got != want {
		t.Errorf("through a link: %s, %v; want %s", got, err, want)
	}
}
