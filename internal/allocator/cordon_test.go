package allocator_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// cordon returns cordons of gpu's devices.
func cordon(reason string, ids ...device.ID) (all []device.Cordon) {
	for _, id := range ids {
		all = append(all, device.Cordon{Resource: gpu, ID: id, Reason: reason, Since: time.Now().UTC()})
	}
	return all
}

// One of four devices is cordoned: its pod keeps it, no pod gets it afterwards, and the capacity follows.
func TestCordon(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 4)
		r.bind("holder", app(gpu, 1))
		held, err := r.Cordon(cordon("fan", "d0", "d1"))
		if err != nil || len(held) != 1 || held[0].ID != "d0" {
			t.Fatalf("held: %v, %v", held, err)
		}
		r.published(numbers{gpu: 3}) // d0 is in use, d2 and d3 are usable
		r.expect("holder", "main", "ready vendor.com/gpu[d0]")
		r.bind("a", app(gpu, 2))
		r.expect("a", "main", "ready vendor.com/gpu[d2 d3]")
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting NotEnoughDevices")
		if got, want := r.PodByUID("b").Wait.Message, "vendor.com/gpu: 1 wanted, 0 of 4 free, 1 cordoned"; got != want {
			t.Errorf("b waits with %q, want %q", got, want)
		}
		if n := r.metric("devmgrd_devices", string(gpu), "cordoned"); n != 1 {
			t.Errorf("%v devices are counted as cordoned, want 1: the other one is in use", n)
		}
		r.Drop("holder")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.published(numbers{gpu: 2}) // a has two
		r.Drop("b")
		r.published(numbers{gpu: 2})

		// The cordon survives restarts of devmgrd and of the plugin, which may list other devices meanwhile.
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 2))
		r.plugins.stock(gpu, 0)
		r.plugins.stock(gpu, 4)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting NotEnoughDevices")

		lifted, err := r.Uncordon(cordon("", "d0", "d3"))
		if err != nil || len(lifted) != 1 || lifted[0].ID != "d0" || lifted[0].Reason != "fan" {
			t.Errorf("lifted: %v, %v", lifted, err)
		}
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
		r.published(numbers{gpu: 3})
	})
}

// Cordon does all or nothing, and rejects a mistyped name.
func TestCordonOfNothing(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("plain")
		for _, change := range []func([]device.Cordon) ([]device.Cordon, error){r.Cordon, r.Uncordon} {
			var unknown *device.UnknownDeviceError
			if _, err := change(cordon("", "d9")); !errors.As(err, &unknown) || unknown.Error() != "there is no device d9 of vendor.com/gpu" {
				t.Errorf("%v", err)
			}
		}
		if _, err := r.Cordon(cordon("", "d0", "d9")); err == nil {
			t.Error("one of two is unknown, and that is no error")
		}
		r.published(numbers{gpu: 2})
	})
}

// A cordon that is not on disk does not count.
func TestCordonOnADiskThatFails(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("plain")
		r.disk.fails(func() {})
		if _, err := r.Cordon(cordon("", "d0")); !errors.As(err, new(*device.UnsavedError)) {
			t.Errorf("a cordon is not known to be written: %v", err)
		}
		r.published(numbers{gpu: 2})
		r.disk.fails(nil)
		if _, err := r.Cordon(cordon("", "d0")); err != nil {
			t.Fatal(err)
		}
		r.disk.fails(func() {})
		if _, err := r.Uncordon(cordon("", "d0")); !errors.As(err, new(*device.UnsavedError)) {
			t.Errorf("the end of a cordon is not known to be written: %v", err)
		}
		r.published(numbers{gpu: 1})
	})
}

// One unknown device among known ones is a mistake, and none is uncordoned.
func TestUncordonOfSomeUnknown(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("plain")
		if _, err := r.Cordon(cordon("", "d0")); err != nil {
			t.Fatal(err)
		}
		r.published(numbers{gpu: 1})
		if lifted, err := r.Uncordon(cordon("", "d0", "d9")); err == nil {
			t.Errorf("d9 is unknown, and %v is lifted without a word about that", lifted)
		}
		r.published(numbers{gpu: 1})
	})
}

// The Node's annotation and the commands cordon side by side: a device is in service when neither has a cordon of it.
func TestDeclareCordons(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 4)
		r.bind("plain")
		declare := func(cordons []device.Cordon) {
			t.Helper()
			if err := r.DeclareCordons(cordons); err != nil {
				t.Fatal(err)
			}
		}
		declare(cordon("git", "d0", "d1", "not listed yet"))
		r.published(numbers{gpu: 2})
		if _, err := r.Cordon(cordon("fan", "d1", "d2")); err != nil {
			t.Fatal(err)
		}
		r.published(numbers{gpu: 1})

		// A command cannot lift what is declared, and lifts nothing else then.
		var declared *device.DeclaredCordonError
		if _, err := r.Uncordon(cordon("", "d0", "d2")); !errors.As(err, &declared) || declared.ID != "d0" {
			t.Errorf("%v", err)
		}
		r.published(numbers{gpu: 1})
		if lifted, err := r.Uncordon(cordon("", "d1", "d2")); err != nil || len(lifted) != 2 {
			t.Errorf("lifted: %v, %v", lifted, err)
		}
		r.published(numbers{gpu: 2}) // d1 is declared still

		// Both survive a restart, and so does the time since when.
		since := func() (all []time.Time) {
			devices, _ := r.Devices(gpu)
			for _, d := range devices {
				if d.Cordon != nil {
					all = append(all, d.Cordon.Since)
				}
			}
			return all
		}
		before := since()
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.plugins.stock(gpu, 4)
		r.bind("plain")
		r.published(numbers{gpu: 2})
		declare(cordon("git", "d0", "d1", "not listed yet"))
		if after := since(); len(before) != 3 || !slices.EqualFunc(before, after, time.Time.Equal) {
			t.Errorf("cordoned since %v, and then %v", before, after)
		}
		declare(cordon("git", "d3"))
		r.published(numbers{gpu: 3})
		declare(nil)
		r.published(numbers{gpu: 4})
	})
}

func TestDeclareCordonsOnADiskThatFails(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("plain")
		r.disk.fails(func() {})
		if err := r.DeclareCordons(cordon("", "d0")); err == nil {
			t.Error("a cordon is accepted that is nowhere written")
		}
		r.published(numbers{gpu: 2})
	})
}
