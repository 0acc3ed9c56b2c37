// Package hostchecks bounds what devmgrd asks of file systems of the host that may hang: a network's, or a user's. A thread that asks one that hangs cannot
// be stopped. So one thread asks about each source, for all callers, and there is a limit of the sources that do not answer.
package hostchecks

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"runtime/debug"
	"time"

	"github.com/devmgrd/devmgrd/internal/locks"
)

const (
	// maxChecks bounds the checks under way, each of which costs a thread. A node has fewer pods. An owner may have one, and one in ownShare of those that are free.
	maxChecks, ownShare = 256, 16
	// hangs is how long a check is under way before a hook does not wait for it any longer.
	hangs = 200 * time.Millisecond
	// keepsLate is how long a result is kept for the next hook if all callers have given up: the kubelet tries a container again after 10 to 15 s. A source
	// that always answers too late for a hook is served by that.
	keepsLate = 30 * time.Second
)

// MountSource names sources whose late results serve the next hook. Others are not kept: a device may have another number by then.
const MountSource = "mount source"

// Checks are the checks of an owner. All owners share one table.
type Checks struct {
	*table
	owner string
	hook  bool
}

// table has the checks by source.
type table struct {
	log *slog.Logger

	mu       locks.Mutex[locks.Leaf] // guards the fields below
	underway map[string]*check
	late     map[string]*check // that have ended after all callers had given up; each serves one more caller
	ended    chan struct{}     // closed when the next check ends
}

// New returns the checks of no owner in particular.
func New(log *slog.Logger) *Checks {
	return &Checks{table: &table{log: log, underway: map[string]*check{}, late: map[string]*check{}, ended: make(chan struct{})}}
}

// For returns the checks of an owner, such as a namespace. If the owner has too many, a caller waits.
func (c *Checks) For(owner string) *Checks { return &Checks{table: c.table, owner: owner} }

// ForHook returns the checks of an owner while the runtime waits: a caller waits neither for a source that is known to hang, nor for its owner's other
// checks.
func (c *Checks) ForHook(owner string) *Checks { return &Checks{c.table, owner, true} }

// A check is one question to the host. Its result is set when done is closed.
type check struct {
	owner   string
	began   time.Time
	waiting int // callers; guarded by table.mu
	ended   time.Time
	done    chan struct{}
	value   any
	err     error
}

// A SilentError reports that the host has not answered. It wraps the error of the caller's context.
type SilentError struct {
	message string
	cause   error
}

// Error returns the message, without the cause.
func (e *SilentError) Error() string { return e.message }

// Unwrap returns the cause.
func (e *SilentError) Unwrap() error { return e.cause }

// Do returns f's result for a source on the host, or a SilentError. The result must depend on what is asked and the source alone: callers share it.
func Do[T any](ctx context.Context, c *Checks, what, source string, f func() (T, error)) (T, error) {
	return ask(ctx, c, what, source, false, f)
}

// Open is Do for what the caller has to close: callers do not share it. What is opened after the caller has given up is closed.
func Open[T io.Closer](ctx context.Context, c *Checks, what, source string, f func() (T, error)) (T, error) {
	return ask(ctx, c, what, source, true, f)
}

func ask[T any](ctx context.Context, c *Checks, what, source string, alone bool, f func() (T, error)) (found T, err error) {
	one, others := c.begin(ctx, what, source, alone, func() (any, error) { return f() })
	err = cmp.Or(ctx.Err(), context.DeadlineExceeded)
	if one != nil {
		err = c.wait(ctx, one)
	}
	switch {
	case others > 0:
		return found, &SilentError{fmt.Sprintf("the %s %s cannot be checked: %d other sources on the host do not answer", what, source, others), err}
	case err != nil:
		return found, &SilentError{fmt.Sprintf("the host's file system does not answer about the %s %s", what, source), err}
	case one.err != nil:
		return found, one.err
	}
	return one.value.(T), nil
}

// wait waits for a check. A hook does not wait for one that is known to hang.
func (c *Checks) wait(ctx context.Context, one *check) error {
	select {
	case <-one.done:
		return nil
	default:
	}
	err := context.DeadlineExceeded
	if !c.hook || time.Since(one.began) <= hangs {
		select {
		case <-one.done:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-one.done: // just now
		return nil
	default:
	}
	one.waiting--
	return err
}

// begin returns the check of a source, or nil and the number of other checks that keep it from being made. Without a hook it waits until there is room.
func (c *Checks) begin(ctx context.Context, what, source string, alone bool, f func() (any, error)) (one *check, others int) {
	for {
		one, others, ended := c.join(what, source, alone, f)
		if one != nil || c.hook {
			return one, others
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, others
		}
	}
}

// join returns the check in progress for a source, or a new one. It returns nil if there are too many others, and their number, or if the check in progress
// is another caller's alone; ended is closed when any check has ended.
func (c *Checks) join(what, source string, alone bool, f func() (any, error)) (one *check, others int, ended <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := what + " " + source
	if one := c.underway[key]; one != nil && alone {
		return nil, 0, c.ended
	} else if one != nil {
		one.waiting++
		return one, 0, nil
	}
	if one := c.late[key]; one != nil && c.hook {
		delete(c.late, key)
		if time.Since(one.ended) < keepsLate {
			return one, 0, nil
		}
	}
	own := 0
	for _, other := range c.underway {
		if other.owner == c.owner {
			own++
		}
	}
	switch {
	case len(c.underway) >= maxChecks:
		return nil, maxChecks, c.ended
	case own > 0 && own >= (maxChecks-len(c.underway))/ownShare:
		return nil, own, c.ended
	}
	one = &check{owner: c.owner, began: time.Now(), waiting: 1, done: make(chan struct{})}
	c.underway[key] = one
	go func() { // ends when the host has answered
		one.value, one.err = guarded(c.log, key, f)
		if unused := c.end(key, one, what == MountSource); unused && alone && one.err == nil {
			_ = one.value.(io.Closer).Close()
		}
	}()
	return one, 0, nil
}

// guarded returns f's result, and a panic as an error.
func guarded(log *slog.Logger, source string, f func() (any, error)) (value any, err error) {
	defer func() {
		if r := recover(); r != nil {
			log.Error("host check panicked", "source", source, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("devmgrd: internal error: %v", r)
		}
	}()
	return f()
}

// end ends a check, and reports whether all callers have given up. keep: its result then serves another one.
func (t *table) end(key string, one *check, keep bool) (unused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.underway, key)
	one.ended = time.Now()
	unused = one.waiting == 0
	if unused && one.err == nil && keep {
		maps.DeleteFunc(t.late, func(_ string, old *check) bool { return time.Since(old.ended) >= keepsLate })
		if len(t.late) < maxChecks {
			t.late[key] = one
		}
	}
	close(one.done)
	close(t.ended)
	t.ended = make(chan struct{})
	return unused
}
