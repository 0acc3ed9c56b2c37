package device

import "fmt"

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

// Error returns the sentence and, if there is one, the cause.
func (r *Refusal) Error() string {
	if r.Err == nil {
		return r.Message
	}
	return r.Message + ": " + r.Err.Error()
}

// Unwrap returns the cause.
func (r *Refusal) Unwrap() error { return r.Err }
