package device

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Wait is why a container or pod waits.
type Wait struct {
	Reason  Reason
	Message string // names the resource and the counts
	// InUse: other pods have the devices. The wait ends when they end, so it is the scheduler's business and no fault.
	InUse bool
}

// Same reports whether two waits are equal, or have the reason NotEnoughDevices or DeviceUnhealthy and differ only in counts and times, which other
// pods change all the time.
func (w Wait) Same(as Wait) bool {
	if w.Reason != as.Reason || w.InUse != as.InUse || w.Reason != NotEnoughDevices && w.Reason != DeviceUnhealthy {
		return w == as
	}
	return slices.EqualFunc(strings.Fields(w.Message), strings.Fields(as.Message), func(one, other string) bool {
		return one == other || isCount(one) && isCount(other)
	})
}

// isCount reports whether a word is a number or a time; names may contain digits.
func isCount(word string) bool {
	return strings.ContainsAny(word, "0123456789") && strings.Trim(word, "0123456789-:TZ,") == ""
}

// A ReadinessState is the kind of answer to the runtime's question about a container.
type ReadinessState int

const (
	// Unknown: the container's pod is unknown.
	Unknown ReadinessState = iota
	// NoDevices: the container requests no device.
	NoDevices
	// Ready: the assignment is durable and may be injected.
	Ready
	// Pending: an allocation or a preparation is in flight; Done is closed when it has ended, either way.
	Pending
	// Waiting: the container cannot have its devices now; Wait is the reason.
	Waiting
)

// A Readiness is the present state of a container's devices.
type Readiness struct {
	State      ReadinessState
	Wait       Wait            // of Pending and Waiting
	Assignment Assignment      // of Ready
	Demand     Demand          // of Ready
	Pod        Pod             // of Ready
	OwnUsers   bool            // of Ready: PodDemand.UserNamespace
	Fresh      bool            // of Ready: no container has been created with the plugin's answer yet
	Done       <-chan struct{} // of Pending
}

// A Running is a container as the runtime reports it.
type Running struct {
	ID        string // in the runtime
	Container Container
	Sandbox   string                  // the runtime's ID of the container's sandbox
	Stamp     map[ResourceName][]ID   // devmgrd's annotation at creation; nil: none
	Digests   map[ResourceName]string // Digest of lists too long for the stamp; an empty digest matches nothing
	Made      time.Time               // zero: not known
	Idle      bool                    // created and not started when the runtime listed it
	Restored  bool                    // from a checkpoint: no report of its start will come
	Lacks     string                  // of one that ended before it started: what the host lacks of its CDI devices; empty: nothing is known
}

// A Refusal is an error that carries why a container waits, as a Reason and a sentence. Packages that fail on a container's
// behalf return one, so that the user sees the exact reason.
type Refusal struct {
	Wait
	Err error // the cause, if there is one
}

// Refuse returns a Refusal; cause may be nil.
func Refuse(reason Reason, cause error, format string, args ...any) *Refusal {
	return &Refusal{Wait: Wait{Reason: reason, Message: fmt.Sprintf(format, args...)}, Err: cause}
}

// ErrNotAsked is why a plugin has not been asked: the refusal says nothing of the devices.
var ErrNotAsked = errors.New("it was busy with other calls")

// Error returns the sentence and, if there is one, the cause.
func (r *Refusal) Error() string {
	if r.Err == nil {
		return r.Message
	}
	return r.Message + ": " + r.Err.Error()
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }
