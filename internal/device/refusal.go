package device

import "fmt"

// A Refusal is an error that says why a container has to wait, in the one word for it and in a sentence.
// Rooms that fail on a container's behalf return one, so that whoever tells the user need not guess.
type Refusal struct {
	Wait
	Err error // the cause, if there is one
}

// Refuse makes a Refusal; cause may be nil.
func Refuse(reason Reason, cause error, format string, args ...any) *Refusal {
	return &Refusal{Wait: Wait{Reason: reason, Message: fmt.Sprintf(format, args...)}, Err: cause}
}

// Error returns the sentence and, if there is one, the cause.
func (r *Refusal) Error() string {
	if r.Err == nil {
		return r.Message
	}
	return r.Message + ": " + r.Err.Error()
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }
