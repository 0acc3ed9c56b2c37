package allocator_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// refusing has the plugin refuse these devices while it is set, and returns how often it was asked for one of them.
func (r *harness) refusing(ids ...device.ID) (on *atomic.Bool, asked *atomic.Int64) {
	on, asked = &atomic.Bool{}, &atomic.Int64{}
	on.Store(true)
	r.plugins.allocates(func(_ context.Context, _ device.ResourceName, wanted []device.ID) error {
		if slices.ContainsFunc(wanted, func(id device.ID) bool { return slices.Contains(ids, id) }) {
			asked.Add(1)
			if on.Load() {
				return errPlugin
			}
		}
		return nil
	})
	return on, asked
}

// stateOf returns a device as readers see it.
func (r *harness) stateOf(id device.ID) device.DeviceStatus {
	r.t.Helper()
	synctest.Wait()
	all, _ := r.Devices(gpu)
	at := slices.IndexFunc(all, func(d device.DeviceStatus) bool { return d.ID == id })
	if at < 0 {
		r.t.Fatalf("there is no device %s", id)
	}
	return all[at]
}

// One of four devices is listed as healthy and always refused. After the third refusal it does not count, and is tried at growing intervals. One
// success ends it.
func TestRefusedDevice_ThreeTimesInARow_IsOutOfService(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		refused, asked := r.refusing("d0")
		r.plugins.stock(gpu, 4)
		r.RuntimeSynced(nil, nil)
		for _, name := range []string{"a", "b", "c"} {
			r.bind(name, app(gpu, 1))
			r.after(time.Second)
		}
		r.expect("c", "main", "ready vendor.com/gpu[d3]")
		if d := r.stateOf("d0"); d.State != device.StateFree || d.Refusals.Times != 1 {
			t.Errorf("after one refusal: %s, %+v", d.State, d.Refusals)
		}
		r.bind("d", app(gpu, 1))
		r.after(10 * time.Second)
		if d := r.stateOf("d0"); d.State != device.StateRefused || !strings.Contains(d.Cordon.Reason, "refused 3 times in a row, tried again at 20") {
			t.Errorf("after three refusals: %s, %+v", d.State, d.Cordon)
		}
		r.expect("d", "main", "waiting NotEnoughDevices")
		if why := r.PodByUID("d").Wait.Message; !strings.Contains(why, "0 of 4 free, 1 refused until 20") {
			t.Errorf("d waits because %q", why)
		}
		if n := r.metric("devmgrd_devices", string(gpu), "refused"); n != 1 {
			t.Errorf("%v devices count as refused", n)
		}
		if got := r.Resources().ByName[gpu].Refused; !slices.Equal(got, []device.ID{"d0"}) {
			t.Errorf("refused devices: %v", got)
		}
		r.Drop("d")
		r.after(time.Second)
		r.published(map[device.ResourceName]int{gpu: 3})
		r.after(30 * time.Second)
		r.published(map[device.ResourceName]int{gpu: 4}) // it is time to try again

		r.bind("e", app(gpu, 1))
		before := asked.Load()
		r.after(time.Hour)
		if n := asked.Load() - before; n < 8 || n > 12 { // after 0, 1, 2, 4, 8 and then each 10 minutes, and a pause of the pod
			t.Errorf("the plugin was asked %d times within an hour", n)
		}
		if n := strings.Count(strings.Join(r.plugins.told, "\n"), "vendor.com/gpu/d0 is refused"); n != 1 {
			t.Errorf("%d events", n)
		}
		refused.Store(false)
		r.after(11 * time.Minute)
		r.expect("e", "main", "ready vendor.com/gpu[d0]")
		r.published(map[device.ResourceName]int{gpu: 4})
		if d := r.stateOf("d0"); d.Cordon != nil || d.Refusals.Times != 0 {
			t.Errorf("after a success: %+v, %+v", d.Cordon, d.Refusals)
		}
		r.check()
	})
}

// A plugin that refuses all devices alike refuses the requests.
func TestRefusedDevice_AllAlike_AreInService(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		refused, _ := r.refusing("d0", "d1")
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.bind("b", app(gpu, 2))
		r.after(10 * time.Minute)
		r.published(map[device.ResourceName]int{gpu: 2})
		if d := r.stateOf("d0"); d.State == device.StateRefused || d.Refusals.Times < 3 {
			t.Errorf("d0 is %s: %+v", d.State, d.Refusals)
		}
		refused.Store(false)
		r.after(time.Minute)
		r.expect("a", "main", "ready vendor.com/gpu[d0]")
		r.check()
	})
}

// A plugin that hangs with one device is busy when other pods need theirs: it has not refused these.
func TestRefusedDevice_PluginIsBusy_IsInService(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.allocates(func(_ context.Context, _ device.ResourceName, ids []device.ID) error {
			if slices.Contains(ids, "d0") {
				return device.Refuse(device.PluginSlow, device.ErrNotAsked, "Allocate")
			}
			return nil
		})
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", claims(app(gpu, 1), "x", "d0"))
		r.after(time.Second)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[d1]")
		r.after(10 * time.Minute)
		r.expect("a", "main", "waiting PluginSlow")
		if d := r.stateOf("d0"); d.Cordon != nil {
			t.Errorf("d0 is %s: %+v", d.State, d.Refusals)
		}
		r.check()
	})
}

