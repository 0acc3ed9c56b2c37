package registry

import (
	"net"
	"time"

	"golang.org/x/time/rate"

	"github.com/devmgrd/devmgrd/internal/device"
)

// SetRegisterTimeout shortens the time that a plugin has to answer when it registers. It is called before Run.
func (r *Registry) SetRegisterTimeout(d time.Duration) { r.registerTimeout = d }

// SetFirstPause sets the first pause before a plugin is dialled again. It is called before Run.
func (r *Registry) SetFirstPause(d time.Duration) { r.firstPause = d }

// SetCourtesy sets the time that a plugin has to register after it has created its socket. It is called before Run.
func (r *Registry) SetCourtesy(d time.Duration) { r.courtesy = d }

// SetLastPause shortens the pause that those of a link grow to. It is called before Run.
func (r *Registry) SetLastPause(d time.Duration) { r.lastPause = d }

// SetHoldTime sets the time in which the watcher finds a remembered plugin. It is called before Run.
func (r *Registry) SetHoldTime(d time.Duration) { r.holdTime = d }

// SetInfoTimeout sets the time that a plugin has to answer the watcher. It is called before Run.
func (r *Registry) SetInfoTimeout(d time.Duration) { r.infoTimeout = d }

// SetRefusePause sets the pause before a plugin is dialled that has refused to list its devices.
func (r *Registry) SetRefusePause(d time.Duration) { r.refusePause = d }

// SetGrowPause shortens the pause between two tries to make room for a plugin's new devices. It is called before Run.
func (r *Registry) SetGrowPause(d time.Duration) { r.growPause = d }

// SetCallPause shortens the first pause of a plugin's calls by the watcher. It is called before Run.
func (r *Registry) SetCallPause(d time.Duration) { r.callPause = d }

// SetSweepPause shortens the pause between two sweeps of the socket directory. It is called before Run.
func (r *Registry) SetSweepPause(d time.Duration) { r.sweepPause = d }

// SetSteadyTime shortens the time of serving after which a plugin does not restart again and again. It is called before Run.
func (r *Registry) SetSteadyTime(d time.Duration) { r.steadyTime = d }

// SetRestores lets kubelet.sock be put back as often as it is removed.
func (r *Registry) SetRestores() { r.common.restores.SetLimit(rate.Inf) }

// SetIntakeTime shortens the time that a long message of a plugin may take. It is called before Run.
func (r *Registry) SetIntakeTime(d time.Duration) { r.intakeTime = d }

// ListedInReserve returns how many of a resource's plugins in reserve have listed their devices.
func (r *Registry) ListedInReserve(name device.ResourceName) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, l := range r.resources[name].reserve {
		if l.listed {
			n++
		}
	}
	return n
}

// An Intakes makes connections of plugins that share turns.
type Intakes struct {
	turns *turns
	limit time.Duration
}

func NewIntakes(limit time.Duration) Intakes { return Intakes{newTurns(intakeTurns, 1), limit} }

// Of returns a client's connection, and what gRPC calls for each whole message.
func (i Intakes) Of(client string, conn net.Conn) (in net.Conn, whole func()) {
	c := newIntake(conn, i.turns, client, i.limit)
	return c, c.whole
}

const FreeIntake = freeIntake

// Drop drops the current plugin of a resource as often, before one that is dropped has noticed.
func (r *Registry) Drop(name device.ResourceName, times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for range times {
		r.dropSocketLocked(r.resources[name], withdrawn)
	}
}
