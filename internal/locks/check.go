//go:build race

package locks

import (
	"fmt"
	"runtime"
	"sync"
)

// A Mutex is a sync.Mutex with a place, which Lock checks.
type Mutex[P place] struct{ mu sync.Mutex }

// Lock waits for the lock. It panics if the goroutine holds one that comes later, or has the same place.
func (m *Mutex[P]) Lock() {
	Taking[P]()
	m.mu.Lock()
}

// Unlock returns the lock.
func (m *Mutex[P]) Unlock() {
	m.mu.Unlock()
	Left[P]()
}

// Taking notes that this goroutine is about to take a lock of another kind, with Lock's check.
func Taking[P place]() {
	var p P
	if other := note(goroutine(), p); other != nil {
		panic(fmt.Sprintf("locks: %T is taken by a goroutine that holds %T; see the order in internal/locks", p, other))
	}
}

// Left notes that this goroutine has returned a lock.
func Left[P place]() {
	var p P
	if !forget(goroutine(), p) {
		panic(fmt.Sprintf("locks: %T is returned by a goroutine that does not hold it", p))
	}
}

// held has the places of the locks that goroutines hold, each goroutine's in one of the slots from its own on. The race detector sees neither the table
// nor its mutex, which would hide races between goroutines that take locks: so what uses them has no map and no slice, whose functions the race detector would see.
var held struct {
	mu    sync.Mutex
	slots [slots]struct {
		goroutine uintptr
		n         int
		places    [depth]place
	}
}

const (
	slots = 4096 // goroutines that hold locks at one time
	depth = 8    // locks that one holds
)

// note adds a place to those of a goroutine. It returns the one that stands in the way, if there is one.
//
//go:norace
func note(goroutine uintptr, p place) (conflict place) {
	runtime.RaceDisable()
	held.mu.Lock()
	at := find(goroutine)
	s := &held.slots[at]
	if s.n > 0 && s.places[s.n-1].place() >= p.place() {
		conflict = s.places[s.n-1]
	} else {
		s.goroutine, s.places[s.n] = goroutine, p
		s.n++
	}
	held.mu.Unlock()
	runtime.RaceEnable()
	return conflict
}

// forget removes a place of a goroutine, and reports whether it had it.
//
//go:norace
func forget(goroutine uintptr, p place) (had bool) {
	runtime.RaceDisable()
	held.mu.Lock()
	s := &held.slots[find(goroutine)]
	for i := 0; i < s.n; i++ {
		if had {
			s.places[i-1] = s.places[i]
		}
		had = had || s.places[i] == p
	}
	if had {
		s.n--
	}
	held.mu.Unlock()
	runtime.RaceEnable()
	return had
}

// find returns the slot of a goroutine, or else the first free one.
//
//go:norace
func find(goroutine uintptr) (at int) {
	at = -1
	for i := 0; i < slots; i++ {
		one := int((goroutine/64 + uintptr(i)) % slots)
		switch s := &held.slots[one]; {
		case s.n > 0 && s.goroutine == goroutine:
			return one
		case s.n == 0 && at < 0:
			at = one
		case s.goroutine == 0: // never used: there is none after it
			return at
		}
	}
	if at < 0 {
		panic("locks: too many goroutines hold locks")
	}
	return at
}

// goroutine returns what identifies this goroutine as long as it runs: the address of the runtime's record. Its number is in stack traces only, which would
// cost more than all else that a test does.
func goroutine() uintptr
