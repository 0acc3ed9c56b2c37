// Package hostchecks bounds what devmgrd asks of file systems of the host that may hang: a network's, or a user's. A thread that asks one that hangs cannot
// be stopped. So a question about a source has one thread, for all callers, and there is a limit of the questions that are not answered.
//
// Hooks, CDI files, releases and plugins' sockets have a table each, so that none of them takes the room of another: together half of the threads that
// devmgrd.service may have.
package hostchecks

import (
	"cmp"
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
	// maxChecks bounds the checks of a table under way, each of which costs a thread. While there is room, an owner may have one, and one in ownShare of those that are free.
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
	by           string // the owner; empty: all owners share the answer
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

// silentLocked returns the error of a check that has not ended.
func (t *table) silentLocked(one *check, cause error) error {
	if o := t.owners[one.owner]; one.began.IsZero() && o != nil {
		return &SilentError{fmt.Sprintf("the %s %s cannot be checked: %d other checks of the host's files have not ended", one.what, one.source, t.othersLocked(o)), cause}
	}
	return &SilentError{fmt.Sprintf("the host's file system does not answer about the %s %s", one.what, one.source), cause}
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
		question: question{what: what, source: source, answer: reflect.TypeFor[T]()}, ask: func() (any, error) { return f() },
		owner: c.owner, hook: c.hook, alone: alone, waiting: 1, done: make(chan struct{}),
	}
	if alone {
		own.by = c.owner
	}
	one := c.join(own)
	for alone && one != own { // another caller's
		if err := c.await(ctx, one); err != nil {
			return found, err
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
			t.adoptLocked(other, one.owner)
		}
		return other
	}
	if late := t.late[one.question]; late != nil {
		delete(t.late, one.question)
		if time.Since(late.ended) < keepsLate {
			return late
		}
	}
	t.checks[one.question] = one
	t.queueLocked(one)
	return one
}

// queueLocked puts a check into its owner's line, and begins it if there is room.
func (t *table) queueLocked(one *check) {
	o := t.owners[one.owner]
	if o == nil {
		o = &owner{}
		t.owners[one.owner] = o
	}
	o.line = append(o.line, one)
	t.beginLocked(o)
}

// leaveLocked takes a check out of its owner's line.
func (t *table) leaveLocked(one *check) {
	o := t.owners[one.owner]
	o.line = slices.DeleteFunc(o.line, func(other *check) bool { return other == one })
	t.forgetLocked(one.owner)
}

// adoptLocked begins a check in another owner's line for an owner that has room for it.
func (t *table) adoptLocked(one *check, by string) {
	o := t.owners[by]
	if one.began.IsZero() && one.owner != by && t.othersLocked(cmp.Or(o, &owner{})) == 0 {
		t.leaveLocked(one)
		one.owner = by
		t.queueLocked(one)
	}
}

// forgetLocked forgets an owner without checks.
func (t *table) forgetLocked(name string) {
	if o := t.owners[name]; o.underway == 0 && len(o.line) == 0 {
		delete(t.owners, name)
	}
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
	t.forgetLocked(one.owner)
	t.dropLocked(one)
	for _, o := range t.owners {
		t.beginLocked(o)
	}
	return unused
}

// dropLocked removes a check that has ended, or has left the line.
func (t *table) dropLocked(one *check) {
	close(one.done)
	delete(t.checks, one.question)
}

// await waits for another caller's check.
func (t *table) await(ctx context.Context, one *check) error {
	select {
	case <-one.done:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.silentLocked(one, ctx.Err())
}

// wait waits for the caller's check. A hook waits neither in line, nor for one that is known to hang.
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
	err = t.silentLocked(one, err)
	if one.waiting == 0 && one.began.IsZero() {
		t.leaveLocked(one)
		t.dropLocked(one)
	}
	return err
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
