package main

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// A keeper starts again what has ended, as systemd would with Restart=always and a second's pause.
type keeper struct {
	say func(kind, what string)

	mu  sync.Mutex
	all map[*cluster.Process]*kept
}

// kept is a process that must run, unless a fault keeps it down.
type kept struct {
	down    bool // on purpose
	expects bool // its end was asked for: it is no crash
	fragile bool // it may end without a fault
	since   time.Time
}

// keep has a process kept. One that is not fragile must not end on its own.
func (k *keeper) keep(p *cluster.Process, fragile bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.all == nil {
		k.all = map[*cluster.Process]*kept{}
	}
	k.all[p] = &kept{fragile: fragile}
}

// kill ends a process with SIGKILL, or asks it to end; it is started again at once, or when up is called.
func (k *keeper) kill(p *cluster.Process, hard, stayDown bool) error {
	k.mu.Lock()
	one := k.all[p]
	one.expects, one.down = true, stayDown
	k.mu.Unlock()
	_ = p.Signal(syscall.SIGCONT) // a frozen one would not hear
	if hard {
		return p.Kill()
	}
	_ = p.Stop(15 * time.Second) // it kills what does not end
	return nil
}

// start starts a process that has been down, unless it runs.
func (k *keeper) start(ctx context.Context, p *cluster.Process) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[p].down, k.all[p].expects, k.all[p].since = false, false, time.Time{}
	if p.Running() {
		return nil
	}
	return p.Start(context.WithoutCancel(ctx))
}

// keepDown has a process kept that does not run yet.
func (k *keeper) keepDown(p *cluster.Process) {
	k.keep(p, false)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[p].down = true
}

// up lets a process be started again.
func (k *keeper) up(p *cluster.Process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all[p].down = false
}

// Run looks after the processes until ctx ends.
func (k *keeper) Run(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			k.look(ctx, now)
		}
	}
}

func (k *keeper) look(ctx context.Context, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p, one := range k.all {
		switch {
		case p.Running():
			one.since = time.Time{}
		case one.down:
		case one.since.IsZero():
			one.since = now
			if !one.expects && !one.fragile {
				k.say(crash, fmt.Sprintf("%s has ended on its own", p.Name))
			}
		case now.Sub(one.since) > time.Second:
			one.expects = p.Start(ctx) != nil
		}
	}
}
