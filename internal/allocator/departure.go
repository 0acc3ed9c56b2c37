package allocator

import (
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// The devices of an ended pod stay the pod's, on disk too, until they have been seen to be free, in this order:
//
//	stage    seen so far                              next, and when
//	present  nothing                                  emptied   the runtime has no container of it, or only idle ones, no plugin prepares its
//	                                                            devices, and its time has come
//	emptied  no container                             quiet     the host has no process of it; or this is not to be checked, or an operator has accepted it
//	quiet    no process either                        checked   the Releaser has proved its devices free, but for those that other pods keep
//	checked  devices are free                         phase forgetting, a commit, phase absent (lifecycle.go)
//
// A pod goes back to present if it is in the API again, gets a container (usedLocked), has processes still, or the runtime is away. It goes back to quiet if another
// pod joins or leaves its devices (unprovenLocked). Its generation counts that: an answer about an earlier generation counts for nothing. A restart of devmgrd begins with present,
// so it only repeats what had been seen.
//
// The writer does a round (depart) before each of its commits: it asks the host without the lock, moves each pod as far as that goes, and forgets those
// that are checked.
type stage int

const (
	present stage = iota
	emptied
	quiet
	checked
)

// A departure is what has been seen of the end of a pod. Its zero value is that of a pod that has not ended.
type departure struct {
	stage      stage
	generation int                 // how often the pod came back, got a container after its end, or lost the proof of its devices
	ended      time.Time           // when it last left the API
	due        time.Time           // it leaves stage present no earlier
	alive      int                 // how often the host has shown processes of it since it ended
	proving    []device.Assignment // what has to be proved, as last said to the Releaser
	why        *device.Release     // why its devices are not free yet; nil: not known
	failed     string              // why release.command has failed for its devices
	recorded   bool                // the record on disk has such a failure
	accepted   bool                // an operator has its devices released without further proof
}

const (
	// idleGrace is how long after a pod's end, and after its own creation, a container that has not been started keeps its devices. A kubelet
	// starts a container right after its creation, and starts none of a pod that is gone.
	idleGrace = 30 * time.Second
	// firstProcessCheck and lastProcessCheck are the shortest and the longest pause between checks for processes of an ended pod.
	firstProcessCheck, lastProcessCheck = 100 * time.Millisecond, 5 * time.Second
	// releaseGrace is for how long devices that are being released count in the Node's capacity: longer while the proof is under way, shorter if it failed.
	releaseGrace = 2 * time.Second
)

// A Releaser proves that the devices of ended pods are free beyond what the runtime and the pods' cgroups show.
type Releaser interface {
	// Release begins or continues the proof for an ended pod. It returns nil once the devices are proved free, and until then
	// what is known. It returns at once.
	Release(device.Departure) *device.Release
	// Forget ends a proof: the devices have been released, or the pod may use them again.
	Forget(device.PodUID)
	// ForgetResource forgets a resource of which no pod has devices.
	ForgetResource(device.ResourceName)
	// Running reports whether a command for the pod's devices runs, also after Forget, which stops it.
	Running(device.PodUID) bool
	// Changed has a value when Release may return something else.
	Changed() <-chan struct{}
}

// evidence is what a round has found out about pods without a record, and about idle containers.
type evidence struct {
	leftovers map[device.PodUID]bool         // without a process (leftoversLocked)
	idle      map[*containers.Container]bool // containers without a process
}

// depart moves each ended pod as far as the runtime, the host and the Releaser have seen it go. The runtime's report does not suffice, for two reasons:
//
//   - The runtime may have lost track of a container whose processes live: the container's shim was killed, or hung while the
//     runtime restarted, and the processes cannot be killed, as in a driver's uninterruptible sleep. The pod waits until it
//     has no process.
//   - Another NRI plugin may have hidden the start of an idle container from devmgrd, or the runtime may let containers start
//     while it synchronizes a plugin. A container with a process counts as started: its devices are released when the runtime
//     reports its end.
//
// Where the host cannot answer, idle containers count as started, and for other containers the runtime's report decides.
func (a *Allocator) depart() evidence {
	pods, leftovers := a.emptied()
	occupied := a.occupied(slices.AppendSeq(slices.Clone(leftovers), maps.Keys(pods)))
	found := evidence{leftovers: map[device.PodUID]bool{}}
	for _, uid := range leftovers {
		if _, has := occupied[uid]; !has {
			found.leftovers[uid] = true
		}
	}
	found.idle = a.proveIdle(a.quieted(pods, occupied, leftovers))
	return found
}

// emptied moves pods without containers to that stage, and on to quiet if the host need not be asked. It returns the others with their
// generations, and pods without a record.
func (a *Allocator) emptied() (pods map[device.PodUID]int, leftovers []device.PodUID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.writeAt = time.Time{} // what is scheduled from now on may concern a later write
	pods = map[device.PodUID]int{}
	for uid, p := range a.ended {
		d := &p.departure
		switch wait, vacant := a.vacantLocked(p); {
		case len(p.assigned) == 0 || !vacant || wait > 0:
			d.stage = present
			continue
		case d.stage == present:
			d.stage = emptied
		}
		if d.stage == emptied && (d.accepted || !a.checksProcessesLocked(p)) {
			d.stage = quiet
		}
		if d.stage == emptied {
			pods[uid] = d.generation
		}
	}
	leftovers, wait := a.leftoversLocked()
	if wait > 0 {
		leftovers = nil
	}
	return pods, leftovers
}

// occupied returns which of these pods have processes, as far as the host can say.
func (a *Allocator) occupied(pods []device.PodUID) map[device.PodUID][]device.Process {
	if a.cfg.Host == nil || len(pods) == 0 {
		return nil
	}
	found, err := a.cfg.Host.PodsWithProcesses(pods)
	if err != nil {
		a.cfg.Log.Debug("host cannot tell which pods have processes", "err", err)
	}
	return found
}

// quieted moves pods without processes to that stage, and asks the Releaser about all that have come so far. It returns the idle containers of all that
// are past stage present, and of those without a record.
func (a *Allocator) quieted(pods map[device.PodUID]int, occupied map[device.PodUID][]device.Process, leftovers []device.PodUID) (suspects []idle) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid, generation := range pods {
		p := a.ended[uid]
		if p == nil || p.departure.generation != generation {
			continue
		}
		if processes, has := occupied[uid]; has {
			a.postponeLocked(p, processes)
		} else {
			p.departure.stage = quiet
		}
	}
	for uid, p := range a.ended {
		if p.departure.stage >= quiet {
			a.reviewLocked(p)
		}
		if p.departure.stage > present {
			leftovers = append(leftovers, uid)
		}
	}
	for _, uid := range leftovers {
		suspects = append(suspects, a.idleLocked(uid)...)
	}
	return suspects
}

