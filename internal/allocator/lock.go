package allocator

import (
	"context"

	"github.com/devmgrd/devmgrd/internal/locks"
)

// A lock is a mutex for which the runtime's hooks wait no longer than they have time: it drops a plugin that is late. What needs no answer does not
// wait at all (do). The zero value is not usable.
type lock struct {
	held chan struct{} // has a value while the lock is held

	mu   locks.Mutex[locks.Leaf] // guards what follows; never held while a call of it runs
	late []func()
}

func newLock() *lock { return &lock{held: make(chan struct{}, 1)} }

// Lock waits for the lock.
func (l *lock) Lock() {
	locks.Taking[locks.Allocator]()
	l.held <- struct{}{}
	l.catchUp()
}

// lockBefore waits for the lock until ctx ends, and reports whether it has it.
func (l *lock) lockBefore(ctx context.Context) bool {
	locks.Taking[locks.Allocator]()
	select {
	case l.held <- struct{}{}:
		l.catchUp()
		return true
	case <-ctx.Done():
		locks.Left[locks.Allocator]()
		return false
	}
}

// Unlock releases the lock.
func (l *lock) Unlock() {
	l.giveBack()
	l.flush()
}

func (l *lock) giveBack() {
	<-l.held
	locks.Left[locks.Allocator]()
}

// do has f called with the lock held, after those of earlier calls: at once if the lock is free, else when it is next given back or taken.
func (l *lock) do(f func()) {
	l.mu.Lock()
	l.late = append(l.late, f)
	l.mu.Unlock()
	l.flush()
}

// flush makes the calls that are late, unless the lock is held: then Unlock does.
func (l *lock) flush() {
	for l.isLate() {
		select {
		case l.held <- struct{}{}:
			locks.Taking[locks.Allocator]()
			l.catchUp()
			l.giveBack()
		default:
			return
		}
	}
}

func (l *lock) isLate() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.late) > 0
}

// catchUp makes the calls that are late, with the lock held. A bug in one of them leaves the lock free, and the later calls to come: a hook survives it.
func (l *lock) catchUp() {
	l.mu.Lock()
	all := l.late
	l.late = nil
	l.mu.Unlock()
	made := 0
	defer func() {
		if made < len(all) {
			l.mu.Lock()
			l.late = append(all[made+1:], l.late...)
			l.mu.Unlock()
			l.giveBack()
		}
	}()
	for ; made < len(all); made++ {
		all[made]()
	}
}
