// Package hostchecks bounds what devmgrd asks of file systems of the host that may hang: a network's, or a user's. A thread that asks one that hangs cannot
// be stopped. So a question about a source has one thread, for all callers, and there is a limit of the questions that are not answered.
//
// Hooks, CDI files, releases and plugins' sockets have a table each, so that none of them takes the room of another: together half of the threads that
// devmgrd.service may have.
package hostchecks

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"reflect"
	"runtime/debug"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/locks"
)

const (
	// maxChecks bounds the checks of a table under way, each of which costs a thread. An owner may have one, and one in ownShare of those that are free.
	maxChecks, ownShare = 128, 16
	// hangs is how long a check is under way before a hook does not wait for it any longer.
	hangs = 200 * time.Millisecond
	// keepsLate is how long a result is kept for the next hook if all callers have given up: the kubelet tries a container again after 10 to 15 s. A source
	// that always answers too late for a hook is served by that.
	keepsLate = 30 * time.Second
)

// MountSource names sources whose late results serve the next hook. Others are not kept: a device may have another number by then.
const MountSource = "mount source"

// Checks are the checks of an owner in a table.
type Checks struct {
	*table
	owner string
	hook  bool
}

// table has the checks of all owners.
type table struct {
	log *slog.Logger

	mu       locks.Mutex[locks.Leaf] // guards the fields below
	checks   map[question]*check     // under way or in line
	underway int
	owners   map[string]*owner   // of checks
	late     map[question]*check // that have ended after all callers had given up; each serves one more caller
}

// An owner is a namespace, for example.
type owner struct {
	underway int
	line     []*check // that wait until there is room
}

// A question is what is asked about a source, for an answer of this type.
type question struct {
	what, source string
	answer       reflect.Type
}

// A check is a question to the host. Its result is set when done is closed.
type check struct {
	question
	ask   func() (any, error)
	owner string
	hook  bool
	alone bool // for one caller

	waiting int       // callers; guarded by table.mu, as are the next two
	began   time.Time // zero: it is in line
	ended   time.Time

	done  chan struct{}
	value any
	err   error
}

// New returns the checks of a new table, of no owner in particular.
func New(log *slog.Logger) *Checks {
	return &Checks{table: &table{log: log, checks: map[question]*check{}, owners: map[string]*owner{}, late: map[question]*check{}}}
}

// For returns the checks of an owner. If the owner has too many, further ones wait in line.
func (c *Checks) For(owner string) *Checks { return &Checks{table: c.table, owner: owner} }

// ForHook returns the checks of an owner while the runtime waits: a caller waits neither in line, nor for a source that is known to hang. A table has hooks
// alone, or none.
func (c *Checks) ForHook(owner string) *Checks { return &Checks{c.table, owner, true} }

// A SilentError reports that the host has not answered. It wraps the error of the caller's context.
type SilentError struct {
	message string
	cause   error
}

// Error returns the message, without the cause.
func (e *SilentError) Error() string { return e.message }

// Unwrap returns the cause.
func (e *SilentError) Unwrap() error { return e.cause }

// silent returns the error of a check that has not ended; others: so many other ones keep it from being made.
func (q question) silent(others int, cause error) error {
	if others > 0 {
		return &SilentError{fmt.Sprintf("the %s %s cannot be checked: %d other sources on the host do not answer", q.what, q.source, others), cause}
	}
	return &SilentError{fmt.Sprintf("the host's file system does not answer about the %s %s", q.what, q.source), cause}
}

// Do returns f's result for a source on the host, or a SilentError. The result must depend on the question alone: callers share it.
func Do[T any](ctx context.Context, c *Checks, what, source string, f func() (T, error)) (T, error) {
	return do(ctx, c, what, source, false, f)
}

// Open is Do for what the caller has to close: callers do not share it. What is opened after the caller has given up is closed.
func Open[T io.Closer](ctx context.Context, c *Checks, what, source string, f func() (T, error)) (T, error) {
	return do(ctx, c, what, source, true, f)
}