// postponeLocked delays the next look at a pod with processes. The pause doubles each time.
func (a *Allocator) postponeLocked(p *pod, processes []device.Process) {
	d := &p.departure
	d.due = time.Now().Add(loops.Doubled(firstProcessCheck, lastProcessCheck, d.alive))
	d.alive++
	a.releasingLocked(p, device.Release{Why: "processes of the pod have not ended", Holders: processes, Failed: d.failed})
}

// reviewLocked asks the Releaser about a quiet pod.
func (a *Allocator) reviewLocked(p *pod) {
	d := &p.departure
	d.stage = quiet
	all, joined := a.departureLocked(p)
	if !p.proves(all) && a.cfg.Releaser != nil {
		a.cfg.Releaser.Forget(p.demand.Pod.UID)
	}
	d.proving = all.Assignments
	switch {
	case joined:
	case d.accepted || a.cfg.Releaser == nil || len(all.Assignments) == 0:
		d.stage = checked
	default:
		if why := a.cfg.Releaser.Release(all); why != nil {
			a.releasingLocked(p, *why)
		} else {
			d.stage = checked
		}
	}
}

// releasingLocked records why a pod's devices are not free yet.
func (a *Allocator) releasingLocked(p *pod, why device.Release) {
	d, now := &p.departure, time.Now()
	was := d.why
	why.Since = now
	if was != nil {
		why.Since = was.Since
	}
	why.Busy = why.Failed != "" || !why.Underway && now.Sub(why.Since) >= releaseGrace
	switch {
	case !why.Busy && !why.Underway:
		a.scheduleWriteLocked(why.Since.Add(releaseGrace).Sub(now))
	case was != nil && was.Busy:
		why.Busy = true // until it is free
	}
	if why.Failed != d.failed {
		d.failed = why.Failed
		a.unsaved[p.demand.Pod.UID] = p
		a.scheduleWriteLocked(0)
	}
	if was != nil && was.Busy == why.Busy && was.Why == why.Why && was.Failed == why.Failed && slices.Equal(was.Holders, why.Holders) {
		return
	}
	if why.Busy && (was == nil || !was.Busy) {
		a.cfg.Log.Warn("devices of an ended pod are not proved free", "pod", p.demand.Pod.String(), "uid", p.demand.Pod.UID,
			"devices", device.Summary(p.assigned), "why", why.String())
		a.journal(device.VerbBusy, "pod "+p.demand.Pod.String()+" has ended; "+why.String(), namesOf(p.assigned)...)
	}
	a.setReleaseLocked(p, &why)
}

