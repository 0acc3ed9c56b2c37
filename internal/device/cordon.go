package device

import (
	"fmt"
	"maps"
	"time"
)

// A Cordon takes one device out of service: no pod is assigned it. A pod that has the device keeps it.
type Cordon struct {
	Resource ResourceName `json:"-"`
	ID       ID           `json:"-"`
	Reason   string       `json:"reason,omitempty"` // as given by the operator
	Since    time.Time    `json:"since"`
}

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

// clone replaces the maps of these devices' resources with copies, once each.
func (cs Cordons) clone(devices []Cordon) {
	own := map[ResourceName]bool{}
	for _, d := range devices {
		if own[d.Resource] {
			continue
		}
		own[d.Resource] = true
		if cs[d.Resource] = maps.Clone(cs[d.Resource]); cs[d.Resource] == nil {
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
