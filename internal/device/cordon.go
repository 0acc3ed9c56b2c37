package device

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// A Cordon takes one device out of service: no pod is assigned it. A pod that has the device keeps it.
type Cordon struct {
	Resource ResourceName `json:"-"`
	ID       ID           `json:"-"`
	Reason   string       `json:"reason,omitempty"` // as given by the operator, or devmgrd's own
	Since    time.Time    `json:"since"`
	Declared bool         `json:"-"` // by the Node's annotation, and not by a command
	// Suspended: devmgrd itself has cordoned the device, because it became unhealthy again and again, health.command objects, or it is Refused.
	Suspended bool      `json:"-"`
	Refused   bool      `json:"-"` // its plugin refuses it, or the host lacks what its grants name
	Until     time.Time `json:"-"` // when the suspension ends; zero: when health.command agrees
}

// Name returns RESOURCE/ID of the device.
func (c Cordon) Name() string { return string(c.Resource) + "/" + QuoteID(c.ID) }

// State returns the state of a device with the cordon that no pod has.
func (c Cordon) State() DeviceState {
	switch {
	case c.Refused:
		return StateRefused
	case c.Suspended:
		return StateSuspended
	}
	return StateCordoned
}

// Refusals are how often a device has been refused in a row, and why it was the last time.
type Refusals struct {
	Times int
	Why   string
}

// Falls is the record of a device that became unhealthy, perhaps again and again, or that the operator's command finds unhealthy.
type Falls struct {
	Resource ResourceName  `json:"-"`
	ID       ID            `json:"-"`
	Falls    []time.Time   `json:"falls"`           // when it became unhealthy; the latest ones, ascending
	Until    time.Time     `json:"until,omitzero"`  // it is suspended until then; zero: it never was
	Spell    time.Duration `json:"spell,omitempty"` // how long the latest suspension lasts
	// Objection is why health.command finds the device unhealthy; empty: it does not. Objected is since when.
	Objection string    `json:"objection,omitempty"`
	Objected  time.Time `json:"objected,omitzero"`
}

// CordonAnnotation is the Node's annotation that declares cordons.
const CordonAnnotation = "devmgrd.io/cordon"

// DRADriver is devmgrd's name as a driver of Dynamic Resource Allocation.
const DRADriver = "devmgrd.io"

// DevicesAnnotation is a pod's annotation that limits the devices of its containers.
const DevicesAnnotation = "devmgrd.io/devices"

// Cordons are the cordoned devices by resource. Readers share the inner maps: they are replaced, never changed.
type Cordons map[ResourceName]map[ID]Cordon

// Add adds cordons, and replaces those of the same devices.
func (cs Cordons) Add(cordons ...Cordon) {
	cs.clone(cordons)
	for _, c := range cordons {
		cs[c.Resource][c.ID] = c
	}
}

// Remove removes the cordons of these devices.
func (cs Cordons) Remove(devices ...Cordon) {
	cs.clone(devices)
	for _, d := range devices {
		delete(cs[d.Resource], d.ID)
	}
}

// Union returns the cordons of both for one resource. Where both have a cordon of a device, it is the first one's.
func (cs Cordons) Union(other Cordons, r ResourceName) map[ID]Cordon {
	switch {
	case len(other[r]) == 0:
		return cs[r]
	case len(cs[r]) == 0:
		return other[r]
	}
	all := maps.Clone(other[r])
	maps.Copy(all, cs[r])
	return all
}

// Of returns the cordons of one resource.
func (cs Cordons) Of(r ResourceName) Cordons { return Cordons{r: cs[r]} }

// Without returns the cordons that others do not have with the same reason, ascending.
func (cs Cordons) Without(others Cordons) (all []Cordon) {
	for r, of := range cs {
		for id, c := range of {
			if other, also := others[r][id]; !also || other.Reason != c.Reason {
				all = append(all, c)
			}
		}
	}
	slices.SortFunc(all, func(x, y Cordon) int { return cmp.Or(cmp.Compare(x.Resource, y.Resource), CompareIDs(x.ID, y.ID)) })
	return all
}

// clone replaces the maps of these devices' resources with copies, once each.
func (cs Cordons) clone(devices []Cordon) {
	own := map[ResourceName]bool{}
	for _, d := range devices {
		if own[d.Resource] {
			continue
		}
		own[d.Resource] = true
		cs[d.Resource] = maps.Clone(cs[d.Resource])
		if cs[d.Resource] == nil {
			cs[d.Resource] = map[ID]Cordon{}
		}
	}
}

// An UnknownDeviceError reports that a resource has no such device.
type UnknownDeviceError struct {
	Resource ResourceName
	ID       ID
}

func (e *UnknownDeviceError) Error() string {
	return fmt.Sprintf("there is no device %s of %s", QuoteID(e.ID), e.Resource)
}

// An UnsavedError reports that a change is not known to be durable: a commit has failed, and may be in the state file all the same. A part of the
// change may be in force.
type UnsavedError struct{ Err error }

func (e *UnsavedError) Error() string { return "not known to be durable: " + e.Err.Error() }

// Unwrap returns the commit's error.
func (e *UnsavedError) Unwrap() error { return e.Err }

// A DeclaredCordonError reports that a device is out of service by the Node's annotation only.
type DeclaredCordonError struct {
	Resource ResourceName
	ID       ID
}

func (e *DeclaredCordonError) Error() string {
	return fmt.Sprintf("device %s of %s is cordoned by the Node's annotation %s; remove it there", QuoteID(e.ID), e.Resource, CordonAnnotation)
}
