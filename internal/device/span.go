package device

import "time"

// A Span is one container's hold on devices of one resource, from when to when.
type Span struct {
	Number      uint64 // its own, and higher than that of any before it
	Pod         Pod
	Container   string
	Resource    ResourceName
	IDs         []ID // ascending
	From        time.Time
	FromApprox  bool      // nobody saw it begin: From is when it was noticed
	Until       time.Time // zero: the container has them still
	UntilApprox bool      // nobody saw it end: Until is when that was noticed
}

// A SpanKey names a span that has ended. Those of the oldest ends come first.
type SpanKey struct {
	Until  time.Time
	Number uint64
	Bytes  int // about what it takes to keep it
}
