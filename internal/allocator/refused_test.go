package allocator_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A grant's host device is missing. The plugin is asked again, the kubelet tries again, and the pod waits for one reason all the while.
func TestRefused_HostDeviceMissing_OneWaitUntilTheContainerStarts(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		why := device.Wait{Reason: device.HostDeviceMissing, Message: "the host does not have /dev/d0"}
		began := time.Now()
		for i := range 8 {
			r.Refused(device.Container{Pod: "a", Name: "main"}, why, true)
			for range 4 {
				r.after(10 * time.Second)
				w, _ := r.Snapshot().Pod("ns", "a")
				if w.State != device.Waiting || w.Wait.Reason != why.Reason || !w.Since.Equal(began) || i > 0 != strings.HasSuffix(w.Wait.Message, "times") {
					t.Fatalf("after refusal %d: %v since %s: %+v", i+1, w.State, w.Since.Sub(began), w.Wait)
				}
			}
		}
		for said, want := range map[string]int{"a waits: HostDeviceMissing": 1, "a has its devices": 1} {
			if n := len(slices.DeleteFunc(slices.Clone(r.plugins.told), func(s string) bool { return s != said })); n != want {
				t.Errorf("%q is reported %d times, want %d: %q", said, n, want, r.plugins.told)
			}
		}
		if n := r.metric("devmgrd_pods_waiting", "HostDeviceMissing"); n != 1 {
			t.Errorf("%v pods are counted as waiting", n)
		}
		start(r, running("1", "a", "main"))
		if w, _ := r.Snapshot().Pod("ns", "a"); w.State != device.Ready {
			t.Errorf("when it runs: %+v", w)
		}
	})
}

// The host lacks both devices of a plugin, which grants them in turn. The pauses double over all devices, also while another container of the pod fails and
// is started again.
func TestRefused_HostLacksAllDevices_PausesDouble(t *testing.T) {
	t.Parallel()
	calls := func(other bool) (n []int) {
		run(t, func(r *harness) {
			r.plugins.stock(gpu, 2)
			r.RuntimeSynced(nil, nil)
			r.bind("a", app(gpu, 1))
			why := device.Wait{Reason: device.HostDeviceMissing, Message: "the host does not have the device"}
			side := running("2", "a", "side")
			r.expectAsked("a/main vendor.com/gpu [d0]")
			for i := range 60 { // ten minutes of a kubelet's attempts
				if c := running("1", "a", "main"); r.RuntimeCreating(c).State == device.Ready {
					r.RuntimeAborted(c)
					r.Refused(c.Container, why, true)
				}
				if other {
					r.RuntimeCreating(side)
					r.RuntimeInjected(side)
					if err := r.RuntimeStarting(context.Background(), side); err != nil {
						t.Fatal(err)
					}
					r.after(time.Second / 2)
					r.RuntimeStopped(side)
				}
				r.after(10 * time.Second)
				if i%6 == 5 {
					n = append(n, len(r.asked()))
				}
			}
		})
		return n
	}
	for _, other := range []bool{false, true} {
		n := calls(other)
		t.Logf("calls of Allocate in each minute: %v", n)
		if n[0] > 6 || slices.Max(n[1:]) > 2 {
			t.Errorf("another container fails: %v: Allocate was called %v times in the minutes after the first refusal", other, n)
		}
	}
}

// Another reason takes the place of the refusal while it lasts.
func TestRefused_PluginGoesAway_ThatIsTheReason(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.Refused(device.Container{Pod: "a", Name: "main"}, device.Wait{Reason: device.HostDeviceMissing, Message: "gone"}, true)
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Lost })
		r.after(time.Minute)
		if w, _ := r.Snapshot().Pod("ns", "a"); w.Wait.Reason != device.PluginMissing {
			t.Errorf("got %+v", w.Wait)
		}
	})
}

// The runtime cannot create a container with CDI devices, and says why to the kubelet alone.
func TestRefused_ContainerIsNotCreated_NamesItsCDIDevices(t *testing.T) {
	t.Parallel()
	for lacks, want := range map[string]string{
		"": "container main could not be created: the kubelet's event Failed has the container runtime's error. Its plugin granted the CDI devices vendor.com/gpu=d0",
		"no CDI specification has its device vendor.com/gpu=d0": "container main could not be created: no CDI specification has its device vendor.com/gpu=d0",
	} {
		run(t, func(r *harness) {
			r.plugins.cdi = true
			r.plugins.stock(gpu, 1)
			r.RuntimeSynced(nil, nil)
			r.bind("a", app(gpu, 1))
			c := running("1", "a", "main")
			r.RuntimeCreating(c)
			r.RuntimeInjected(c)
			c.Lacks = lacks
			r.RuntimeStopped(c)
			if w, _ := r.Snapshot().Pod("ns", "a"); w.State != device.Waiting || w.Wait != (device.Wait{Reason: device.HostDeviceMissing, Message: want}) {
				t.Errorf("got %+v", w.Wait)
			}
			r.expect("a", "main", "ready vendor.com/gpu[d0]") // it starts as soon as the runtime can create it
		})
	}
}

// How long a pod has waited, and since when it has its devices, is known after a restart of devmgrd, whose plugins are away for a moment then.
func TestSince_DevmgrdRestarts_IsKept(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 1)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		began := time.Now()
		r.after(time.Hour)
		r.plugins.offer(gpu, func(o *device.Offer) { o.State = device.Stale })
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting PluginStale")
		r.plugins.stock(gpu, 1)
		r.expect("b", "main", "waiting NotEnoughDevices")
		for _, name := range []string{"a", "b"} {
			if p, _ := r.Snapshot().Pod("ns", name); !p.Since.Equal(began) {
				t.Errorf("pod %s: %v since %s", name, p.State, p.Since.Sub(began))
			}
		}
	})
}
