package allocator

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A runningPod is the runtime's containers of one pod, by the runtime's IDs.
type runningPod map[string]*runningContainer

// A runningContainer is one container of the runtime, from before its creation until its end.
type runningContainer struct {
	name           string
	sandbox        string                // the runtime's ID of its sandbox
	made           time.Time             // zero: not known
	stamped        bool                  // created with the devices that the state file names
	reported       bool                  // the missing stamp has been reported
	unknownDevices []device.ResourceName // resources of its devices that only a lost state file named
	started        bool                  // its processes have run, or it ran before devmgrd started
	fresh          bool                  // created with a grant that no container had used before

	// idle: the runtime has listed the container as created and not started, and has not started it since. The kubelet starts
	// a container right after its creation; a container that stays idle is left over from a power cut.
	idle bool
	// barred: the pod's devices were released while the container was idle. It must not start.
	barred bool
}

// mayRun reports whether any container of the pod may run.
func (t runningPod) mayRun() bool {
	for _, l := range t {
		if !l.idle {
			return true
		}
	}
	return false
}

// A proof is the host's evidence about pods whose devices may be released as far as the runtime has reported.
type proof struct {
	idle   map[*runningContainer]bool // containers without a process
	vacant map[device.PodUID]bool     // pods without a process
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
	var pods []device.PodUID
	suspects := map[string]*runningContainer{}
	for uid, p := range a.ended {
		if wait, vacant := a.vacantLocked(p); len(p.assigned) > 0 && vacant && wait <= 0 {
			pods = append(pods, uid)
		}
	}
	leftovers, wait := a.leftoversLocked()
	if wait <= 0 {
		pods = append(pods, leftovers...)
	}
	for _, uid := range pods {
		for id, l := range a.running[uid] {
			suspects[id] = l
		}
	}
	a.mu.Unlock()
	shown := proof{map[*runningContainer]bool{}, map[device.PodUID]bool{}}
	if len(pods) == 0 {
		return shown
	}
	var occupied map[device.PodUID]bool
	if a.host != nil {
		var err error
		if occupied, err = a.host.PodsWithProcesses(pods); err != nil {
			a.log.Debug("host cannot tell which pods have processes", "err", err)
		}
	}
	for _, uid := range pods {
		if !occupied[uid] {
			shown.vacant[uid] = true
		}
	}
	a.postpone(occupied)
	shown.idle = a.proveIdle(suspects)
	return shown
}

// proveIdle returns the idle containers, by ID, that have no process. The others count as started.
func (a *Allocator) proveIdle(suspects map[string]*runningContainer) map[*runningContainer]bool {
	idle := map[*runningContainer]bool{}
	for id, l := range suspects {
		alive, err := true, error(nil)
		if a.host != nil {
			alive, err = a.host.HasProcesses(id)
		}
		if err == nil && !alive {
			idle[l] = true
			continue
		}
		a.log.Warn("container counts as started", "container", l.name, "id", id, "err", err)
		a.mu.Lock()
		l.idle = false
		a.mu.Unlock()
	}
	return idle
}

// postpone delays the release of pods with processes. The pause doubles each time.
func (a *Allocator) postpone(occupied map[device.PodUID]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range occupied {
		p := a.ended[uid]
		if p == nil {
			continue
		}
		p.releaseAt = time.Now().Add(min(firstProcessCheck<<min(p.processChecks, 16), lastProcessCheck))
		if p.processChecks++; p.processChecks == slowEndChecks {
			a.log.Warn("processes outlive their pod; its devices stay assigned", "pod", p.demand.Pod.String(), "uid", uid, "devices", device.Summary(p.assigned))
		}
	}
}

// leftoversLocked returns the pods that the state file does not know and whose containers were all idle when the runtime
// listed them, and how long they wait for a proof. They wait because the state file may be lost and the containers about to
// start. Devices are set aside for these pods. A power cut, or a restart of the runtime during a creation, leaves such
// containers.
func (a *Allocator) leftoversLocked() (pods []device.PodUID, wait time.Duration) {
	if !a.runtimeSynced {
		return nil, 0
	}
	for _, claims := range []map[device.PodUID]map[string]device.Choice{a.quarantined, a.conflicting} {
		for uid := range claims {
			if a.pods[uid] == nil && len(a.running[uid]) > 0 && !a.running[uid].mayRun() && !slices.Contains(pods, uid) {
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
		case shown.vacant[uid] && a.running[uid].bar(shown.idle):
			a.log.Info("released devices of idle containers", "uid", uid)
			delete(a.conflicting, uid)
			a.endQuarantineLocked(uid)
		}
	}
}

// bar keeps the idle containers of a pod from starting, if all of them are proven idle: the pod's devices are about to be
// released. It reports whether they are.
func (t runningPod) bar(proven map[*runningContainer]bool) bool {
	for _, l := range t {
		if !l.idle || !proven[l] {
			return false
		}
	}
	for _, l := range t {
		l.barred = true
	}
	return true
}

// has reports whether the pod has a container of that name.
func (t runningPod) has(container string) bool {
	for _, l := range t {
		if l.name == container {
			return true
		}
	}
	return false
}

// auditLocked reports containers of a pod that run without the devices they request: they were created while devmgrd was away
// and unguarded. A container that got its devices from a kubelet before an import has no stamp and counts as served.
func (a *Allocator) auditLocked(p *pod) {
	if p == nil || !p.active() || !a.runtimeSynced {
		return
	}
	uid := p.demand.Pod.UID
	for id, l := range a.running[uid] {
		if _, asks := p.demand.Of(l.name); !asks || l.stamped || l.reported || p.imported(*l) {
			continue
		}
		l.reported = true
		a.metrics.startedWithout.Inc()
		a.log.Error("container started without its devices",
			"pod", p.demand.Pod.String(), "container", l.name)
		a.notifier.StartedWithoutDevices(p.demand.Pod, l.name, func() bool { return a.stillWithoutDevices(uid, id) })
	}
}

// stillWithoutDevices reports whether a container that was found running without its devices still runs.
func (a *Allocator) stillWithoutDevices(uid device.PodUID, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	l := a.running[uid][id]
	return l != nil && !l.stamped
}

// imported reports whether a kubelet created a container and assigned its devices.
func (p *pod) imported(l runningContainer) bool {
	return slices.ContainsFunc(p.assigned, func(as device.Assignment) bool {
		return as.Container.Name == l.name && !as.Imported.IsZero() && !l.made.After(as.Imported)
	})
}
