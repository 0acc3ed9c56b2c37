//go:build !race

package locks

import "sync"

// A Mutex is a sync.Mutex with a place.
type Mutex[P place] struct{ mu sync.Mutex }

// Lock waits for the lock.
func (m *Mutex[P]) Lock() { m.mu.Lock() }

// Unlock returns the lock.
func (m *Mutex[P]) Unlock() { m.mu.Unlock() }

// Taking reports that this goroutine is about to take a lock of another kind.
func Taking[P place]() {}

// Left reports that this goroutine has returned such a lock.
func Left[P place]() {}
