package nri

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"

	"github.com/devmgrd/devmgrd/internal/device"
)

// maxHostChecks bounds the sources on the host that do not answer, each of which costs a thread. A node has fewer pods.
const maxHostChecks = 256

// hostChecks are the looks at the host that are under way, by their sources, over all connections. A file system may hang (a
// network's, a user's), and the thread that asks it hangs as well. So there is one look for each source, which ends when
// the host has answered, and who asks about the source again waits for the same look: a pod whose source hangs costs one
// thread, however often the kubelet tries it, and other pods nothing.
type hostChecks struct {
	log      *slog.Logger
	mu       sync.Mutex
	underway map[string]*hostCheck
}

// A hostCheck is one question to the host. Its result is there when done is closed.
type hostCheck struct {
	done  chan struct{}
	value any
	err   error
}

// checkHost returns what f finds at a source on the host, or an error when ctx ends. What f finds must depend on nothing but the
// source.
func checkHost[T any](ctx context.Context, l *hostChecks, what, source string, f func() (T, error)) (found T, err error) {
	one := l.join(what+" "+source, func() (any, error) { return f() })
	if one == nil {
		return found, device.Refuse(device.HostDeviceMissing, nil,
			"the %s %s cannot be checked: %d other sources on the host do not answer", what, source, maxHostChecks)
	}
	select {
	case <-one.done:
	case <-ctx.Done():
		return found, device.Refuse(device.HostDeviceMissing, ctx.Err(), "the host's file system does not answer about the %s %s", what, source)
	}
	if one.err != nil {
		return found, one.err
	}
	return one.value.(T), nil
}

// join returns the look that is under way at a source, or a new one, or nil if there are too many.
func (l *hostChecks) join(source string, f func() (any, error)) *hostCheck {
	l.mu.Lock()
	defer l.mu.Unlock()
	if one := l.underway[source]; one != nil {
		return one
	}
	if len(l.underway) >= maxHostChecks {
		return nil
	}
	one := &hostCheck{done: make(chan struct{})}
	if l.underway == nil {
		l.underway = map[string]*hostCheck{}
	}
	l.underway[source] = one
	go func() { // ends when the host has answered
		defer func() {
			if r := recover(); r != nil {
				l.log.Error("host check panicked", "source", source, "panic", r, "stack", string(debug.Stack()))
				one.err = fmt.Errorf("devmgrd: internal error: %v", r)
			}
			l.mu.Lock()
			delete(l.underway, source)
			l.mu.Unlock()
			close(one.done)
		}()
		one.value, one.err = f()
	}()
	return one
}
