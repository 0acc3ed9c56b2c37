package allocator

import "context"

// A lock is a mutex for which a caller need not wait longer than it has time.
type lock chan struct{}

func (l lock) Lock()   { l <- struct{}{} }
func (l lock) Unlock() { <-l }

// lockBefore locks, unless ctx ends first.
func (l lock) lockBefore(ctx context.Context) bool {
	select {
	case l <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}
