package dra

import (
	"fmt"
	"maps"
	"testing"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/device"
)

// plugins are offers that a test sets.
type plugins struct {
	offers   map[device.ResourceName]device.Offer
	revision uint64
	reads    int
}

func offeringOf(most int, p *plugins, names ...string) *Offering {
	return NewOffering(OfferingConfig{Offers: config.DRA{Resources: names}.Offers, Names: names, MaxDevices: most, Plugins: p})
}

func newPlugins() *plugins {
	return &plugins{offers: map[device.ResourceName]device.Offer{}, revision: 1}
}

func (p *plugins) Revision() uint64 { return p.revision }

func (p *plugins) Offers() map[device.ResourceName]device.Offer {
	p.reads++
	return maps.Clone(p.offers)
}

func (p *plugins) list(r device.ResourceName, devices int) {
	p.offers[r] = device.Offer{Inventory: device.Inventory{Devices: make([]device.Device, devices)}}
	p.revision++
}

func (p *plugins) forget(r device.ResourceName) {
	delete(p.offers, r)
	p.revision++
}

// A plugin with too many devices lists none for a moment after each start: its resource stays a number of the Node.
func TestOffering_FirstListIsEmpty_ChangesNothing(t *testing.T) {
	const gpu, nic device.ResourceName = "a.example/gpu", "a.example/nic"
	p := newPlugins()
	o := offeringOf(2, p, string(gpu))
	expect := func(devices int, want bool) {
		t.Helper()
		p.list(gpu, devices)
		p.list(nic, devices)
		if got := o.Claimed(gpu); got != want || o.Claimed(nic) {
			t.Errorf("with %d devices it is offered through claims: %v; another one: %v", devices, got, o.Claimed(nic))
		}
		if over := o.OverMaxDevices(gpu); over > 0 == want || o.OverMaxDevices(nic) > 0 {
			t.Errorf("with %d devices it has more than %d; another one %d", devices, over, o.OverMaxDevices(nic))
		}
	}
	expect(0, true)
	expect(3, false)
	expect(0, false)
	expect(3, false)
	expect(2, true)
	expect(0, true)
	expect(3, false)
	p.forget(gpu)
	if !o.Claimed(gpu) {
		t.Error("the size of a forgotten resource is remembered")
	}
}

// A plugin makes resources that a pattern matches, as many as it likes: they take the place of none that is offered or named.
func TestOffering_ManyResourcesOfAPattern_PoolsHaveALimit(t *testing.T) {
	const named, early device.ResourceName = "a.example/named", "vendor.example/early"
	p := newPlugins()
	o := offeringOf(2048, p, "*", string(named))
	p.list(early, 2048)
	if !o.Claimed(early) {
		t.Error("the first resource is not offered")
	}
	claimed := 0
	for i := range 255 {
		junk := device.ResourceName(fmt.Sprint("junk.example/", i))
		p.list(junk, 2048)
		if o.Claimed(junk) {
			claimed++
		} else if o.OverMaxDevices(junk) != 2048 {
			t.Fatal("the limit is not reported")
		}
	}
	if claimed != 7 || !o.Claimed(early) {
		t.Errorf("%d of the others are offered; the first %v", claimed, o.Claimed(early))
	}
	p.list(named, 2048)
	claimed = 0
	for r := range p.offers {
		if o.Claimed(r) {
			claimed++
		}
	}
	if claimed != 8 || !o.Claimed(named) {
		t.Errorf("%d are offered with the named one: %v", claimed, o.Claimed(named))
	}
	for i := range 255 {
		p.forget(device.ResourceName(fmt.Sprint("junk.example/", i)))
	}
	p.list("late.example/x", 2048)
	if !o.Claimed("late.example/x") {
		t.Error("resources that have been forgotten take places")
	}
}

// Readers ask for each resource of the node, some of them while they hold a lock. Pods change what the allocator has as often as they like, and that
// costs a reader nothing.
func TestOffering_AskedForEachResource_ReadsTheListsOnce(t *testing.T) {
	p := newPlugins()
	o := offeringOf(2048, p, "vendor.example/*")
	for change := range 3 {
		for i := range 32 {
			p.list(device.ResourceName(fmt.Sprint("vendor.example/", i)), 8)
		}
		p.reads = 0
		for r := range p.offers {
			if !o.Claimed(r) || o.OverMaxDevices(r) > 0 {
				t.Errorf("%s is not offered", r)
			}
		}
		if p.reads != 1 {
			t.Errorf("change %d: the lists were read %d times", change, p.reads)
		}
	}
}
