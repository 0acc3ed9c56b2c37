package nri

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// patienceBurst is how long the containers of one namespace may hold up the runtime at once, and patienceShare the inverse of the part of the time that
	// they may hold it up in the long run: the runtime creates no other container of the node meanwhile.
	patienceBurst = time.Second
	patienceShare = 20
	// leastPatience is what a hook has in any case. An answer takes a few milliseconds where nothing hangs.
	leastPatience = 50 * time.Millisecond
	// free is what a hook may take without being charged.
	free = 10 * time.Millisecond
)

// allowances are how long hooks of each namespace may wait for a plugin, the API server or the host. The zero value is ready to use.
type allowances struct {
	mu sync.Mutex
	of map[string]*rate.Limiter // in milliseconds, of namespaces that have spent some; the others have all
}

// left returns what a namespace has left.
func (p *allowances) left(namespace string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.of[namespace]; l != nil {
		return max(0, time.Duration(l.Tokens())*time.Millisecond)
	}
	return patienceBurst
}

// spend charges a hook's time.
func (p *allowances) spend(namespace string, took time.Duration) {
	if took <= free {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for one, l := range p.of {
		if l.Tokens() >= float64(patienceBurst.Milliseconds()) {
			delete(p.of, one)
		}
	}
	if p.of == nil {
		p.of = map[string]*rate.Limiter{}
	}
	if p.of[namespace] == nil {
		p.of[namespace] = rate.NewLimiter(rate.Every(patienceShare*time.Millisecond), int(patienceBurst.Milliseconds()))
	}
	p.of[namespace].ReserveN(time.Now(), int(min(took, patienceBurst).Milliseconds()))
}
