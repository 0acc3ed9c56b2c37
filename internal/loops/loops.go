// Package loops has what the loops of components are made of: signals that wake them, the times at which they have something to do, and the pauses between
// attempts to reach a peer. It imports no other package of devmgrd.
package loops

import (
	"time"

	"golang.org/x/time/rate"
)

// Signal has the receiver of a channel of size one look again. A signal that is pending covers this one too.
func Signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Earliest returns the earliest of several times. The zero time means never.
func Earliest(all ...time.Time) (first time.Time) {
	for _, t := range all {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

// Seldom returns a limit for log lines about one cause that another process can repeat at will.
func Seldom() *rate.Sometimes { return &rate.Sometimes{First: 5, Interval: time.Minute} }

// At returns a channel that delivers at that time; nil, which never delivers, for the zero time.
func At(t time.Time) <-chan time.Time {
	if t.IsZero() {
		return nil
	}
	return time.After(time.Until(t))
}
