package ledger

import (
	"github.com/devmgrd/devmgrd/internal/allocator/internal/failures"
	"github.com/devmgrd/devmgrd/internal/device"
)

// A Resource is what the ledger knows of one resource. Its exported methods change nothing: only the Ledger does.
type Resource struct {
	offer    device.Offer  // the latest one
	offered  bool          // an offer has been seen; otherwise only the devices in use by the state file are known
	listing  *Listing      // of the offer
	holders                // which pod has which device
	index                  // which devices are free
	unclear                // what the plugin's list and the state file leave open about devices in use
	answers                // of the plugin, to requests for devices
	releases               // their order
	demand                 // what pods request
	failures *failures.Log // of devices in use

	failUnlisted bool // devices in use that the plugin does not list have failed, also if it has never listed them
}

// demand is what the node's active pods in the API request.
type demand struct {
	requests int                // the sum
	admitted int                // the part of pods that the kubelet has admitted
	claimed  map[podDevice]bool // devices that pods name by claims that the scheduler does not count as requests
}

func newResource(failUnlisted bool) *Resource {
	return &Resource{
		listing: NewListing(nil, nil, Ordering{}, nil), failures: failures.New(), failUnlisted: failUnlisted,
		holders:  holders{map[device.ID]device.PodUID{}, map[device.ID][]device.PodUID{}, map[device.ID]bool{}, map[podDevice]*device.Release{}},
		unclear:  unclear{vanished: map[device.ID]bool{}},
		answers:  answers{refused: map[device.ID]refusal{}, granted: map[device.ID]device.PodUID{}},
		releases: releases{released: map[device.ID]int64{}},
		demand:   demand{claimed: map[podDevice]bool{}},
	}
}

func (r *Resource) Offer() device.Offer { return r.offer }            // the latest one; the zero value before there is one
func (r *Resource) Offered() bool       { return r.offered }          // there is an offer
func (r *Resource) Listing() *Listing   { return r.listing }          // of the latest offer
func (r *Resource) Requests() int       { return r.requests }         // of the node's active pods in the API
func (r *Resource) NamedByClaims() bool { return len(r.claimed) > 0 } // pods name its devices by claims
func (r *Resource) UnknownUsers() int   { return r.unknownUsers }     // containers that run with devices that only a lost state file named

// Current reports whether the listing is up to date.
func (r *Resource) Current() bool {
	return r.offered && r.offer.State == device.Serving && r.offer.Reported
}

// Idle reports whether nothing depends on the resource: it is not offered, and no pod has or requests its devices.
func (r *Resource) Idle() bool {
	return !r.offered && len(r.taken) == 0 && r.unknownUsers == 0 && r.requests == 0 && r.admitted == 0 && len(r.claimed) == 0
}

// Broken reports whether a device in use is unhealthy, or has left the list of a plugin that went on serving. A plugin that has restarted may list only
// what is free, as SR-IOV's does: a device that it has never listed is Broken only with failUnlisted.
func (r *Resource) Broken(id device.ID) bool {
	d, listed := r.listing.Find(id)
	return listed && !d.Healthy || !listed && (r.failUnlisted || r.vanished[id])
}

// Unavailable returns why no device of the resource can be assigned, or nil.
func (r *Resource) Unavailable(name device.ResourceName) *device.Refusal {
	switch {
	case r == nil || !r.offered:
		return device.Refuse(device.PluginMissing, nil, "no device plugin has registered %s", name)
	case r.offer.State == device.Lost && r.offer.Connected, r.offer.State == device.Serving && !r.offer.Reported:
		return device.Refuse(device.PluginMissing, nil, "the device plugin of %s has not listed its devices yet", name)
	case r.offer.State == device.Lost:
		return device.Refuse(device.PluginMissing, nil, "the device plugin of %s is disconnected", name)
	case r.offer.State == device.Stale && r.offer.Connected:
		return device.Refuse(device.PluginStale, nil, "the device plugin of %s is connected again and has not listed its devices yet", name)
	case r.offer.State == device.Stale:
		return device.Refuse(device.PluginStale, nil, "the device plugin of %s has just disconnected and may return", name)
	case r.unknownUsers > 0:
		return device.Refuse(device.DevicesUnknown, nil, "%s: %d containers run with devices that only the lost state file named; allocation resumes when these containers have ended", name, r.unknownUsers)
	}
	return nil
}

// accept replaces the offer.
func (r *Resource) accept(o device.Offer, l *Listing, changed []device.ID) {
	if r.offer.Session != o.Session {
		r.answers.endPauses()
	}
	same := r.offered && r.offer.Listed == o.Listed
	if !same {
		clear(r.vanished)
	}
	for _, id := range changed {
		if l.Lists(id) {
			delete(r.vanished, id)
		} else if r.IsTaken(id) && same && o.Listed != 0 {
			r.vanished[id] = true
		}
	}
	r.offer, r.offered = o, true
	r.setListing(l)
}
