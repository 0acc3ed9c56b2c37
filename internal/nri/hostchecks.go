package nri

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
)

const (
	// maxHostChecks bounds the sources that do not answer: each costs a thread. A node has fewer pods. One owner may have one, and one in ownShare of those that are free.
	maxHostChecks, ownShare = 256, 16
	// hangs is how long a check is under way before its source counts as one that does not answer: no other caller with an owner waits for it.
	hangs = 200 * time.Millisecond
	// keepsLate is how long a result is kept for the next caller if all that asked have given up: the kubelet tries a container again after 10 to 15 s. A source
	// that always answers too late for a hook is served by that. Only what is found at sources of mounts (mountSource) is kept: a device may have another number by then.
	keepsLate   = 30 * time.Second
	mountSource = "mount source"
)

// hostChecks are the host checks in progress by source, over all connections. If a file system hangs (a network's, a user's), the
// thread that reads it hangs too. So each source has one check at a time, and further callers wait for its result: a pod whose
// source hangs costs one thread, however often the kubelet retries it, and does not delay other pods.
type hostChecks struct {
	log   *slog.Logger
	owner string // the namespace of the pods that they are for; empty: any
	*sources
}

// sources are those that are being checked.
type sources struct {
	mu       locks.Mutex[locks.Leaf]
	underway map[string]*hostCheck
	late     map[string]*hostCheck // that have ended after all callers had given up; each serves one more caller
}

func newHostChecks(log *slog.Logger) *hostChecks {
	return &hostChecks{log: log, sources: &sources{underway: map[string]*hostCheck{}, late: map[string]*hostCheck{}}}
}

// of returns the same checks for pods of a namespace.
func (l *hostChecks) of(namespace string) *hostChecks {
	return &hostChecks{l.log, namespace, l.sources}
}

// A hostCheck is one read from the host. Its result is set when done is closed.
type hostCheck struct {
	owner   string
	began   time.Time
	waiting int // callers; guarded by sources.mu
	ended   time.Time
	done    chan struct{}
	value   any
	err     error
}

// checkHost returns f's result for a source on the host, or an error when ctx ends. The result must depend on the source alone.
func checkHost[T any](ctx context.Context, l *hostChecks, what, source string, f func() (T, error)) (found T, err error) {
	one, others := l.join(what+" "+source, func() (any, error) { return f() })
	if one == nil {
		return found, device.Refuse(device.HostDeviceMissing, context.DeadlineExceeded, // it says nothing about this source
			"the %s %s cannot be checked: %d other sources on the host do not answer", what, source, others)
	}
	silent := func(why error) error {
		return device.Refuse(device.HostDeviceMissing, why, "the host's file system does not answer about the %s %s", what, source)
	}
	if err := l.wait(ctx, one); err != nil {
		return found, silent(err)
	}
	if one.err != nil {
		return found, one.err
	}
	return one.value.(T), nil
}

// wait waits for a check. With an owner it does not wait for one that is known to hang.
func (l *hostChecks) wait(ctx context.Context, one *hostCheck) error {
	select {
	case <-one.done:
		return nil
	default:
	}
	err := context.DeadlineExceeded
	if l.owner == "" || time.Since(one.began) <= hangs {
		select {
		case <-one.done:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	one.waiting--
	return err
}

// join returns the check in progress for a source, or a new one, or nil if there are too many others, and their number.
func (l *hostChecks) join(source string, f func() (any, error)) (one *hostCheck, others int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.underway[source]; one != nil {
		one.waiting++
		return one, 0
	}
	if one := l.late[source]; one != nil && l.owner != "" { // not for a proof
		delete(l.late, source)
		if time.Since(one.ended) < keepsLate {
			return one, 0
		}
	}
	own := 0
	for _, other := range l.underway {
		if other.owner == l.owner {
			own++
		}
	}
	switch {
	case len(l.underway) >= maxHostChecks:
		return nil, maxHostChecks
	case l.owner != "" && own > 0 && own >= (maxHostChecks-len(l.underway))/ownShare:
		return nil, own
	}
	one = &hostCheck{owner: l.owner, began: time.Now(), waiting: 1, done: make(chan struct{})}
	l.underway[source] = one
	go func() { // ends when the host has answered
		defer func() {
			if r := recover(); r != nil {
				l.log.Error("host check panicked", "source", source, "panic", r, "stack", string(debug.Stack()))
				one.err = fmt.Errorf("devmgrd: internal error: %v", r)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.underway, source)
			one.ended = time.Now()
			if one.waiting == 0 && one.err == nil && strings.HasPrefix(source, mountSource) {
				l.keepLocked(source, one)
			}
			close(one.done)
		}()
		one.value, one.err = f()
	}()
	return one, 0
}

// keepLocked keeps a result for the next caller.
func (l *sources) keepLocked(source string, one *hostCheck) {
	maps.DeleteFunc(l.late, func(_ string, old *hostCheck) bool { return time.Since(old.ended) >= keepsLate })
	if len(l.late) < maxHostChecks {
		l.late[source] = one
	}
}