func do[T any](ctx context.Context, c *Checks, what, source string, alone bool, f func() (T, error)) (found T, err error) {
	own := &check{
		question: question{what, source, reflect.TypeFor[T]()}, ask: func() (any, error) { return f() },
		owner: c.owner, hook: c.hook, alone: alone, waiting: 1, done: make(chan struct{}),
	}
	one := c.join(own)
	for alone && one != own { // another caller's
		select {
		case <-one.done:
		case <-ctx.Done():
			return found, own.silent(0, ctx.Err())
		}
		one = c.join(own)
	}
	if err := c.wait(ctx, one); err != nil {
		return found, err
	}
	if one.err != nil {
		return found, one.err
	}
	return one.value.(T), nil
}

// join returns the check of a question, or makes it of one.
func (t *table) join(one *check) *check {
	t.mu.Lock()
	defer t.mu.Unlock()
	if other := t.checks[one.question]; other != nil {
		if !one.alone {
			other.waiting++
		}
		return other
	}
	if late := t.late[one.question]; late != nil {
		delete(t.late, one.question)
		if time.Since(late.ended) < keepsLate {
			return late
		}
	}
	o := t.owners[one.owner]
	if o == nil {
		o = &owner{}
		t.owners[one.owner] = o
	}
	o.line = append(o.line, one)
	t.checks[one.question] = one
	t.beginLocked(o)
	return one
}

// othersLocked returns how many checks keep an owner's next one from being made.
func (t *table) othersLocked(o *owner) int {
	switch {
	case t.underway >= maxChecks:
		return t.underway
	case o.underway > 0 && o.underway >= (maxChecks-t.underway)/ownShare:
		return o.underway
	}
	return 0
}

// beginLocked begins those of an owner's checks in line for which there is room.
func (t *table) beginLocked(o *owner) {
	for len(o.line) > 0 && t.othersLocked(o) == 0 {
		one := o.line[0]
		o.line = o.line[1:]
		o.underway++
		t.underway++
		one.began = time.Now()
		go t.run(one) // ends when the host has answered
	}
}

// run asks the host.
func (t *table) run(one *check) {
	one.value, one.err = t.guarded(one)
	if unused := t.end(one); unused && one.alone && one.err == nil {
		_ = one.value.(io.Closer).Close()
	}
}

// guarded returns the host's answer, and a panic as an error.
func (t *table) guarded(one *check) (value any, err error) {
	defer func() {
		if r := recover(); r != nil {
			t.log.Error("host check panicked", "what", one.what, "source", one.source, "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("devmgrd: internal error: %v", r)
		}
	}()
	return one.ask()
}

// end ends a check, and reports whether all callers have given up.
func (t *table) end(one *check) (unused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one.ended = time.Now()
	unused = one.waiting == 0
	if unused && one.err == nil && one.hook && one.what == MountSource {
		maps.DeleteFunc(t.late, func(_ question, old *check) bool { return time.Since(old.ended) >= keepsLate })
		if len(t.late) < maxChecks {
			t.late[one.question] = one
		}
	}
	t.owners[one.owner].underway--
	t.underway--
	t.dropLocked(one)
	for _, o := range t.owners {
		t.beginLocked(o)
	}
	return unused
}

// dropLocked removes a check that has ended, or was in line.
func (t *table) dropLocked(one *check) {
	close(one.done)
	delete(t.checks, one.question)
	if o := t.owners[one.owner]; o.underway == 0 && len(o.line) == 0 {
		delete(t.owners, one.owner)
	}
}

// wait waits for a check. A hook waits neither in line, nor for one that is known to hang.
func (t *table) wait(ctx context.Context, one *check) error {
	err := context.DeadlineExceeded
	if t.worthwhile(one) {
		select {
		case <-one.done:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-one.done: // just now
		return nil
	default:
	}
	one.waiting--
	if !one.began.IsZero() {
		return one.silent(0, err)
	}
	o := t.owners[one.owner]
	others := t.othersLocked(o)
	if one.waiting == 0 {
		o.line = slices.DeleteFunc(o.line, func(other *check) bool { return other == one })
		t.dropLocked(one)
	}
	return one.silent(others, err)
}

// worthwhile reports whether a caller should wait for a check.
func (t *table) worthwhile(one *check) bool {
	if !one.hook {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return !one.ended.IsZero() || !one.began.IsZero() && time.Since(one.began) <= hangs
}
