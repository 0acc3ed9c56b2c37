package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A tenant is what the runtime has of one pod: its containers, by the runtime's IDs.
type tenant map[string]*life

// A life is one container of the runtime's, from before it is made until it has ended.
type life struct {
	name    string
	made    time.Time // zero: not known
	stamped bool      // it was made with what the books say
	idle    bool      // it had not been started when the runtime told of it
	told    bool      // that it was not has been told
}

// runs tells whether any of them may run. One that had not been started may be just about to, or it is left over: a
// runtime whose machine has lost power between the two does not tell of its end.
func (t tenant) runs() bool {
	for _, l := range t {
		if !l.idle {
			return true
		}
	}
	return false
}

// names tells whether a container of that name is among them.
func (t tenant) names(container string) bool {
	for _, l := range t {
		if l.name == container {
			return true
		}
	}
	return false
}

// auditLocked looks for containers of a pod that run without the devices that they ask for: they were made while devmgrd
// was away, and nothing kept them from it. What was taken over from a kubelet has its devices, and no stamp, if it was made
// before.
func (a *Allocator) auditLocked(p *pod) {
	if p == nil || !p.wanted || !a.synced {
		return
	}
	for _, l := range a.live[p.demand.Pod.UID] {
		if _, asks := p.demand.Of(l.name); !asks || l.stamped || l.told || p.imported(*l) {
			continue
		}
		l.told = true
		a.metrics.bare.Inc()
		a.log.Error("a container runs without the devices that it asks for: it was created while devmgrd was away; delete its pod",
			"pod", p.demand.Pod.String(), "container", l.name)
		a.herald.Bare(p.demand.Pod, l.name)
	}
}

// imported tells whether a container was made by a kubelet that gave it its devices.
func (p *pod) imported(l life) bool {
	return slices.ContainsFunc(p.assigned, func(as device.Assignment) bool {
		return as.Container.Name == l.name && !as.Imported.IsZero() && !l.made.After(as.Imported)
	})
}
