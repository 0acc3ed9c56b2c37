package nri

import (
	"fmt"
	"sync"
	"time"
)

// hangLimit is how long a hook may take before it is clear that it never ends without help: it has a second at most.
const hangLimit = 10 * time.Second

// hooks are the runtime's questions and news that are being handled at this moment, over all connections: a runtime that
// does not wait any longer for an answer does not end the handler.
type hooks struct {
	mu       sync.Mutex
	underway map[*hook]bool
}

type hook struct {
	event string
	began time.Time
}

// begin notes that an event is being handled, until the returned function is called.
func (h *hooks) begin(event string) (end func()) {
	one := &hook{event, time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.underway == nil {
		h.underway = map[*hook]bool{}
	}
	h.underway[one] = true
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.underway, one)
	}
}

// check fails if one of them hangs.
func (h *hooks) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for one := range h.underway {
		if took := time.Since(one.began); took > hangLimit {
			return fmt.Errorf("handling %s of the container runtime has not ended after %s", one.event, took.Round(time.Second))
		}
	}
	return nil
}
