package device

import "time"

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
