package units

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/devmgrd/devmgrd/internal/locks"
)

// atOnce is the number of commands that run at once.
const atOnce = 4

// A Plugin is whose commands take turns. Plugins of the common directory have no pod, and any of them may have many sockets.
type Plugin struct {
	Pod    string // its UID; empty: none
	Socket string
}

// Turns bounds how many commands run at once, whatever the number of resources. The next turn is of the pod with the fewest running commands, then of the
// socket with the fewest, so that the many resources of one plugin do not delay those of another; among these, of the one that has waited longest. The
// zero value is ready to use.
type Turns struct {
	mu      locks.Mutex[locks.Leaf]
	pods    map[string]int // running commands, without zeros
	running map[Plugin]int // likewise
	all     int            // their sum
	waiting []*turn        // in the order of their calls; empty while less than atOnce run
}

// A turn is one that a command waits for.
type turn struct {
	plugin Plugin
	begun  chan struct{}
}

// Take waits for a turn of a command with that limit. An error is the end of ctx; otherwise done ends the turn. The turn ends without it once systemd has
// killed the command: one that hangs in the kernel all the same costs nothing, and keeps no other from its turn.
func (t *Turns) Take(ctx context.Context, plugin Plugin, limit time.Duration) (done func(), err error) {
	one := &turn{plugin, make(chan struct{})}
	t.mu.Lock()
	t.waiting = append(t.waiting, one)
	t.nextLocked()
	t.mu.Unlock()
	end := sync.OnceFunc(func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.countLocked(plugin, -1)
		t.nextLocked()
	})
	select {
	case <-one.begun:
		killed := time.AfterFunc(limit+2*stopLimit, end)
		return func() { killed.Stop(); end() }, nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	at := slices.Index(t.waiting, one)
	if at >= 0 {
		t.waiting = slices.Delete(t.waiting, at, at+1)
	}
	t.mu.Unlock()
	if at < 0 { // it has begun meanwhile
		end()
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
		other := t.waiting[first].plugin
		if cmp.Or(t.pods[w.plugin.Pod]-t.pods[other.Pod], t.running[w.plugin]-t.running[other]) < 0 {
			first = i
		}
	}
	next := t.waiting[first]
	t.waiting = slices.Delete(t.waiting, first, first+1)
	t.countLocked(next.plugin, 1)
	close(next.begun)
}

// countLocked counts a command that begins or ends.
func (t *Turns) countLocked(plugin Plugin, change int) {
	if t.running == nil {
		t.pods, t.running = map[string]int{}, map[Plugin]int{}
	}
	t.all += change
	t.pods[plugin.Pod] += change
	if t.pods[plugin.Pod] == 0 {
		delete(t.pods, plugin.Pod)
	}
	t.running[plugin] += change
	if t.running[plugin] == 0 {
		delete(t.running, plugin)
	}
}
