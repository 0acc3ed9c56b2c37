package allocator_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

func examining(r *harness) { r.suspends, r.examines = true, true }

const bad = "health.command finds it unhealthy"

func TestExamined_Unhealthy_DeviceIsSuspendedUntilTheCommandAgrees(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		synctest.Wait()
		r.Examined(gpu, "d0", bad)
		r.expectSuspended(true)
		r.published(map[device.ResourceName]int{gpu: 2})
		r.bind("a", app(gpu, 3))
		r.expect("a", "main", "waiting NotEnoughDevices")
		if why, _ := r.suspendedDevice(); !strings.HasSuffix(why, "suspended by devmgrd: "+bad) {
			t.Error(why)
		}
		if ids := r.Examinable(gpu); !slices.Equal(ids, []device.ID{"d0", "d1", "d2"}) {
			t.Errorf("may be examined: %v", ids)
		}
		r.Examined(gpu, "d0", bad+", still") // another reason does not lift it for a moment
		r.expectSuspended(true)
		r.expect("a", "main", "waiting NotEnoughDevices")

		r.restart()
		r.plugins.stock(gpu, 3)
		r.after(100 * time.Hour) // it does not expire
		r.restart()
		r.expectSuspended(true)
		r.Examined(gpu, "d0", "")
		r.expectSuspended(false)
		r.expect("a", "main", "ready vendor.com/gpu[d0 d1 d2]")
		r.restart()
		r.expectSuspended(false)
	}, examining)
}

// The command and the plugin have one record: what fails by turns fails again and again.
func TestExamined_ThreeTimes_DeviceIsSuspendedForAnHour(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.falls(1)
		r.acts.take()
		for range 2 {
			r.Examined(gpu, "d0", bad)
			r.expectSuspended(true)
			r.Examined(gpu, "d0", "")
			synctest.Wait()
			r.after(time.Second)
		}
		r.expectSuspended(true)
		r.after(61 * time.Minute)
		r.expectSuspended(false)
		acts := r.acts.take()
		for i, want := range []string{
			"suspend vendor.com/gpu/d0: suspended by devmgrd: " + bad,
			"resume vendor.com/gpu/d0: ",
			"suspend vendor.com/gpu/d0: suspended by devmgrd until ",
			"resume vendor.com/gpu/d0: ",
		} {
			if len(acts) != 4 || !strings.HasPrefix(acts[min(i, len(acts)-1)], want) {
				t.Fatalf("recorded %q, want %q at %d", acts, want, i)
			}
		}
	}, examining)
}

// A pod's use and the command may disturb each other.
func TestExamined_DeviceInUse_IsNotJudged(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.Examined(gpu, "d0", bad)
		r.Examined(gpu, "unlisted", bad)
		r.expectSuspended(false)
		if ids := r.Examinable(gpu); !slices.Equal(ids, []device.ID{"d1"}) || r.MayExamine(gpu, "d0") || !r.MayExamine(gpu, "d1") || r.MayExamine(nic, "d1") {
			t.Errorf("may be examined: %v", ids)
		}
	}, examining)
}

func TestExamined_Uncordon_DeviceIsBackUntilTheNextRun(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		synctest.Wait()
		r.Examined(gpu, "d0", bad)
		r.expectSuspended(true)
		if _, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil {
			t.Error(err)
		}
		r.expectSuspended(false)
		r.Examined(gpu, "d0", bad)
		r.expectSuspended(true)
	}, examining)
}

// Without the command nothing would lift its objections.
func TestExamined_CommandIsGone_DeviceIsBack(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		synctest.Wait()
		r.Examined(gpu, "d0", bad)
		r.expectSuspended(true)
		r.examines = false
		r.restart()
		r.expectSuspended(false)
		r.examines = true
		r.restart()
		r.expectSuspended(false)
	}, examining)
}

// health.onFlapping: none switches the count off, and not the command.
func TestExamined_SuspensionsSwitchedOff_CommandCounts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		synctest.Wait()
		for range 4 {
			r.Examined(gpu, "d0", bad)
			r.expectSuspended(true)
			r.restart()
			r.plugins.stock(gpu, 2)
			r.expectSuspended(true)
			r.Examined(gpu, "d0", "")
			r.expectSuspended(false)
		}
	}, func(r *harness) { r.examines = true })
}

func TestExamined_DiskFails_SuspendedOnceItIsDurable(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		synctest.Wait()
		r.disk.failsFalls(errors.New("disk full"))
		r.Examined(gpu, "d0", bad)
		r.expectSuspended(false)
		r.disk.failsFalls(nil)
		r.after(2 * time.Second)
		r.expectSuspended(true)
		r.restart()
		r.expectSuspended(true)
	}, examining)
}
