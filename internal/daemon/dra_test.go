package daemon

import (
	"fmt"
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

// A plugin makes resources that a pattern matches, as many as it likes: they take the place of none that is offered or named.
func TestOffering_ManyResourcesOfAPattern_PoolsHaveALimit(t *testing.T) {
	const named, early device.ResourceName = "a.example/named", "vendor.example/early"
	offers := map[device.ResourceName]device.ResourceStatus{}
	o := newOffering(config.DRA{Resources: []string{"*", string(named)}, MaxDevices: 2048}, func() device.Resources { return device.Resources{ByName: offers} })
	list := func(r device.ResourceName, devices int) {
		offers[r] = device.ResourceStatus{Offer: &device.Offer{Inventory: device.Inventory{Devices: make([]device.Device, devices)}}}
	}
	list(early, 2048)
	if !o.claimed(early) {
		t.Error("the first resource is not offered")
	}
	claimed := 0
	for i := range 255 {
		junk := device.ResourceName(fmt.Sprint("junk.example/", i))
		list(junk, 2048)
		if o.claimed(junk) {
			claimed++
		} else if o.overMaxDevices(junk) != 2048 {
			t.Fatal("the limit is not reported")
		}
	}
	if claimed != 7 || !o.claimed(early) {
		t.Errorf("%d of the others are offered; the first %v", claimed, o.claimed(early))
	}
	list(named, 2048)
	claimed = 0
	for r := range offers {
		if o.claimed(r) {
			claimed++
		}
	}
	if claimed != 8 || !o.claimed(named) {
		t.Errorf("%d are offered with the named one: %v", claimed, o.claimed(named))
	}
	for i := range 255 {
		delete(offers, device.ResourceName(fmt.Sprint("junk.example/", i)))
	}
	list("late.example/x", 2048)
	if !o.claimed("late.example/x") {
		t.Error("resources that have been forgotten take places")
	}
}
