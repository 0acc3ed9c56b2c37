package device

import "time"

// An Action is an operator's command that changes something in devmgrd, or copies its files.
type Action struct {
	At       time.Time
	Verb     string // cordon, uncordon, drain, forget or backup
	Operator Operator
	Subject  []string // devices as RESOURCE/ID, a resource, or a file; at most the first few
	More     int      // subjects that Subject leaves out
	Reason   string   // as given by the operator
	Err      string   // why devmgrd refused the command; empty: it succeeded
}

// An Operator is the process that issued a command, as the kernel reports it.
type Operator struct {
	UID   uint32
	Login *uint32 // the user at login (/proc/PID/loginuid); nil: no login, as from a service or a container
	PID   int32   // 0: outside of devmgrd's PID namespace
	Name  string  // of the program
}

// A Span is one container's hold on devices of one resource, with its beginning and end.
type Span struct {
	Number      uint64 // unique, and higher than in any earlier span
	Pod         Pod
	Container   string
	Resource    ResourceName
	IDs         []ID // ascending
	From        time.Time
	FromApprox  bool      // devmgrd did not see the beginning: From is when it noticed
	Until       time.Time // zero: the container still has them
	UntilApprox bool      // devmgrd did not see the end: Until is when it noticed
}

// A SpanKey identifies a span that has ended. Keys sort by the time of the end.
type SpanKey struct {
	Until  time.Time
	Number uint64
	Bytes  int // approximate size of its record
}