func (a *Allocator) setReleaseLocked(p *pod, why *device.Release) {
	busy := why != nil && why.Busy || p.departure.why != nil && p.departure.why.Busy
	p.departure.why, a.snapshot = why, nil
	devices := ledger.DevicesOf(p.assigned)
	a.ledger.Releasing(p.demand.Pod.UID, devices, why)
	if busy {
		for r := range devices {
			a.wakeLocked(r, false) // a pod that waits says what keeps the devices
		}
	}
	a.changedLocked()
	loops.Signal(a.kick)
}

// departedLocked reports whether a pod can be forgotten now. If it could be later, the next round is scheduled, or a report of the runtime or the Releaser
// leads to it.
func (a *Allocator) departedLocked(p *pod, found evidence) bool {
	if len(p.assigned) == 0 {
		return true
	}
	uid := p.demand.Pod.UID
	wait, vacant := a.vacantLocked(p)
	switch {
	case !vacant:
	case wait > 0:
		a.scheduleWriteLocked(wait)
	case p.departure.stage == quiet: // the Releaser reports a change, or the attempt of a pod that joins it ends
	case a.cfg.Releaser != nil && a.cfg.Releaser.Running(uid): // its end reports a change; a pod that shares the devices waits for it
	case p.departure.stage < quiet || !a.stillProvedLocked(p) || !a.barLocked(uid, found.idle):
		a.scheduleWriteLocked(0) // a container was started, listed or stopped since the host was asked, or another pod has left a device
	default:
		return true
	}
	return false
}

// vacantLocked reports whether the runtime has no container of a pod, or only idle ones, and no plugin prepares its devices, and how long the release
// of the devices still has to wait.
func (a *Allocator) vacantLocked(p *pod) (wait time.Duration, vacant bool) {
	running := a.running[p.demand.Pod.UID]
	if !a.runtimeSynced || running.MayRun() || p.preparing() {
		return 0, false
	}
	for _, since := range []time.Time{p.departure.ended, running.InjectedLast()} {
		if at := since.Add(idleGrace); len(running) > 0 && at.After(p.departure.due) {
			p.departure.due = at
		}
	}
	return time.Until(p.departure.due), true
}

// checksProcessesLocked reports whether a pod's devices are released only when the host has no process of the pod.
func (a *Allocator) checksProcessesLocked(p *pod) bool {
	return a.cfg.ChecksProcesses == nil || slices.ContainsFunc(p.assigned, func(as device.Assignment) bool {
		return slices.ContainsFunc(as.Shares, func(s device.Share) bool { return a.cfg.ChecksProcesses(s.Resource) })
	})
}

// An idle container of a pod is not known to have started.
type idle struct {
	*containers.Container
	pod device.PodUID
	id  string
}

// idleLocked returns a pod's containers as idle ones.
func (a *Allocator) idleLocked(uid device.PodUID) (all []idle) {
	for id, c := range a.running[uid] {
		all = append(all, idle{c, uid, id})
	}
	return all
}

// proveIdle returns the idle containers that have no process. The others count as started.
func (a *Allocator) proveIdle(suspects []idle) map[*containers.Container]bool {
	proven := map[*containers.Container]bool{}
	var occupied map[string]bool
	var err error
	if a.cfg.Host != nil && len(suspects) > 0 {
		occupied, err = a.cfg.Host.ContainersWithProcesses(lists.Map(suspects, func(c idle) string { return c.id }))
	}
	for _, c := range suspects {
		if a.cfg.Host != nil && err == nil && !occupied[c.id] {
			proven[c.Container] = true
			continue
		}
		a.cfg.Log.Warn("container counts as started", "container", c.Name, "id", c.id, "err", err)
		a.mu.Lock()
		c.Idle = false
		a.usedLocked(a.pods[c.pod])
		a.mu.Unlock()
	}
	return proven
}

// leftoversLocked returns the pods that the state file does not know and whose containers were all idle when the runtime
// listed them, and how long they wait for a proof. They wait because the state file may be lost and the containers about to
// start. Devices are set aside for these pods. A power cut, or a restart of the runtime during a creation, leaves such
// containers.
func (a *Allocator) leftoversLocked() (pods []device.PodUID, wait time.Duration) {
	if !a.runtimeSynced {
		return nil, 0
	}
	for uid, all := range a.running {
		said := a.ledger.Quarantined[uid] != nil || a.ledger.Conflicting[uid] != nil || all.Unknown()
		if said && a.pods[uid] == nil && !all.MayRun() && all.InjectedLast().IsZero() {
			pods = append(pods, uid)
		}
	}
	return pods, time.Until(a.syncedAt.Add(idleGrace))
}

