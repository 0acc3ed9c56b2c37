package device

import (
	"fmt"
	"time"
)

// A Cordon takes one device out of service: no pod is assigned it. A pod that has the device keeps it.
type Cordon struct {
	Resource ResourceName `json:"-"`
	ID       ID           `json:"-"`
	Reason   string       `json:"reason,omitempty"` // as given by the operator
	Since    time.Time    `json:"since"`
}

// An UnknownDeviceError reports that a resource has no such device.
type UnknownDeviceError struct {
	Resource ResourceName
	ID       ID
}

func (e *UnknownDeviceError) Error() string {
	return fmt.Sprintf("there is no device %s of %s", QuoteID(e.ID), e.Resource)
}
