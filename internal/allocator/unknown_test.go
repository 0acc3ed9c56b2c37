package allocator_test

import (
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// digested returns a container whose list of devices was too long for its stamp.
func digested(id, pod string, ids ...device.ID) device.Running {
	c := running(id, pod, "main")
	c.Digests = map[device.ResourceName]string{gpu: device.Digest(ids)}
	return c
}

// The state file is lost, and a container's stamp has only a digest of its devices.
func TestUnknownDevices_StateFileLost_CloseTheResource(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 4)
		r.plugins.stock(nic, 1)
		all := []device.Running{digested("1", "old", "d0", "d1"), digested("2", "a", "d2")}
		r.RuntimeSynced(all, nil)
		r.bind("a", app(gpu, 1)) // its own container runs, too
		r.bind("b", app(gpu, 1))
		r.bind("c", app(nic, 1))
		for range 2 { // another synchronization changes nothing
			for _, name := range []string{"a", "b"} {
				r.expect(name, "main", "waiting DevicesUnknown")
			}
			r.expect("c", "main", "ready vendor.com/nic[d0]")
			r.check()
			r.RuntimeLost()
			r.RuntimeSynced(all, nil)
		}
		st := r.Readiness(device.Container{Pod: "b", Name: "main"})
		if want := "vendor.com/gpu: 2 containers run with devices that only the lost state file named"; !strings.Contains(st.Wait.Message, want) {
			t.Errorf("the message is %q, want %q", st.Wait.Message, want)
		}
		r.RuntimeStopped(all[0])
		r.expect("b", "main", "waiting DevicesUnknown")
		r.RuntimeStopped(all[1])
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
	}, func(r *harness) { r.mute = true })
}

func TestUnknownDevices_GoneAtTheNextSynchronization_OpenTheResource(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced([]device.Running{digested("1", "old", "d0")}, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "waiting DevicesUnknown")
		r.RuntimeLost()
		r.RuntimeSynced(nil, nil)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
	})
}

func TestDigest_AsInTheStateFile_ClosesNothing(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 3)
		r.bind("a", app(gpu, 2))
		r.RuntimeSynced([]device.Running{digested("1", "a", "d0", "d1")}, nil)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d2]")
		for _, told := range r.plugins.told {
			if strings.Contains(told, "bare") {
				t.Error(told)
			}
		}
	})
}
