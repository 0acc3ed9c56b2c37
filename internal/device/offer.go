package device

import "time"

// A Device is one device as its plugin describes it.
type Device struct {
	ID      ID    `json:"id"`
	Healthy bool  `json:"healthy"`
	NUMA    []int `json:"numa,omitempty"` // the NUMA nodes it is near; empty: it has no place
}

// An Inventory is a plugin's latest full word on its devices: replaced, never patched.
// Devices are in ascending order of ID and no ID appears twice.
type Inventory struct {
	Resource ResourceName
	Devices  []Device
}

// SameList tells whether two lists of devices are one slice, not just alike. Lists are replaced and never edited, so one
// that is handed on unchanged is recognised by that, however long it is.
func SameList(a, b []Device) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// An Offer is what devmgrd has of one resource at this moment.
type Offer struct {
	Inventory Inventory
	State     OfferState
	Since     time.Time // it has been Serving or, of the other two, away; or since devmgrd has known
	Reported  bool      // the plugin, or the store on its behalf, has listed its devices at least once
	PreStart  bool      // PreStartContainer has to run before each start of a container
	Prefers   bool      // GetPreferredAllocation may be asked which devices go well together
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
// without registering anew, and the published number does not move while it is away.
type PluginRecord struct {
	Resource ResourceName
	Endpoint string   // its socket: a name in the plugin directory, or a path
	Reported bool     // Devices is the plugin's word, not just the lack of one
	Devices  []Device // as in Inventory
}
