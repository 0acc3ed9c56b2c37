package dra

import (
	"cmp"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// An Offering says which resources are offered through claims: those that the operator names which do not have too many devices. A list without
// devices changes nothing: some plugins send one first at each start.
type Offering struct {
	OfferingConfig

	mu       locks.Mutex[locks.Leaf]
	revision uint64                       // of the offers that have been counted
	over     map[device.ResourceName]bool // too many devices, by the last list with devices
	pools    map[device.ResourceName]int  // of the resources that are offered, by the same list
}

// OfferingConfig is what NewOffering needs.
type OfferingConfig struct {
	Offers     func(resource string) bool // whether a name or a pattern of dra.resources matches
	Names      []string                   // dra.resources
	MaxDevices int                        // of a resource: dra.maxDevices
	// Plugins' lists, and not the allocator's: Claimed is asked for each resource of each pod, by readers that hold locks of their own.
	Plugins Plugins
}

// NewOffering returns an Offering.
func NewOffering(c OfferingConfig) *Offering {
	return &Offering{OfferingConfig: c, over: map[device.ResourceName]bool{}, pools: map[device.ResourceName]int{}}
}

// Claimed reports whether a resource is offered through claims.
func (o *Offering) Claimed(r device.ResourceName) bool {
	return o.Offers(string(r)) && o.OverMaxDevices(r) == 0
}

// fewPools is a number of ResourceSlices that no node is too small for.
const fewPools = 256

// OverMaxDevices returns dra.maxDevices for resources that have too many devices for that, and 0 for others: more than dra.maxDevices, or so many
// that all resources would need the ResourceSlices of more than eight of the largest ones. A plugin chooses how many resources a pattern of
// dra.resources matches, so those that are named come first, and then those that are offered already.
func (o *Offering) OverMaxDevices(r device.ResourceName) int {
	o.count()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over[r] {
		return o.MaxDevices
	}
	return 0
}

// count counts the devices of all resources once for each change of the offers.
func (o *Offering) count() {
	now := o.Plugins.Revision() // before the offers are read, so that no later change is missed
	o.mu.Lock()
	done := o.revision >= now
	o.mu.Unlock()
	if done {
		return
	}
	all := o.Plugins.Offers()
	maps.DeleteFunc(all, func(r device.ResourceName, _ device.Offer) bool { return !o.Offers(string(r)) })
	gone := func(r device.ResourceName) bool { _, there := all[r]; return !there }
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.revision >= now {
		return // another caller has read the same offers, or later ones
	}
	o.revision = now
	maps.DeleteFunc(o.over, func(r device.ResourceName, _ bool) bool { return gone(r) })
	maps.DeleteFunc(o.pools, func(r device.ResourceName, _ int) bool { return gone(r) })
	rank := func(r device.ResourceName) int {
		switch {
		case o.named(r):
			return 0
		case o.pools[r] > 0:
			return 1
		}
		return 2
	}
	for _, r := range slices.SortedFunc(maps.Keys(all), func(a, b device.ResourceName) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(a, b)) }) {
		o.countLocked(r, len(all[r].Inventory.Devices))
	}
}

// named reports whether dra.resources has the resource's name, and not only a pattern.
func (o *Offering) named(r device.ResourceName) bool {
	return slices.Contains(o.Names, string(r))
}

// countLocked counts a resource's devices.
func (o *Offering) countLocked(r device.ResourceName, n int) {
	if n == 0 {
		return
	}
	sum := Pools(n)
	for other, pools := range o.pools {
		if other != r && (o.named(other) || !o.named(r)) {
			sum += pools
		}
	}
	o.over[r] = n > o.MaxDevices || sum > max(fewPools, 8*Pools(o.MaxDevices))
	delete(o.pools, r)
	if !o.over[r] {
		o.pools[r] = Pools(n)
	}
}
