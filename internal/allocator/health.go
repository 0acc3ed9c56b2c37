package allocator

import (
	"cmp"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// What is wrong with a pod's devices is read from the failures that the events report (failures.go), so that a pod's condition and its
// events do not contradict each other. A plugin that is lost has no event on its pods.

// healthChangedLocked records that failures or plugins have changed.
func (a *Allocator) healthChangedLocked() { a.faults, a.snapshot = nil, nil }

// healthLocked returns what is wrong with a pod's devices, and whether the health of all of them is known.
func (a *Allocator) healthLocked(p *pod) (fault *device.Fault, known bool) {
	fault, known = a.faultsLocked()[p.demand.Pod.UID], true
	for _, r := range p.uses {
		resource := a.ledger.Resources[r]
		if resource != nil && resource.Current() {
			continue
		}
		known = false
		if resource != nil && resource.Offered() && resource.Offer().State == device.Lost && (fault == nil || !fault.Ended.IsZero()) {
			fault = &device.Fault{Kind: device.FaultPluginLost, Resource: r}
		}
	}
	return fault, known
}

// faultsLocked returns one failure for each pod that has or had one: the first that lasts, or the one that has ended last. Its time grows with the
// number of devices that have failed within the hour.
func (a *Allocator) faultsLocked() map[device.PodUID]*device.Fault {
	if a.faults != nil {
		return a.faults
	}
	a.faults = map[device.PodUID]*device.Fault{}
	for r, resource := range a.ledger.Resources {
		for id, f := range a.ledger.Failures(r).Failed() {
			now := &device.Fault{Kind: device.FaultUnhealthy, Resource: r, ID: id, Ended: f.Ended}
			if !f.Listed {
				now.Kind = device.FaultUnlisted
			}
			for uid := range resource.Holders(id) {
				if p := a.pods[uid]; p != nil && (f.Ended.IsZero() || p.since.Before(f.Ended)) { // not that of the pod before
					a.faults[uid] = worse(a.faults[uid], now)
				}
			}
		}
	}
	return a.faults
}

// worse returns the one of two faults that counts, without editing either: one that lasts, or the one that has ended last, and of several the first by name.
func worse(a, b *device.Fault) *device.Fault {
	if a == nil {
		return b
	}
	first, lasts := a, a.Ended.IsZero() && b.Ended.IsZero()
	switch {
	case a.Ended.Equal(b.Ended):
		if cmp.Or(cmp.Compare(b.Resource, a.Resource), device.CompareIDs(b.ID, a.ID)) < 0 {
			first = b
		}
	case b.Ended.IsZero() || !a.Ended.IsZero() && b.Ended.After(a.Ended):
		first = b
	}
	if lasts {
		both := *first
		both.Others = a.Others + b.Others + 1
		first = &both
	}
	return first
}

// usesOf returns the resources of assignments, ascending.
func usesOf(all []device.Assignment) []device.ResourceName {
	seen := map[device.ResourceName]bool{}
	for _, s := range device.Shares(all) {
		seen[s.Resource] = true
	}
	return slices.Sorted(maps.Keys(seen))
}
