package cdi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	askTime           = 2 * time.Second // bounds one question to the runtime
	firstAsk, lastAsk = 200 * time.Millisecond, 10 * time.Second
	// settled is how long a runtime may be connected before its CRI socket is there: containerd registers NRI plugins before it listens.
	settled = 5 * time.Second
)

// A runtime is one connection of the container runtime, or the time without one.
type runtime struct {
	pid      int32         // 0: not known, or none is connected
	since    time.Time     // of the connection
	left     chan struct{} // closed when another follows
	answered chan struct{} // closed when it is known whether it reads the files
	fault    error         // why it does not; written before answered is closed
	problem  error         // why that is not known yet; Files.mu guards it
	tries    loops.Backoff
}

func newRuntime(now Hook, pid int32) *runtime {
	r := &runtime{pid: pid, since: time.Now(), left: make(chan struct{}), answered: make(chan struct{}), tries: loops.Backoff{First: firstAsk, Last: lastAsk}}
	switch {
	case now == Away:
		r.problem = errors.New("the container runtime is not connected to devmgrd")
	case pid == 0:
		close(r.answered) // it cannot be asked
	default:
		r.problem = unanswered(errors.New("it has not been asked"))
	}
	return r
}

func unanswered(why error) error {
	return fmt.Errorf("it is not known yet whether the runtime reads the CDI files of claims: %w", why)
}

// verdict returns why the runtime does not read the files, once that is known.
func (r *runtime) verdict() (fault error, known bool) {
	select {
	case <-r.answered:
		return r.fault, true
	default:
		return nil, false
	}
}

// Readable returns nil if the runtime that is connected reads the files, or cannot be asked. Else it says why not, with the remedy. It waits for a
// runtime and its answer until ctx ends: while none is connected, no container is created, and the next one may have another configuration.
func (f *Files) Readable(ctx context.Context) error {
	for {
		f.mu.Lock()
		r := f.runtime
		f.mu.Unlock()
		if fault, known := r.verdict(); known {
			return fault
		}
		select {
		case <-r.answered:
		case <-r.left:
		case <-ctx.Done():
			f.mu.Lock()
			defer f.mu.Unlock()
			return r.problem
		}
	}
}

// AskRuntime asks each runtime that connects whether it reads the files, until ctx ends, which is not an error.
func (f *Files) AskRuntime(ctx context.Context) error {
	for ctx.Err() == nil {
		f.mu.Lock()
		r := f.runtime
		f.mu.Unlock()
		var again <-chan time.Time
		if _, known := r.verdict(); !known && r.pid != 0 && !f.ask(ctx, r) {
			again = time.After(r.tries.Next())
		}
		select {
		case <-ctx.Done():
		case <-r.left:
		case <-again:
		}
	}
	return nil
}

// ask asks a runtime, and returns whether it has answered.
func (f *Files) ask(ctx context.Context, r *runtime) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	got, found, err := f.Runtime(ctx, r.pid)
	if err == nil && !found && time.Since(r.since) < settled {
		err = errors.New("it does not listen at its CRI socket")
	}
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		r.problem = unanswered(err)
		return false
	}
	if why, remedy := got.Fault(f.Dir); why != "" {
		r.fault = fmt.Errorf("%s: %s; %s", device.ClaimMismatch, why, remedy)
	}
	close(r.answered)
	return true
}
