package device

import (
	"fmt"
	"time"
)

// A Cordon takes one device out of service: nobody is given it. Whoever has it keeps it.
type Cordon struct {
	Resource ResourceName `json:"-"`
	ID       ID           `json:"-"`
	Reason   string       `json:"reason,omitempty"` // what somebody has said, for people
	Since    time.Time    `json:"since"`
}

// An UnknownDeviceError says that nobody has heard of a device.
type UnknownDeviceError struct {
	Resource ResourceName
	ID       ID
}

func (e *UnknownDeviceError) Error() string {
	return fmt.Sprintf("there is no device %s of %s", QuoteID(e.ID), e.Resource)
}
