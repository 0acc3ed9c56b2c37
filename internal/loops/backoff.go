package loops

import (
	"context"
	"math/rand/v2"
	"time"
)

// A Backoff is a pause between attempts that doubles from First to Last. Each pause is shortened by up to half at random,
// so that many nodes do not return at the same moment. The zero count is ready to use.
type Backoff struct {
	First, Last time.Duration
	next        time.Duration
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.next = min(max(b.next, b.First), b.Last)
	pause := b.next
	b.next *= 2
	return pause/2 + rand.N(pause/2+1)
}

// Longest reports whether the next pause is the longest.
func (b *Backoff) Longest() bool { return b.next >= b.Last }

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.next = 0 }

// Doubled returns first, doubled so many times, or last if that is less.
func Doubled(first, last time.Duration, times int) time.Duration {
	return min(first<<min(times, 16), last)
}

// Wait waits for the next pause, or until ctx ends.
func (b *Backoff) Wait(ctx context.Context) { Sleep(ctx, b.Next()) }

// Sleep waits for a pause, or until ctx ends.
func Sleep(ctx context.Context, pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}
