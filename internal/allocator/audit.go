package allocator

import (
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/device"
)

// RuntimeUnserved reports that a container is created without devices, since its static pod is not known. It is idle until RuntimeStarting.
func (a *Allocator) RuntimeUnserved(r device.Running) {
	a.report(func() {
		l := a.addRunningLocked(r, false)
		l.Idle, l.Injected = true, time.Now()
		a.auditLocked(a.pods[r.Container.Pod]) // it may have become known meanwhile
	})
}

// auditLocked reports containers of a pod that run without the devices they request: they were created while devmgrd was away
// and unguarded, or did not know their static pod. A container that got its devices from a kubelet before an import has no stamp and counts as served.
func (a *Allocator) auditLocked(p *pod) {
	if p == nil || !p.active() || !a.runtimeSynced {
		return
	}
	uid := p.demand.Pod.UID
	for id, l := range a.running[uid] {
		if _, asks := p.demand.Of(l.Name); !asks || l.Stamped || l.Reported || p.imported(*l) {
			continue
		}
		l.Reported = true
		a.metrics.startedWithout.Inc()
		a.cfg.Log.Error("container started without its devices",
			"pod", p.demand.Pod.String(), "container", l.Name)
		a.cfg.Notifier.StartedWithoutDevices(p.demand.Pod, l.Name, func() bool { return a.stillWithoutDevices(uid, id) })
	}
}

// stillWithoutDevices reports whether a container that was found running without its devices still runs.
func (a *Allocator) stillWithoutDevices(uid device.PodUID, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.running[uid][id]
	return l != nil && !l.Stamped
}

// imported reports whether a kubelet created a container and assigned its devices.
func (p *pod) imported(l containers.Container) bool {
	as, _ := p.of(l.Name)
	return !as.Imported.IsZero() && !l.Made.After(as.Imported)
}
