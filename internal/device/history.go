package device

import "time"

// An Action is an operator's command that changes something in devmgrd, or copies its files; or what devmgrd has done to devices on its
// own.
type Action struct {
	At      time.Time `json:"-"`
	Own     bool      `json:"-"`                 // of devmgrd, without an operator
	Verb    string    `json:"verb"`              // cordon, uncordon, drain, forget or backup; with Own one of those below
	Subject []string  `json:"subject,omitempty"` // devices as RESOURCE/ID, a resource, or a file; at most the first few
	More    int       `json:"more,omitempty"`    // subjects that Subject leaves out
	Reason  string    `json:"reason,omitempty"`  // as given by the operator
	Err     string    `json:"err,omitempty"`     // why devmgrd refused the command; empty: it succeeded
	Operator
}

// maxSubjectBytes bounds the names in one action.
const maxSubjectBytes = 16 << 10

// On sets the subjects of an action: 16 KiB of names at most.
func (a *Action) On(names []string) {
	a.Subject = nil
	for size := 0; len(a.Subject) < len(names); {
		next := names[len(a.Subject)]
		if size += len(next); size > maxSubjectBytes {
			break
		}
		a.Subject = append(a.Subject, next)
	}
	a.More = len(names) - len(a.Subject)
}

// The verbs of devmgrd's own actions.
const (
	VerbSuspend = "suspend" // the device is suspended
	VerbResume  = "resume"  // its suspension has ended
	VerbBusy    = "busy"    // devices of an ended pod are out of service, since a process uses them or release.command has failed
	VerbFree    = "free"    // these are free now
)

// An Operator is the process that issued a command, as the kernel reports it.
type Operator struct {
	UID   uint32  `json:"uid"`
	Login *uint32 `json:"login,omitempty"` // the user at login (/proc/PID/loginuid); nil: no login, as from a service or a container
	PID   int32   `json:"pid"`             // 0: outside of devmgrd's PID namespace
	Name  string  `json:"name,omitempty"`  // of the program
}

// A Span is one container's hold on devices of one resource, with its beginning and end.
type Span struct {
	Number      uint64       `json:"-"` // unique, and higher than in any earlier span
	Pod         Pod          `json:"pod"`
	Container   string       `json:"container"`
	Resource    ResourceName `json:"resource"`
	IDs         []ID         `json:"ids"` // ascending
	From        time.Time    `json:"from"`
	FromApprox  bool         `json:"fromLate,omitempty"`  // devmgrd did not see the beginning: From is when it noticed
	Until       time.Time    `json:"until,omitzero"`      // zero: the container still has them
	UntilApprox bool         `json:"untilLate,omitempty"` // devmgrd did not see the end: Until is when it noticed
}

// A SpanKey identifies a span that has ended. Keys sort by the time of the end.
type SpanKey struct {
	Until  time.Time
	Number uint64
	Bytes  int // approximate size of its record
}
