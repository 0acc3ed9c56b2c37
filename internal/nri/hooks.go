package nri

import (
	"fmt"
	"time"

	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/locks"
)

// hangLimit is the duration after which a hook counts as hung; it should take a second at most.
const hangLimit = 10 * time.Second

// hooks are the events in progress, over all connections: a handler continues when the runtime does not wait for its answer any
// longer.
type hooks struct {
	mu       locks.Mutex[locks.Leaf]
	underway map[*hook]bool
}

type hook struct {
	event string
	began time.Time
}

// begin counts an event as in progress until the returned function is called.
func (h *hooks) begin(event string) (end func()) {
	one := &hook{event, time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	lists.Put(&h.underway, one, true)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.underway, one)
	}
}

// check fails if an event is in progress for longer than hangLimit.
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
