package allocator

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"
)

func TestLock_CallsThatAreLate_AreMadeInOrderAndNoneIsLost(t *testing.T) {
	t.Parallel()
	l := newLock()
	var made []int
	l.do(func() { made = append(made, 0) }) // the lock is free
	if !slices.Equal(made, []int{0}) {
		t.Fatalf("made %v", made)
	}
	l.Lock()
	l.do(func() { made = append(made, 1) })
	l.do(func() { made = append(made, 2) })
	if len(made) > 1 {
		t.Fatalf("made %v while the lock is held", made)
	}
	l.Unlock()
	if !slices.Equal(made, []int{0, 1, 2}) {
		t.Fatalf("made %v", made)
	}

	sum, calls := 0, 0
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				l.do(func() { calls++ })
				l.Lock()
				sum++
				l.Unlock()
			}
		})
	}
	all.Wait()
	if sum != 8000 || calls != 8000 {
		t.Errorf("%d times locked, and %d calls made", sum, calls)
	}
}

func TestLock_ACallPanics_LockIsFree(t *testing.T) {
	t.Parallel()
	l := newLock()
	func() {
		defer func() { _ = recover() }()
		l.do(func() { panic("a bug") })
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if !l.lockBefore(ctx) {
		t.Fatal("the lock is held")
	}
	l.Unlock()
}

// The reports after the one with the bug are not lost: nothing would be released while a start is not recorded.
func TestLock_ACallPanics_LaterCallsAreMade(t *testing.T) {
	t.Parallel()
	l := newLock()
	made := ""
	l.Lock()
	l.do(func() { made += "first " })
	l.do(func() { panic("a bug") })
	l.do(func() { made += "third" })
	func() {
		defer func() { _ = recover() }()
		l.Unlock()
	}()
	l.Lock()
	defer l.Unlock()
	if made != "first third" {
		t.Errorf("made: %q", made)
	}
}
