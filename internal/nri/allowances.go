package nri

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// patienceBurst is how long the containers of one namespace may hold up the runtime at once by waits that fail, and patienceShare the inverse of the part of the
	// time that they may in the long run: the runtime creates no other container of the node meanwhile. A hook that gets its answers costs nothing.
	patienceBurst = time.Second
	patienceShare = 20
	// leastPatience is what a hook has in any case: for a read of the API server (liveRead), and for the host, of which each path can hang once only (hangs).
	leastPatience = 400 * time.Millisecond
)

// allowances are how long hooks of each namespace may wait for a plugin or the host and fail. The zero value is ready to use.
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

// spend charges a wait that has failed, as far as there is anything left: a namespace has no debts.
func (p *allowances) spend(namespace string, took time.Duration) {
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
	l := p.of[namespace]
	l.AllowN(time.Now(), int(min(float64(took.Milliseconds()), max(0, l.Tokens()))))
}
