package units

import (
	"context"
	"slices"
	"sync"
)

// atOnce is the number of commands that run at once.
const atOnce = 4

// Turns bounds how many commands run at once, whatever the number of resources. The next turn is of the plugin with the fewest running commands, so that
// the many resources of one plugin do not delay those of another; among these, of the one that has waited longest. The zero value is ready to use.
type Turns struct {
	mu      sync.Mutex
	running map[string]int // by plugin, without zeros
	all     int            // their sum
	waiting []*turn        // in the order of their calls; empty while less than atOnce run
}

// A turn is one that a command waits for.
type turn struct {
	plugin string
	begun  chan struct{}
}

// Take waits for a turn. An error is the end of ctx; otherwise done ends the turn.
func (t *Turns) Take(ctx context.Context, plugin string) (done func(), err error) {
	one := &turn{plugin, make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, one)
	t.nextLocked()
	t.mu.Unlock()
	done = func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.running[plugin]--; t.running[plugin] == 0 {
			delete(t.running, plugin)
		}
		t.all--
		t.nextLocked()
	}
	select {
	case <-one.begun:
		return done, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	at := slices.Index(t.waiting, one)
	if at >= 0 {
		t.waiting = slices.Delete(t.waiting, at, at+1)
	}
	t.mu.Unlock()
	if at < 0 { // it has begun meanwhile
		done()
	}
	return nil, ctx.Err()
}

// nextLocked begins the next turn if there is room.
func (t *Turns) nextLocked() {
	if t.all == atOnce || len(t.waiting) == 0 {
		return
	}
	first := 0
	for i, w := range t.waiting {
		if t.running[w.plugin] < t.running[t.waiting[first].plugin] {
			first = i
		}
	}
	next := t.waiting[first]
	t.waiting = slices.Delete(t.waiting, first, first+1)
	if t.running == nil {
		t.running = map[string]int{}
	}
	t.running[next.plugin]++
	t.all++
	close(next.begun)
}
