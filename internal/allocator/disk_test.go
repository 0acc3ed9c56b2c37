package allocator_test

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// On a full disk pods wait, and nothing is published that is not on disk. When there is space again they are served without
// intervention.
func TestAFullDisk(t *testing.T) {
	plugintest.NeedRoot(t)
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		filler := filepath.Join(r.dir, "filler")
		f, err := os.Create(filler)
		for err == nil {
			_, err = f.Write(make([]byte, 4096))
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		large := app(gpu, 1)
		large.Env = []string{strings.Repeat("X", 100<<10)} // it does not fit in where there was something else
		for _, name := range []string{"b", "c"} {
			r.bind(name, large)
		}
		for range 5 {
			r.after(20 * time.Second)
			r.expect("a", "main", "ready vendor.com/gpu[d0]")
			for _, name := range []string{"b", "c"} {
				if got := r.stands(name, "main"); got != "waiting StoreUnavailable" && got != "busy Allocating" {
					t.Errorf("%s stands %q", name, got)
				}
			}
			if onDisk, err := podsOnDisk(r.store); err != nil || len(onDisk) != 1 || !reflect.DeepEqual(onDisk[0].Demand.Pod.UID, device.PodUID("a")) {
				t.Errorf("on disk are %+v, %v", onDisk, err)
			}
			if r.store.Check() == nil {
				t.Error("the store says that all is well")
			}
			r.check()
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		r.after(time.Minute)
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.expect("c", "main", "ready vendor.com/gpu[d2]")
		r.check()
		r.restart()
		r.expect("c", "main", "ready vendor.com/gpu[d2]")
	}, func(r *harness) {
		if err := unix.Mount("none", r.dir, "tmpfs", 0, "size=1m"); err != nil {
			r.t.Fatalf("mounting a tmpfs: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(r.dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	})
}

// The commit that forgets the pod has failed, and is in the state file all the same.
func TestDisk_PodReturnsAfterFailedRelease_RecordIsSavedAgain(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.disk.failsLate(errSync)
		r.Drop("a")
		r.check()
		r.disk.failsLate(nil)
		r.bind("a", app(gpu, 1))
		r.after(time.Minute)
		r.check()
		r.restart()
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expectAsked("a/main vendor.com/gpu [d0]")
	})
}
