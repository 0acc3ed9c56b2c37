package takeover

import (
	"context"
	"time"
)

// A pace limits how often devmgrd takes the path from another process: 200 times in one go, then 10 times a second. A kubelet's
// starts stay below that.
type pace struct {
	due time.Time // the time of the latest taking, had all of them been an interval apart
}

const (
	burst    = 200
	interval = 100 * time.Millisecond
)

// took counts a taking.
func (p *pace) took(now time.Time) {
	if first := now.Add(-burst * interval); p.due.Before(first) {
		p.due = first
	}
	p.due = p.due.Add(interval)
}

// wait returns when the next taking is due, or ctx ends.
func (p *pace) wait(ctx context.Context) {
	early := time.Until(p.due)
	if early <= 0 {
		return
	}
	select {
	case <-time.After(early):
	case <-ctx.Done():
	}
}
