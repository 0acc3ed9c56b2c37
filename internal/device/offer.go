package device

import "time"

// A Device is one device as its plugin describes it.
type Device struct {
	ID      ID    `json:"id"`
	Healthy bool  `json:"healthy"`
	NUMA    []int `json:"numa,omitempty"` // the NUMA nodes it is near; empty: it has no place
	// Added is when the plugin began to list the device, in Unix nanoseconds: higher than the Added of each device that
	// the plugin began to list earlier. 0: the device was in the plugin's first list, or the time is not known.
	Added int64 `json:"added,omitempty"`
}

// An Inventory is a plugin's latest full word on its devices: replaced, never patched.
// Devices are in the order of CompareIDs and no ID appears twice.
type Inventory struct {
	Resource ResourceName
	Devices  []Device
}

// SameList reports whether two lists of devices are one slice, not just alike. Lists are replaced and never edited, so one
// that is handed on unchanged is recognised by that, however long it is.
func SameList(a, b []Device) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// An Offer is what devmgrd has of one resource at this moment.
type Offer struct {
	Inventory Inventory
	State     OfferState
	Since     time.Time // it has been Serving, connected or away; or since devmgrd has known
	Connected bool      // a plugin has been reached and its devices are asked for, though it may not have listed them yet
	Reported  bool      // the plugin, or the store on its behalf, has listed its devices at least once
	PreStart  bool      // PreStartContainer has to run before each start of a container
	Session   uint64    // changes when a registration is accepted, and when a plugin that was away lists its devices again
	Prefers   bool      // GetPreferredAllocation may be asked which devices go well together
	// LastError is why the plugin could not be reached, registered or followed the last time that this failed, and
	// LastErrorAt when that was. Empty: it has not failed since devmgrd was started.
	LastError   string
	LastErrorAt time.Time
}

// StatusConnected is the Status of an Offer whose plugin is there and has not listed its devices yet.
const StatusConnected = "connected"

// Status returns the state of the Offer's plugin in a word: "serving", "connected", "stale" or "lost".
func (o Offer) Status() string {
	if o.Connected && (o.State != Serving || !o.Reported) {
		return StatusConnected
	}
	return o.State.String()
}

// OfferState says how far an Offer may be trusted.
type OfferState int

const (
	// Serving: the plugin's stream is open.
	Serving OfferState = iota
	// Stale: the plugin is away, but has been for less than the grace period. Its devices still count for the
	// published number, so that a plugin's roll-out moves nothing; nothing new is allocated from it.
	Stale
	// Lost: the plugin has been away for longer. Only devices in use count.
	Lost
)

func (s OfferState) String() string {
	return [...]string{"serving", "stale", "lost"}[s]
}

// A PluginRecord is what the store keeps of a resource, so that a plugin that still serves can be taken up again
// without registering again, and the published number does not move while it is away.
type PluginRecord struct {
	Resource ResourceName
	Endpoint string // its socket: a name in the directory in which it registered, or a path
	Pod      PluginPod
	Reported bool     // Devices is the plugin's word, not just the lack of one
	Devices  []Device // as in Inventory
	// Away is since when the plugin is away, and Lost that it has been so for the grace period. Zero: the plugin served
	// when the record was written, or the record is of a version that did not keep it.
	Away time.Time
	Lost bool
}
