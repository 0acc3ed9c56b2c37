package device

import "time"

// A Cordon takes one device out of service: nobody is given it. Whoever has it keeps it.
type Cordon struct {
	Resource ResourceName `json:"-"`
	ID       ID           `json:"-"`
	Reason   string       `json:"reason,omitempty"` // what somebody has said, for people
	Since    time.Time    `json:"since"`
}
