package takeover

import (
	"context"
	"time"
)

// A pace lets a kubelet's starts pass, and holds up those who fight for the path with us: after two hundred takings in
// one go there are ten in a second.
type pace struct {
	due time.Time // when the latest taking would have been, had there never been more than ten in a second
}

const (
	burst    = 200
	interval = 100 * time.Millisecond
)

// took notes a taking.
func (p *pace) took(now time.Time) {
	if first := now.Add(-burst * interval); p.due.Before(first) {
		p.due = first
	}
	p.due = p.due.Add(interval)
}

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
