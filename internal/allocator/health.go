package allocator

import (
	"cmp"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// What is wrong with a pod's devices is read from the failures that the events report (failures.go), so that a pod's condition and its
// events do not contradict each other. A plugin that is lost has no event on its pods.

// A fault is what is wrong with a pod's devices of one resource, as of a revision of its failures. A pod whose wait or assignment is newer has another one.
type fault struct {
	device.Fault // no Kind: none
	revision     uint64
	since        time.Time // of the pod
}

// healthLocked returns what is wrong with a pod's devices, and whether the health of all of them is known. Its time grows with the number of the pod's
// devices of resources with new failures.
func (a *Allocator) healthLocked(p *pod) (*device.Fault, bool) {
	var worst device.Fault
	known := true
	for _, r := range p.uses {
		worst = worse(worst, a.faultLocked(p, r))
	}
	for _, r := range p.uses {
		resource := a.ledger.Lookup(r)
		if resource.Current() {
			continue
		}
		known = false
		if resource.Offered() && resource.Offer().State == device.Lost && (worst.Kind == "" || !worst.Ended.IsZero()) {
			worst = device.Fault{Kind: device.FaultPluginLost, Resource: r}
		}
	}
	if worst.Kind == "" {
		return nil, known
	}
	found := worst // or each call would allocate one
	return &found, known
}

// faultLocked returns the first of a pod's devices of a resource whose failure lasts, or the one whose failure has ended last.
func (a *Allocator) faultLocked(p *pod, r device.ResourceName) device.Fault {
	if a.ledger.Resources[r] == nil {
		return device.Fault{}
	}
	log := a.ledger.Failures(r)
	found, known := p.faults[r]
	if known && found.revision == log.Revision() && found.since.Equal(p.since) {
		return found.Fault
	}
	found = fault{revision: log.Revision(), since: p.since}
	seen := map[device.ID]bool{} // where several containers may have a device
	for id := range p.devices(r) {
		f, failed := log.Last(id)
		if !failed || seen[id] || !f.Ended.IsZero() && !p.since.Before(f.Ended) { // that of the pod before
			continue
		}
		if len(p.assigned) > 1 {
			seen[id] = true
		}
		one := device.Fault{Kind: device.FaultUnhealthy, Resource: r, ID: id, Ended: f.Ended}
		if !f.Listed {
			one.Kind = device.FaultUnlisted
		}
		found.Fault = worse(found.Fault, one)
	}
	lists.Put(&p.faults, r, found)
	return found.Fault
}

// worse returns the one of two faults that counts: one that lasts, or the one that has ended last, and of several the first by name.
func worse(a, b device.Fault) device.Fault {
	switch {
	case a.Kind == "":
		return b
	case b.Kind == "":
		return a
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
		first.Others = a.Others + b.Others + 1
	}
	return first
}
