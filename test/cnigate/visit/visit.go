// Package visit is what the CNI plugin cnigate notes of each pod that it was called for, and tests read.
package visit

// A Visit is one line of cnigate's log: one ADD.
type Visit struct {
	Pod     string              `json:"pod"`               // NAMESPACE/NAME
	Took    float64             `json:"took"`              // seconds
	Devices map[string][]string `json:"devices,omitempty"` // by resource
	Error   string              `json:"error,omitempty"`
}
