package nri

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/devmgrd/devmgrd/internal/locks"
)

const (
	// patienceBurst is how long the containers of one namespace may hold up the runtime at once by waits that fail, and patienceShare the inverse of the part of the
	// time that they may in the long run: the runtime creates no other container of the node meanwhile. A hook that gets its answers costs nothing.
	patienceBurst = time.Second
	patienceShare = 20
	// sumBurst and sumShare are the same of all namespaces together.
	sumBurst = 4 * time.Second
	sumShare = 5
	// leastPatience is what a hook has in any case: for a read of the API server (liveRead), and for the host, of which each path can hang once only (hangs).
	leastPatience = 400 * time.Millisecond
)

// allowances are how long hooks of each namespace, and of all, may wait for a plugin or the host and fail. The zero value is ready to use.
type allowances struct {
	mu  locks.Mutex[locks.Leaf]
	sum *allowance
	of  map[string]*allowance // of namespaces that have spent some; the others have all
}

// left returns what a namespace has left.
func (p *allowances) left(namespace string) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(p.of[namespace].left(patienceBurst), p.sum.left(sumBurst))
}

// spend charges a wait that has failed.
func (p *allowances) spend(namespace string, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for one, l := range p.of {
		if l.left(patienceBurst) == patienceBurst {
			delete(p.of, one)
		}
	}
	if p.of == nil {
		p.sum, p.of = newAllowance(sumBurst, sumShare), map[string]*allowance{}
	}
	if p.of[namespace] == nil {
		p.of[namespace] = newAllowance(patienceBurst, patienceShare)
	}
	p.of[namespace].spend(took)
	p.sum.spend(took)
}

// An allowance is a time that grows again. Nil is one of which nothing has been spent.
type allowance struct{ tokens *rate.Limiter } // in milliseconds

func newAllowance(burst time.Duration, share int) *allowance {
	return &allowance{rate.NewLimiter(rate.Every(time.Duration(share)*time.Millisecond), int(burst.Milliseconds()))}
}

func (a *allowance) left(burst time.Duration) time.Duration {
	if a == nil {
		return burst
	}
	return time.Duration(max(0, a.tokens.Tokens())) * time.Millisecond
}

// spend charges a time as far as there is anything left: there are no debts.
func (a *allowance) spend(took time.Duration) {
	a.tokens.AllowN(time.Now(), int(min(float64(took.Milliseconds()), max(0, a.tokens.Tokens()))))
}
