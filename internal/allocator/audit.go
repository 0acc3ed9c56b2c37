package allocator

import (
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/device"
)

// A proof is the host's evidence about pods whose devices may be released as far as the runtime has reported.
type proof struct {
	idle    map[*containers.Container]bool // containers without a process
	able    map[device.PodUID]bool         // pods without a container and a process
	vacant  map[device.PodUID]bool         // those of them whose devices are proved free
	pending map[device.PodUID]bool         // pods whose devices are not: the Releaser reports a change, or another pod's attempt ends
	uses    map[device.PodUID]int          // pod.uses when the proof was begun
}

// prove asks the host about the pods to release. The runtime's report does not suffice, for two reasons:
//
//   - The runtime may have lost track of a container whose processes live: the container's shim was killed, or hung while the
//     runtime restarted, and the processes cannot be killed, as in a driver's uninterruptible sleep. The pod waits until it
//     has no process.
//   - Another NRI plugin may have hidden the start of an idle container from devmgrd, or the runtime may let containers start
//     while it synchronizes a plugin. A container with a process counts as started: its devices are released when the runtime
//     reports its end.
//
// Where the host cannot answer, idle containers count as started, and for other containers the runtime's report decides.
func (a *Allocator) prove() proof {
	a.mu.Lock()
	a.writeAt = time.Time{} // what is scheduled from now on may concern a later write
	var pods []device.PodUID
	suspects := map[string]idle{}
	shown := proof{able: map[device.PodUID]bool{}, vacant: map[device.PodUID]bool{}, pending: map[device.PodUID]bool{}, uses: map[device.PodUID]int{}}
	for uid, p := range a.ended {
		shown.uses[uid] = p.uses
		switch wait, vacant := a.vacantLocked(p); {
		case len(p.assigned) == 0 || !vacant || wait > 0:
		case p.vacated || p.accepted || !a.checksProcessesLocked(p):
			shown.vacant[uid] = true
		default:
			pods = append(pods, uid)
		}
	}
	leftovers, wait := a.leftoversLocked()
	if wait <= 0 {
		pods = append(pods, leftovers...)
	}
	for _, uid := range slices.AppendSeq(slices.Clone(pods), maps.Keys(shown.vacant)) {
		for id, l := range a.running[uid] {
			suspects[id] = idle{l, uid}
		}
	}
	a.mu.Unlock()
	var occupied map[device.PodUID][]device.Process
	if a.host != nil && len(pods) > 0 {
		var err error
		if occupied, err = a.host.PodsWithProcesses(pods); err != nil {
			a.log.Debug("host cannot tell which pods have processes", "err", err)
		}
	}
	for _, uid := range pods {
		if _, has := occupied[uid]; !has {
			shown.vacant[uid] = true
		}
	}
	a.postpone(occupied, shown)
	a.reviewReleases(shown)
	shown.idle = a.proveIdle(suspects)
	return shown
}

// An idle container of a pod is not known to have started.
type idle struct {
	*containers.Container
	pod device.PodUID
}

// proveIdle returns the idle containers, by ID, that have no process. The others count as started.
func (a *Allocator) proveIdle(suspects map[string]idle) map[*containers.Container]bool {
	proven := map[*containers.Container]bool{}
	for id, l := range suspects {
		alive, err := true, error(nil)
		if a.host != nil {
			alive, err = a.host.HasProcesses(id)
		}
		if err == nil && !alive {
			proven[l.Container] = true
			continue
		}
		a.log.Warn("container counts as started", "container", l.Name, "id", id, "err", err)
		a.mu.Lock()
		l.Idle = false
		a.usedLocked(a.pods[l.pod])
		a.mu.Unlock()
	}
	return proven
}

// postpone delays the release of pods with processes. The pause doubles each time.
func (a *Allocator) postpone(occupied map[device.PodUID][]device.Process, shown proof) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, processes := range occupied {
		p := a.ended[uid]
		if p == nil || p.uses != shown.uses[uid] {
			continue
		}
		p.releaseAt = time.Now().Add(min(firstProcessCheck<<min(p.processChecks, 16), lastProcessCheck))
		p.processChecks++
		a.releasingLocked(p, device.Release{Why: "processes of the pod have not ended", Holders: processes, Failed: p.releaseFailed})
	}
}

// checksProcessesLocked reports whether a pod's devices are released only when the host has no process of the pod.
func (a *Allocator) checksProcessesLocked(p *pod) bool {
	return a.checksProcesses == nil || slices.ContainsFunc(p.assigned, func(as device.Assignment) bool {
		return slices.ContainsFunc(as.Shares, func(s device.Share) bool { return a.checksProcesses(s.Resource) })
	})
}

// leftoversLocked returns the pods that the state file does not know and whose containers were all idle when the runtime
// listed them, and how long they wait for a proof. They wait because the state file may be lost and the containers about to
// start. Devices are set aside for these pods. A power cut, or a restart of the runtime during a creation, leaves such
// containers.
func (a *Allocator) leftoversLocked() (pods []device.PodUID, wait time.Duration) {
	if !a.runtimeSynced {
		return nil, 0
	}
	for _, claims := range []containers.Devices{a.table.Quarantined, a.table.Conflicting} {
		for uid := range claims {
			if a.pods[uid] == nil && len(a.running[uid]) > 0 && !a.running[uid].MayRun() && !slices.Contains(pods, uid) {
				pods = append(pods, uid)
			}
		}
	}
	return pods, time.Until(a.syncedAt.Add(idleGrace))
}

// releaseLeftoversLocked frees the devices that are set aside for pods with only idle containers, and bars these containers.
func (a *Allocator) releaseLeftoversLocked(shown proof) {
	leftovers, wait := a.leftoversLocked()
	for _, uid := range leftovers {
		switch {
		case wait > 0:
			a.scheduleWriteLocked(wait)
		case shown.vacant[uid] && a.running[uid].Bar(shown.idle):
			a.log.Info("released devices of idle containers", "uid", uid)
			delete(a.table.Conflicting, uid)
			a.endQuarantineLocked(uid)
		}
	}
}

// auditLocked reports containers of a pod that run without the devices they request: they were created while devmgrd was away
// and unguarded. A container that got its devices from a kubelet before an import has no stamp and counts as served.
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
		a.log.Error("container started without its devices",
			"pod", p.demand.Pod.String(), "container", l.Name)
		a.notifier.StartedWithoutDevices(p.demand.Pod, l.Name, func() bool { return a.stillWithoutDevices(uid, id) })
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
	return slices.ContainsFunc(p.assigned, func(as device.Assignment) bool {
		return as.Container.Name == l.Name && !as.Imported.IsZero() && !l.Made.After(as.Imported)
	})
}