// releaseLeftoversLocked frees the devices that are set aside for pods with only idle containers, and bars these containers.
func (a *Allocator) releaseLeftoversLocked(found evidence) {
	leftovers, wait := a.leftoversLocked()
	for _, uid := range leftovers {
		switch {
		case wait > 0:
			a.scheduleWriteLocked(wait)
		case found.leftovers[uid] && a.barLocked(uid, found.idle):
			a.cfg.Log.Info("released devices of idle containers", "uid", uid)
		}
	}
}

// barLocked bars a pod's containers, if all of them are proven idle, and reports whether they are. What they say they have no longer counts.
func (a *Allocator) barLocked(uid device.PodUID, proven map[*containers.Container]bool) bool {
	if !a.running[uid].Bar(proven, a.noneStartsLocked) {
		return false
	}
	a.disownLocked(uid)
	for _, l := range a.running[uid] {
		a.unsaidLocked(l)
		for _, r := range slices.Clone(l.UnknownDevices) {
			a.unpauseLocked(l, r)
		}
	}
	return true
}

// addRunningLocked records a container that exists, or is about to.
func (a *Allocator) addRunningLocked(r device.Running, stamped bool) *containers.Container {
	a.usedLocked(a.pods[r.Container.Pod])
	return a.running.Add(r, stamped)
}

// usedLocked records that a pod, if it is known, may use its devices: its departure begins afresh.
func (a *Allocator) usedLocked(p *pod) {
	if p == nil {
		return
	}
	d := &p.departure
	d.accepted = false
	if d.failed != "" {
		d.failed = ""
		a.saveLaterLocked(p)
	}
	a.unprovenLocked(p)
	d.stage = present
	a.disturbLocked(p)
}

// unprovenLocked has the proof about a pod's devices begun afresh.
func (a *Allocator) unprovenLocked(p *pod) {
	d := &p.departure
	d.generation++
	d.stage, d.proving = min(d.stage, quiet), nil
	if a.cfg.Releaser != nil {
		a.cfg.Releaser.Forget(p.demand.Pod.UID)
	}
	if d.why != nil {
		a.setReleaseLocked(p, nil)
	}
}

// acceptLocked has the devices of an ended pod released without further proof, if one of these is busy: at the end of a command for them that may run
// still (departedLocked). It returns that one.
func (a *Allocator) acceptLocked(c device.Cordon) (released device.Cordon, was bool) {
	for uid := range a.ledger.Lookup(c.Resource).Holders(c.ID) {
		p := a.ended[uid]
		if p == nil || p.departure.why == nil || !p.departure.why.Busy {
			continue
		}
		d := &p.departure
		if !d.accepted {
			a.cfg.Log.Warn("devices are released although they may be in use: an operator said so", "pod", p.demand.Pod.String(), "devices", device.Summary(p.assigned),
				"why", d.why.String())
		}
		d.accepted, d.due = true, time.Time{}
		a.scheduleWriteLocked(0)
		released, was = device.Cordon{Resource: c.Resource, ID: c.ID, Reason: "busy: " + d.why.String(), Since: d.why.Since}, true
	}
	return released, was
}

// releasedLocked frees the devices of a pod that the state file has forgotten.
func (a *Allocator) releasedLocked(p *pod) {
	uid := p.demand.Pod.UID
	devices := ledger.DevicesOf(p.assigned)
	a.passFailuresLocked(p, devices, true)
	a.ledger.Release(uid, devices)
	for r := range devices {
		a.wakeLocked(r, false)
	}
	if len(p.assigned) > 0 {
		a.cfg.Log.Info("devices released", "pod", p.demand.Pod.String(), "devices", device.Summary(p.assigned))
		if d := p.departure; d.why != nil && d.why.Busy {
			why := "they are proved free"
			if d.accepted {
				why = "an operator has said so"
			}
			a.journal(device.VerbFree, why, namesOf(p.assigned)...)
		}
	}
	if a.cfg.Releaser != nil {
		a.cfg.Releaser.Forget(uid)
	}
	p.assigned, p.preparations, p.saved = nil, nil, false
	p.departure = departure{generation: p.departure.generation, ended: p.departure.ended}
	a.changedLocked()
	if p.phase == forgetting {
		a.enterLocked(p, absent)
		return
	}
	a.publishLocked(p)
	a.beginLocked(p) // it is back in the API, and starts again
}

// namesOf returns the devices of a pod as RESOURCE/ID, ascending.
func namesOf(all []device.Assignment) (names []string) {
	for r, ids := range ledger.DevicesOf(all) {
		for _, id := range ids {
			names = append(names, device.Cordon{Resource: r, ID: id}.Name())
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
