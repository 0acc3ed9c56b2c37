package history

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// An Allocator publishes allocations and their changes.
type Allocator interface {
	Snapshot() *device.Snapshot
	// ChangesSince returns the changes after a revision in order, at most most of them; false: not all of them are known.
	ChangesSince(revision uint64, most int) ([]device.Change, bool)
	// Updated returns a channel that is closed at the next change after the call.
	Updated() <-chan struct{}
}

// A Store keeps spans.
type Store interface {
	// SaveHistory makes spans durable, each in place of its open record, and forgets others, in one commit.
	SaveHistory(save []device.Span, forget []device.SpanKey) error
	// Spans returns all spans that had not ended by then.
	Spans(since time.Time) ([]device.Span, error)
	// OpenSpans returns the spans that have not ended.
	OpenSpans() ([]device.Span, error)
	// HistoryKeys returns the keys of all spans that have ended, ordered by end.
	HistoryKeys() ([]device.SpanKey, error)
}

// Config is what New needs.
type Config struct {
	Allocator Allocator
	Store     Store
	Known     []device.Span // the open spans in Store, if they could be read
	Log       *slog.Logger
}

// A Recorder records which container had which devices.
type Recorder struct {
	cfg Config

	counted bool // the history file's content has been added to spans; Run's
	failing bool // the failure to write has been logged; Run's

	mu       locks.Mutex[locks.HistoryRecorder]
	spans    spans
	revision uint64 // of the allocator, up to which spans are current
	begun    bool   // revision is of this process
}

// Bounds of the history.
const (
	MaxEnded = 10_000
	MaxAge   = 30 * 24 * time.Hour
	maxBytes = 16 << 20 // of ended spans, as stored
)

const (
	batch    = time.Second // delay from a change to its write
	retry    = time.Minute // the longest pause while writes fail
	maxSteps = 256         // changes fetched at once
)

// New returns a Recorder. It reads and writes nothing before Run.
func New(c Config) *Recorder {
	if c.Allocator == nil || c.Store == nil || c.Log == nil {
		panic("history: Allocator, Store and Log are required")
	}
	return &Recorder{cfg: c, spans: newSpans(c.Known)}
}

// Run writes until ctx ends, and then writes the rest. It always returns nil.
func (r *Recorder) Run(ctx context.Context) error {
	again := loops.Backoff{First: batch, Last: retry}
	for {
		moved := r.cfg.Allocator.Updated() // before update reads anything, so that no later change is missed
		err := r.update()
		pause := batch
		if err == nil {
			again.Reset()
			select {
			case <-moved:
			case <-ctx.Done():
			}
		} else {
			pause = max(batch, again.Next())
		}
		loops.Sleep(ctx, pause)
		if ctx.Err() != nil {
			_ = r.update()
			return nil
		}
	}
}

// Spans returns all remembered spans that had not ended by then, ordered by beginning.
func (r *Recorder) Spans(since time.Time) ([]device.Span, error) {
	if oldest := time.Now().Add(-MaxAge); since.Before(oldest) {
		since = oldest
	}
	r.mu.Lock()
	r.followLocked()
	fresh := r.spans.unwritten(since)
	r.mu.Unlock()
	// In this order a span written meanwhile is in both lists; in the other order it would be in none.
	all, err := r.cfg.Store.Spans(since)
	if err != nil {
		return nil, err
	}
	at := map[uint64]int{}
	for i, s := range all {
		at[s.Number] = i
	}
	for _, s := range fresh {
		i, written := at[s.Number]
		switch {
		case !written:
			all = append(all, s)
		case all[i].Until.IsZero():
			all[i] = s
		}
	}
	slices.SortFunc(all, func(a, b device.Span) int {
		return cmp.Or(a.From.Compare(b.From), cmp.Compare(a.Number, b.Number))
	})
	return all, nil
}

// followLocked brings the spans up to date with the allocator.
func (r *Recorder) followLocked() {
	for r.begun {
		changes, known := r.cfg.Allocator.ChangesSince(r.revision, maxSteps)
		if !known {
			break
		}
		if len(changes) == 0 {
			return
		}
		for _, c := range changes {
			if c.After != nil {
				r.spans.show(c.After, c.At, false)
			} else if c.Before != nil {
				r.spans.show(&device.PodAllocation{Pod: c.Before.Pod}, c.At, false)
			}
			r.revision = c.Revision
		}
	}
	b := r.cfg.Allocator.Snapshot()
	r.spans.replace(b.Pods, time.Now())
	r.revision, r.begun = b.Revision, true
}

// update writes due records. It logs the first failure and the recovery.
func (r *Recorder) update() error {
	r.countStored()
	r.mu.Lock()
	r.followLocked()
	r.spans.trim(time.Now())
	save, forget := r.spans.due()
	r.mu.Unlock()
	if len(save) == 0 && len(forget) == 0 {
		return nil
	}
	err := r.cfg.Store.SaveHistory(save, forget)
	if err == nil {
		r.mu.Lock()
		r.spans.written(save, len(forget))
		r.mu.Unlock()
	}
	switch {
	case err != nil && !r.failing:
		r.cfg.Log.Error("cannot write history; retrying", "err", err)
	case err == nil && r.failing:
		r.cfg.Log.Info("history writable again")
	}
	r.failing = err != nil
	return err
}

// countStored adds the history file's earlier content, as soon as the file is readable. Of ended spans it reads only the
// keys.
func (r *Recorder) countStored() {
	if r.counted {
		return
	}
	open, err := r.cfg.Store.OpenSpans()
	var keys []device.SpanKey
	if err == nil {
		keys, err = r.cfg.Store.HistoryKeys()
	}
	if err != nil {
		return // a file that cannot be opened cannot be written either, and update logs that
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spans.adopt(open) {
		r.begun = false // the spans' pods may have gone
	}
	r.spans.add(keys)
	r.counted = true
}