// Another process of the plugin may grant the device, and an operator may know that it works: it is tried at once.
func TestRefusedDevice_PluginRestartsOrOperatorKnows_IsTriedAtOnce(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*harness){
		"restart": func(r *harness) { r.plugins.offer(gpu, func(o *device.Offer) { o.Session++ }) },
		"uncordon": func(r *harness) {
			if lifted, err := r.Uncordon([]device.Cordon{{Resource: gpu, ID: "d0"}}); err != nil || len(lifted) != 1 || !lifted[0].Refused {
				r.t.Errorf("uncordon: %v, %v", lifted, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, func(r *harness) {
				refused, _ := r.refusing("d0")
				r.plugins.stock(gpu, 2)
				r.RuntimeSynced(nil, nil)
				r.bind("a", app(gpu, 1))
				r.after(2 * time.Second)
				r.bind("b", app(gpu, 1))
				r.after(5 * time.Minute)
				if d := r.stateOf("d0"); d.State != device.StateRefused {
					t.Fatalf("d0 is %s", d.State)
				}
				refused.Store(false)
				end(r)
				r.after(time.Second)
				r.expect("b", "main", "ready vendor.com/gpu[d0]")
				r.check()
			})
		})
	}
}

// A pod for which the scheduler has chosen the device cannot have another one: it goes on trying.
func TestRefusedDevice_ChosenByTheScheduler_IsTried(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		refused, _ := r.refusing("d0")
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.after(time.Second)
		r.bind("claims", claims(app(gpu, 1), "", "d0"))
		r.after(30 * time.Minute)
		r.expect("claims", "main", "waiting PluginError")
		if d := r.stateOf("d0"); d.Cordon == nil || !d.Cordon.Refused {
			t.Errorf("d0 is %s", d.State)
		}
		refused.Store(false)
		r.after(31 * time.Second)
		r.expect("claims", "main", "ready vendor.com/gpu[d0]")
		r.check()
	})
}

// A device that is granted, and whose grant names what the host lacks, is no better, once a container has started with another device.
func TestRefusedDevice_GrantsCannotBeUsed_IsOutOfService(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.stock(gpu, 2)
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		for range 3 {
			r.expect("a", "main", "ready vendor.com/gpu[d0]")
			r.Refused(device.Container{Pod: "a", Name: "main"}, device.Wait{Reason: device.HostDeviceMissing, Message: "/dev/gpu0 is missing"}, true)
			r.bind("b", app(gpu, 1))
			r.expect("b", "main", "ready vendor.com/gpu[d1]")
			start(r, running("1", "b", "main"))
			r.after(10 * time.Second)
		}
		if d := r.stateOf("d0"); d.Cordon == nil || !d.Cordon.Refused || !strings.Contains(d.Cordon.Reason, "/dev/gpu0 is missing") {
			t.Errorf("d0 is %s: %+v", d.State, d.Cordon)
		}
		r.check()
	})
}

// Some plugins grant no container more than one device, as NVIDIA's does with failRequestsGreaterThanOne. They refuse the request of the pod that wants
// more, and not the devices.
func TestRefusedDevice_OnlyLargerRequestsAreRefused_AreInService(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.allocates(func(_ context.Context, _ device.ResourceName, ids []device.ID) error {
			if len(ids) > 1 {
				return errPlugin
			}
			return nil
		})
		r.plugins.stock(gpu, 8)
		r.RuntimeSynced(nil, nil)
		r.bind("two", app(gpu, 2))
		r.after(time.Second)
		r.bind("one", app(gpu, 1))
		for range 20 {
			r.after(time.Minute)
			r.published(map[device.ResourceName]int{gpu: 8})
		}
		r.expect("two", "main", "waiting PluginError")
		r.check()
	})
}

// A container that is never created does not say why: its command may be wrong. One whose NIC is missing on the host says nothing of its GPU. The pod gets
// one device after the other, and all stay in service.
func TestRefusedDevice_AnotherCauseIsPossible_IsInService(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*harness, device.Running){
		"not created": func(r *harness, c device.Running) {
			if r.RuntimeCreating(c).State == device.Ready {
				r.RuntimeInjected(c)
				r.RuntimeStopped(c)
			}
		},
		"another resource": func(r *harness, c device.Running) {
			if r.RuntimeCreating(c).State == device.Ready {
				r.RuntimeAborted(c)
				r.Refused(c.Container, device.Wait{Reason: device.HostDeviceMissing, Message: "/dev/nic0 is missing"}, true)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, func(r *harness) {
				r.plugins.cdi = true
				r.plugins.stock(gpu, 4)
				r.plugins.stock(nic, 1)
				r.RuntimeSynced(nil, nil)
				bad := pod("bad", wants("main", device.App, gpu, 1))
				bad.Demands[0].Wants[nic] = 1
				r.Bind(bad)
				r.after(time.Second)
				had := map[string]bool{}
				for i := range 200 {
					had[r.stands("bad", "main")] = true
					fail(r, running("1", "bad", "main"))
					if i == 100 { // all have been refused by now
						r.bind("good", app(gpu, 1))
						r.after(time.Second)
						start(r, running("2", "good", "main"))
					}
					r.after(10 * time.Second)
					if s := r.Resources().ByName[gpu]; s.Capacity < 4 || len(s.Refused) > 0 {
						t.Fatalf("after %d attempts the Node shows %d of 4, %v are refused: %s", i+1, s.Capacity, s.Refused, r.stands("bad", "main"))
					}
				}
				if len(had) < 4 {
					t.Errorf("the pod had %v", had)
				}
				r.check()
			})
		})
	}
}
