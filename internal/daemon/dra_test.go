package daemon

import (
	"testing"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/device"
)

// A plugin with too many devices lists none for a moment after each start: its resource stays a number of the Node.
func TestOffering_FirstListIsEmpty_ChangesNothing(t *testing.T) {
	const gpu, nic device.ResourceName = "a.example/gpu", "a.example/nic"
	offers := map[device.ResourceName]device.ResourceStatus{}
	o := newOffering(config.DRA{Resources: []string{string(gpu)}, MaxDevices: 2}, func() device.Resources { return device.Resources{ByName: offers} })
	expect := func(devices int, want bool) {
		t.Helper()
		offers[gpu] = device.ResourceStatus{Offer: &device.Offer{Inventory: device.Inventory{Devices: make([]device.Device, devices)}}}
		offers[nic] = offers[gpu]
		if got := o.claimed(gpu); got != want || o.claimed(nic) {
			t.Errorf("with %d devices it is offered through claims: %v; another one: %v", devices, got, o.claimed(nic))
		}
		if over := o.overMaxDevices(gpu); over > 0 == want || o.overMaxDevices(nic) > 0 {
			t.Errorf("with %d devices it has more than %d; another one %d", devices, over, o.overMaxDevices(nic))
		}
	}
	expect(0, true)
	expect(3, false)
	expect(0, false)
	expect(3, false)
	expect(2, true)
	expect(0, true)
	expect(3, false)
	offers[gpu] = device.ResourceStatus{}
	if !o.claimed(gpu) {
		t.Error("the size of a forgotten resource is remembered")
	}
}
