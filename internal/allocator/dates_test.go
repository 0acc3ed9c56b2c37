package allocator_test

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// recalls replaces a resource's offer by one whose plugin has, by the record in the state file, never listed other devices.
func (s *fakePlugins) recalls(r device.ResourceName, devices ...device.Device) {
	s.mu.Lock()
	delete(s.offers, r)
	s.mu.Unlock()
	s.continues(r, devices...)
}

// continues makes a resource's plugin list these devices next.
func (s *fakePlugins) continues(r device.ResourceName, devices ...device.Device) {
	s.offer(r, func(o *device.Offer) {
		o.Reported, o.State = true, device.Serving
		o.Session++
		o.Inventory.Devices, o.Since = devices, time.Now()
	})
}

func at(id device.ID, added int64) device.Device {
	return device.Device{ID: id, Healthy: true, Added: added}
}

// getsFresh has pod a get a device that only a second plugin's list has, which is not on disk yet.
func getsFresh(r *harness) {
	r.t.Helper()
	r.plugins.recalls(gpu, at("fresh", 100))
	r.RuntimeSynced(nil, nil)
	r.bind("a", app(gpu, 1))
	r.expect("a", "main", "ready vendor.com/gpu[fresh]")
}

// devmgrd was killed after a pod had got a device of a second plugin, and before that plugin's list was on disk. The device may be any of the first one's.
func TestDates_KilledBeforeTheListIsSaved_AllDevicesAreWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		getsFresh(r)
		has := running("1", "a", "main")
		has.Stamp = device.Choice{gpu: {"fresh"}}
		r.halt()
		r.plugins.recalls(gpu, at("old", 0), at("other", 0))
		r.start()
		r.RuntimeSynced([]device.Running{has}, nil)
		r.Replace([]device.PodDemand{pod("a", app(gpu, 1)), pod("b", app(gpu, 1))})
		r.after(time.Second)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.check()

		r.plugins.continues(gpu, at("old", 0), at("other", 0), at("third", 300)) // dates go on beyond that of the grant
		r.after(time.Minute)
		r.restart()
		r.RuntimeSynced([]device.Running{has}, nil)
		r.after(time.Second)
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.RuntimeStopped(has)
		r.Drop("a")
		r.expect("b", "main", "ready vendor.com/gpu[old]")
	})
}

// The plugin lists the device again, as one does that runs on: nothing is withheld from then on, even if the plugin leaves the device out later.
func TestDates_KilledBeforeTheListIsSaved_ListedAgain_NothingIsWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		r.plugins.recalls(gpu, at("added", 100), at("first", 0), at("second", 0))
		r.RuntimeSynced(nil, nil)
		r.bind("a", app(gpu, 1))
		r.expect("a", "main", "ready vendor.com/gpu[added]")
		r.halt()
		r.plugins.recalls(gpu, at("first", 0), at("second", 0))
		r.start()
		r.RuntimeSynced(nil, nil)
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "waiting NotEnoughDevices")
		r.plugins.continues(gpu, at("added", 200), at("first", 0), at("second", 0))
		r.expect("b", "main", "ready vendor.com/gpu[first]")
		r.plugins.continues(gpu, at("first", 0), at("second", 0))
		r.after(time.Minute)
		r.restart()
		r.RuntimeSynced(nil, nil)
		r.bind("c", app(gpu, 1))
		r.expect("c", "main", "ready vendor.com/gpu[second]")
	})
}

// The machine has booted since: no container has the device.
func TestDates_PowerCutBeforeTheListIsSaved_NothingIsWithheld(t *testing.T) {
	t.Parallel()
	run(t, func(r *harness) {
		getsFresh(r)
		r.plugins.recalls(gpu, at("old", 0))
		r.reboot()
		r.plugins.continues(gpu, at("old", 0))
		r.bind("b", app(gpu, 1))
		r.expect("b", "main", "ready vendor.com/gpu[old]")
	}, func(r *harness) { r.boot = "one" })
}
