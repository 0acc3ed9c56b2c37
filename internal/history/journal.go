package history

import (
	"context"
	"log/slog"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// maxQueued bounds the actions that wait to be written.
const maxQueued = 1024

// An ActionStore keeps actions.
type ActionStore interface {
	// SaveActions makes actions durable, all or none.
	SaveActions(...device.Action) error
}

// A Journal records what devmgrd does to devices on its own. Its callers never wait for the disk.
type Journal struct {
	store ActionStore
	log   *slog.Logger
	wake  chan struct{}

	mu     locks.Mutex[locks.Leaf] // guards what follows
	queued []device.Action
	lost   int // actions that the queue had no room for
}

// NewJournal returns a Journal. Run makes it write.
func NewJournal(store ActionStore, log *slog.Logger) *Journal {
	return &Journal{store: store, log: log, wake: make(chan struct{}, 1)}
}

// Record records an action of this moment.
func (j *Journal) Record(a device.Action) {
	a.At, a.Own = time.Now(), true
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.queued) >= maxQueued {
		j.lost++
		return
	}
	j.queued = append(j.queued, a)
	loops.Signal(j.wake)
}

// Run writes until ctx ends, and then writes the rest. It always returns nil. An action that cannot be written is logged, as one of an
// operator is.
func (j *Journal) Run(ctx context.Context) error {
	for {
		select {
		case <-j.wake:
			j.flush()
		case <-ctx.Done():
			j.flush()
			return nil
		}
	}
}

func (j *Journal) flush() {
	j.mu.Lock()
	all, lost := j.queued, j.lost
	j.queued, j.lost = nil, 0
	j.mu.Unlock()
	if lost > 0 {
		j.log.Error("actions not recorded: too many at once", "count", lost)
	}
	if len(all) == 0 {
		return
	}
	if err := j.store.SaveActions(all...); err != nil {
		for _, a := range all {
			j.log.Error("action not recorded", "action", a.Verb, "subject", a.Subject, "reason", a.Reason, "err", err)
		}
	}
}
