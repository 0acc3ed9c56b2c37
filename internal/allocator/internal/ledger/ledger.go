package ledger

import (
	"iter"
	"log/slog"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/failures"
	"github.com/devmgrd/devmgrd/internal/device"
)

// An Allocator knows the pods and plans those that wait.
type Allocator interface {
	// Assigned returns a pod's assignments, or none.
	Assigned(device.PodUID) []device.Assignment
	// Unused reports whether no container has used a container's devices since the boot.
	Unused(pod device.PodUID, container string) bool
	// MayRun reports whether any container of the pod may run.
	MayRun(device.PodUID) bool
	// Freed reports that devices of a resource have become free.
	Freed(device.ResourceName)
}

// A Ledger records who has which devices. Its methods must not run at the same time. The allocator itself drops Resources that nothing needs, Conflicting
// containers, and failures that have ended.
type Ledger struct {
	Resources   map[device.ResourceName]*Resource // that are offered, in use or requested
	Quarantined containers.Devices                // of running containers, unless the state file assigns them to their pods
	Conflicting containers.Devices                // of running containers, and assigned to another pod

	allocator    Allocator
	none         *Resource // of Lookup; never changed
	failUnlisted bool
	log          *slog.Logger
}

// New returns an empty Ledger. failUnlisted: devices in use that the plugin does not list have failed, also if it has never listed them.
func New(a Allocator, failUnlisted bool, log *slog.Logger) *Ledger {
	return &Ledger{
		Resources: map[device.ResourceName]*Resource{}, Quarantined: containers.Devices{}, Conflicting: containers.Devices{},
		allocator: a, none: newResource(failUnlisted), failUnlisted: failUnlisted, log: log,
	}
}

// Devices are devices by resource.
type Devices map[device.ResourceName][]device.ID

// DevicesOf returns the devices of assignments.
func DevicesOf(all []device.Assignment) Devices {
	ds := Devices{}
	for _, s := range device.Shares(all) {
		ds[s.Resource] = append(ds[s.Resource], s.IDs...)
	}
	return ds
}

// Lookup returns a resource to read: an empty one if there is none.
func (l *Ledger) Lookup(name device.ResourceName) *Resource {
	if r := l.Resources[name]; r != nil {
		return r
	}
	return l.none
}

// Of returns a resource, creating an empty one if necessary.
func (l *Ledger) Of(name device.ResourceName) *Resource {
	r := l.Resources[name]
	if r == nil {
		r = newResource(l.failUnlisted)
		l.Resources[name] = r
	}
	return r
}

// Accept replaces a resource's offer and its listing, which the caller has made without the lock, as it has found what has changed since the listing
// before. Accept returns the devices in use that may be Broken now and were not, or the other way round.
func (l *Ledger) Accept(name device.ResourceName, o device.Offer, listing *Listing, changed []device.ID) iter.Seq[device.ID] {
	r := l.Of(name)
	known := r.Current() && r.offer.Listed == o.Listed
	r.accept(o, listing, changed)
	l.Withhold(name)
	if !known {
		return maps.Keys(r.taken)
	}
	return slices.Values(slices.DeleteFunc(changed, func(id device.ID) bool { return !r.IsTaken(id) }))
}

// SetListing replaces a resource's listing by one of the same devices with other cordons.
func (l *Ledger) SetListing(name device.ResourceName, listing *Listing) {
	l.Of(name).setListing(listing)
	l.Withhold(name)
}

// Retract removes a resource's offer, refusals and failures, as if there had never been an offer.
func (l *Ledger) Retract(name device.ResourceName) {
	r := l.Resources[name]
	r.offer, r.offered, r.refused = device.Offer{}, false, map[device.ID]refusal{}
	r.failures.Clear()
	r.setListing(NewListing(nil, nil, r.listing.ordering, nil))
}

// Failures returns the record of failures of a resource's devices in use.
func (l *Ledger) Failures(name device.ResourceName) *failures.Log { return l.Resources[name].failures }

