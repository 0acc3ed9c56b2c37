package allocator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The runtime has reported the end of a container, or no longer lists it, but its processes live.
func TestRelease_ProcessesLive_WaitsForTheirEnd(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*harness){
		"the end is reported":  func(r *harness) { r.RuntimeStopped(running("1", "a", "main")) },
		"the runtime restarts": func(r *harness) { r.RuntimeLost(); r.RuntimeSynced(nil, nil) },
		"devmgrd restarts": func(r *harness) {
			r.restart()
			r.Replace([]device.PodDemand{pod("b", app(gpu, 1))})
			r.RuntimeSynced(nil, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(r *harness) {
				r.plugins.stock(gpu, 1)
				r.RuntimeSynced(nil, nil)
				r.bind("a", app(gpu, 1))
				r.bind("b", app(gpu, 1))
				r.RuntimeCreating(running("1", "a", "main"))
				r.plugins.haunt("a")
				r.Drop("a")
				lose(r)
				r.after(time.Hour)
				r.expect("b", "main", "waiting DeviceBusy")
				r.plugins.haunt()
				r.after(10 * time.Second)
				r.expect("b", "main", "ready vendor.com/gpu[d0]")
			})
		})
	}
}

// A pod's last processes mostly end a moment after its containers.
func TestRelease_ProcessesEndSoon_TakesNoLonger(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.plugins.haunt("a")
		r.Drop("a")
		r.after(50 * time.Millisecond)
		r.plugins.haunt()
		r.after(100 * time.Millisecond)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}

// As in a container that does not see the host's cgroups. Then the runtime's report decides.
func TestRelease_HostCannotTell_GoesByTheRuntime(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.blind = errors.New("not the host's cgroups")
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		c := running("1", "a", "main")
		r.RuntimeCreating(c)
		r.Drop("a")
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(c)
		r.expect("b", "main", "ready vendor.com/gpu[d0]")
	})
}
