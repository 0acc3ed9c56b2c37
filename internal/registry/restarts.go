package registry

import (
	"context"
	"log/slog"
	"time"

	"github.com/devmgrd/devmgrd/internal/loops"
)

// The first restarts of a plugin are logged in full. The lines of a plugin that goes on restarting, as one that crashes does, then have level debug, and a
// warning in their place has the number of restarts: at once, and after pauses that double. The series is over when the resource has been served for
// steadyTime without a restart, or is Lost.
const (
	loudRestarts = 3
	steadyTime   = time.Minute
	firstSilence = time.Minute
	lastSilence  = time.Hour
)

// restarts is the series of a resource. Registry.mu guards it.
type restarts struct {
	number  int
	silence loops.Backoff
	next    time.Time // of the next warning
}

// count adds a restart, and reports whether the warning is due.
func (s *restarts) count(now time.Time) (due bool) {
	s.number++
	if !s.quiet() || now.Before(s.next) {
		return false
	}
	s.silence.First, s.silence.Last = firstSilence, lastSilence
	s.next = now.Add(s.silence.Next())
	return true
}

func (s *restarts) quiet() bool { return s.number > loudRestarts }

// levelLocked returns the level of a log line about a plugin that comes and goes.
func (s *resourceState) levelLocked(loud slog.Level) slog.Level {
	if s.restarts.quiet() {
		return slog.LevelDebug
	}
	return loud
}

// level is levelLocked for a resource.
func (r *Registry) level(l *registration, loud slog.Level) slog.Level {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.resources[l.resource]; s != nil {
		return s.levelLocked(loud)
	}
	return loud
}

// countRestartLocked counts the end of a plugin of the resource, and logs the warning if it is due.
func (s *resourceState) countRestartLocked(l *registration, err error) {
	if s.restarts.count(time.Now()) {
		l.log.Warn("plugin restarts again and again", "restarts", s.restarts.number, "err", err)
	}
}

// steadyLocked starts the timer that ends the series of a resource that is served.
func (r *Registry) steadyLocked(s *resourceState) {
	s.endTimer()
	if s.restarts.number == 0 {
		return
	}
	r.afterLocked(s, r.steadyTime, func(ctx context.Context) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		if s.restarts.quiet() {
			s.registration.log.Info("plugin serving steadily", "devices", len(s.devices), "restarts", s.restarts.number)
		}
		s.restarts = restarts{}
	})
}

// afterLocked replaces the resource's timer. do checks under the lock whether it was stopped meanwhile.
func (r *Registry) afterLocked(s *resourceState, d time.Duration, do func(context.Context)) {
	s.endTimer()
	ctx, cancel := context.WithCancel(context.Background())
	s.endTimer = cancel
	r.work.Go(func() {
		defer cancel()
		select {
		case <-ctx.Done():
		case <-time.After(d):
			do(ctx)
		}
	})
}
