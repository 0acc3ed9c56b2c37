package nri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
)

// hungMount mounts a file system that never answers, until the test has ended.
func hungMount(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err == nil {
		err = unix.Mount("hung", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", f.Fd()))
	}
	if err != nil {
		t.Skipf("NOT CHECKED: a file system that hangs; mounting one takes root and FUSE: %v", err)
	}
	t.Cleanup(func() { // which ends the looks
		if err := errors.Join(f.Close(), unix.Unmount(dir, unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func granted(g device.Grant) device.Readiness {
	st := ready()
	st.Assignment.Shares[0].Grant = g
	return st
}

// create asks the hook about a container, with so much time.
func create(p *plugin, w *harness, st device.Readiness, limit time.Duration) error {
	w.set(st)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	_, _, err := p.CreateContainer(ctx, sandbox(), container())
	return err
}

func TestHungFileSystem_CostsItsContainersOnly(t *testing.T) {
	t.Parallel()
	dir := hungMount(t)
	p, w := newPlugin(t)
	well := granted(device.Grant{Nodes: []device.Node{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "rw"}}})
	hung := []device.Readiness{
		granted(device.Grant{Mounts: []device.Mount{{HostPath: dir + "/libs", ContainerPath: "/libs"}}}),
		granted(device.Grant{Nodes: []device.Node{{HostPath: dir + "/gpu", ContainerPath: "/dev/x", Permissions: "rw"}}}),
		granted(device.Grant{Nodes: []device.Node{{HostPath: dir + "/gpu", ContainerPath: "/dev/y", Permissions: "r"}}}),
	}
	for try := range maxHostChecks { // the kubelet tries a container each 10 to 15 s: this is an hour
		st := hung[try%len(hung)]
		source := dir + map[int]string{0: "/libs", 1: "/gpu", 2: "/gpu"}[try%len(hung)]
		err := create(p, w, st, 4*time.Millisecond) // stands for the runtime's 2 s
		var no *device.Refusal
		if !errors.As(err, &no) || no.Reason != device.HostDeviceMissing || !strings.Contains(err.Error(), "does not answer about") || !strings.Contains(err.Error(), source) {
			t.Fatalf("%v, want that %s does not answer", err, source)
		}
	}
	if n := len(p.hostChecks.underway); n != 2 {
		t.Errorf("%d looks are under way, want one for each source", n)
	}
	if err := create(p, w, well, time.Minute); err != nil {
		t.Errorf("another container, with nothing but /dev/null: %v", err)
	}
	if w.claims != 1 {
		t.Errorf("%d containers count as living, want 1", w.claims)
	}
}

func TestHostCheck_SameSource_IsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, answer, asked := newLooks(), make(chan string), 0
		ask := func(ctx context.Context) (string, error) {
			return checkHost(ctx, l, "mount source", "/x", func() (string, error) { asked++; return <-answer, nil })
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range 3 {
			if _, err := ask(over); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "mount source /x") {
				t.Errorf("%v, want that time is over", err)
			}
		}
		for i, want := range []string{"found", "again"} { // what was found is not remembered
			go func() {
				synctest.Wait() // until all wait for the answer
				answer <- want
			}()
			if found, err := ask(t.Context()); found != want || err != nil || asked != i+1 {
				t.Errorf("%q, %v after %d questions", found, err, asked)
			}
		}
	})
}

func TestHostChecks_AreBounded(t *testing.T) {
	t.Parallel()
	l, end := newLooks(), make(chan struct{})
	defer close(end)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for i := range maxHostChecks {
		checkHost(over, l, "device", filepath.Join("/hung", fmt.Sprint(i)), func() (int, error) { <-end; return 0, nil })
	}
	_, err := checkHost(t.Context(), l, "device", "/dev/null", func() (int, error) { return 0, nil })
	if err == nil || !strings.Contains(err.Error(), "device /dev/null cannot be checked: 256 other sources") {
		t.Errorf("%v, want that there are too many", err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error("it counts as a device that the host lacks")
	}
}

func TestHostCheck_Panic_IsAnError(t *testing.T) {
	t.Parallel()
	l := newLooks()
	if _, err := checkHost(t.Context(), l, "device", "/x", func() (int, error) { panic("oh") }); err == nil || !strings.Contains(err.Error(), "internal error: oh") {
		t.Errorf("%v, want the panic", err)
	}
	if len(l.underway) > 0 {
		t.Error("the look is under way still")
	}
}