// AddUnknownUsers counts containers that run with devices of a resource that only a lost state file named.
func (l *Ledger) AddUnknownUsers(name device.ResourceName, n int) { l.Of(name).unknownUsers += n }

// Request adds (sign 1) or subtracts (sign -1) the requests of an active pod of the API.
func (l *Ledger) Request(d device.PodDemand, sign int) {
	if d.Local {
		return
	}
	for _, of := range d.Demands {
		for name, claimed := range of.Claimed {
			for id := range claimed {
				if named := (podDevice{id, d.Pod.UID}); sign > 0 {
					l.Of(name).claimed[named] = true
				} else {
					delete(l.Of(name).claimed, named)
				}
			}
		}
	}
	for name, n := range d.Requests() {
		r := l.Of(name)
		r.requests += sign * n
		if d.Admitted {
			r.admitted += sign * n
		}
	}
}

// Recall records the devices that a pod has by the state file. shared: those that another pod has are its as well, by the same claim.
func (l *Ledger) Recall(pod device.PodUID, ds Devices, shared bool) {
	for name, ids := range ds {
		r := l.Of(name)
		for _, id := range ids {
			if !r.take(id, pod) && shared {
				r.share(id, pod)
			}
		}
	}
}

// Hold sets the chosen devices aside for a pod, and returns them. Those that other pods have are shared with them.
func (l *Ledger) Hold(pod device.PodUID, choices map[string]device.Choice) Devices {
	held := Devices{}
	for _, container := range slices.Sorted(maps.Keys(choices)) {
		for name, ids := range choices[container] {
			r := l.Resources[name]
			for _, id := range ids {
				switch {
				case r.take(id, pod):
				case r.quarantined[id]:
					delete(r.quarantined, id)
				case r.Has(id, pod):
					continue // its own already
				default:
					r.share(id, pod)
					l.agree(pod, name, id)
				}
				held[name] = append(held[name], id)
			}
		}
	}
	return held
}

// EndHold frees devices that were set aside for a pod, except those that its containers run with. Those are quarantined, or in dispute where other
// pods have them.
func (l *Ledger) EndHold(pod device.PodUID, held Devices) {
	for name, ids := range held {
		l.free(name, ids, pod)
	}
	for _, choice := range l.Quarantined[pod] {
		for name, ids := range choice {
			l.Resources[name].quarantine(ids, pod)
			l.Withhold(name)
		}
	}
	if l.Quarantined[pod] != nil {
		l.dispute(pod)
	}
	l.resolveDisputes()
}

// Releasing records why devices of a pod that has ended are not free yet; nil: the pod is back, or its proof begins afresh.
func (l *Ledger) Releasing(pod device.PodUID, ds Devices, why *device.Release) {
	for name, ids := range ds {
		r := l.Of(name)
		for _, id := range ids {
			if why == nil {
				delete(r.releasing, podDevice{id, pod})
			} else if r.Has(id, pod) {
				r.releasing[podDevice{id, pod}] = why
			}
		}
	}
}

// Release frees devices of a pod of which no container may run. No grant of the plugin for them holds any longer.
func (l *Ledger) Release(pod device.PodUID, ds Devices) {
	for name, ids := range ds {
		l.free(name, ids, pod)
		r := l.Resources[name]
		for _, id := range ids {
			delete(r.granted, id)
		}
		r.used(slices.DeleteFunc(slices.Clone(ids), r.IsTaken))
	}
	l.resolveDisputes()
}

// free takes devices from a pod.
func (l *Ledger) free(name device.ResourceName, ids []device.ID, from device.PodUID) {
	r := l.Resources[name]
	r.leave(ids, from)
	if slices.ContainsFunc(ids, func(id device.ID) bool { return !r.listing.Lists(id) }) {
		l.Withhold(name) // also where another pod has the device still: its grant may be older
	}
}
