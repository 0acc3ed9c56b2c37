package allocator

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
)

// CheckInvariants compares the ledger with its sources, and the assignments with the state file. Pods in the middle of an
// attempt may hold further devices.
func (a *Allocator) CheckInvariants(onDisk []device.PodRecord) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	type key struct {
		device.ResourceName
		device.ID
	}
	for _, p := range a.pods {
		fresh := *p
		fresh.faults = nil
		if was, now := firstOf(a.healthLocked(p)), firstOf(a.healthLocked(&fresh)); !reflect.DeepEqual(was, now) {
			return fmt.Errorf("pod %s: fault %v, want %v", p.demand.Pod, was, now)
		}
	}
	if a.snapshot != nil {
		if now := a.snapshotLocked(); !sameSnapshot(a.snapshot, now) {
			return fmt.Errorf("readers see %v, and the pods are %v", a.snapshot, now)
		}
	}
	owners := map[key]map[device.PodUID]bool{}
	users := map[key][]device.Demand{} // of the containers that have a device
	requests := map[device.ResourceName]int{}
	for uid, d := range a.left {
		if p := a.pods[uid]; p != nil && p.active() {
			return fmt.Errorf("pod %s has left, and is %v", p.demand.Pod, p.phase)
		}
		for r, n := range d.Requests() {
			requests[r] += n
		}
	}
	books := map[device.PodUID][]device.Assignment{}
	for _, r := range onDisk {
		books[r.Demand.Pod.UID] = r.Assignments
	}
	for uid, p := range a.pods {
		if (p.done != nil) != (phases[p.phase].trying) {
			return fmt.Errorf("pod %s: phase %v, done %v", p.demand.Pod, p.phase, p.done)
		}
		if (a.waiting[uid] != nil) != (p.phase == waiting) || (a.ended[uid] != nil) != (p.phase == ended) {
			return fmt.Errorf("pod %s: phase %v, waiting %v, ended %v", p.demand.Pod, p.phase, a.waiting[uid] != nil, a.ended[uid] != nil)
		}
		// Everything that can be served is served, and each wait has the reason that it should have.
		if p.phase == waiting && p.retry.IsZero() && !a.syncedAt.IsZero() && p.doubt == nil && p.complete() {
			if no, _ := a.regrantableLocked(p); no == nil {
				return fmt.Errorf("pod %s waits with %v, and its plugins can be asked", p.demand.Pod, p.wait)
			}
		} else if p.phase == waiting && p.retry.IsZero() && !a.syncedAt.IsZero() && p.doubt == nil {
			_, no := a.planLocked(p, nil)
			if no == nil || p.wait.Reason == "" {
				return fmt.Errorf("pod %s waits with %v, and a plan says %v", p.demand.Pod, p.wait, no)
			}
		}
		if s := p.allocation; s == nil || s.Pod != p.demand.Pod || s.Active != p.active() || s.Incomplete != (p.active() && !p.complete()) || !reflect.DeepEqual(s.Assignments, p.assigned) {
			return fmt.Errorf("pod %s: the board shows %+v of %+v", p.demand.Pod, s, p)
		}
		if (a.locals[uid] != nil) != p.demand.Local {
			return fmt.Errorf("pod %s: local %v, and among the local ones %v", p.demand.Pod, p.demand.Local, a.locals[uid] != nil)
		}
		if p.active() && !p.demand.Local {
			for r, n := range p.requested().Requests() {
				requests[r] += n
			}
		}
		// A commit that forgets a deleted pod may have failed and be in the state file all the same.
		// Until the next commit a renewed grant, or a pod that is back, may differ.
		if same := reflect.DeepEqual(books[uid], p.assigned) || len(p.lapsed) > 0 && reflect.DeepEqual(ledger.DevicesOf(books[uid]), ledger.DevicesOf(p.assigned)); len(p.assigned) > 0 && p.active() && !same && a.unsaved[uid] == nil {
			return fmt.Errorf("pod %s: the state file says %v, and not %v", p.demand.Pod, books[uid], p.assigned)
		}
		for _, as := range p.assigned {
			d, ok := p.demand.Of(as.Container.Name)
			if !ok || as.Container != d.Container {
				return fmt.Errorf("pod %s: assignment of %v without a demand", p.demand.Pod, as.Container)
			}
			for _, s := range as.Shares {
				if len(s.IDs) != d.Wants[s.Resource] {
					return fmt.Errorf("%v: %d of %s, wanted %d", as.Container, len(s.IDs), s.Resource, d.Wants[s.Resource])
				}
				for _, id := range s.IDs {
					k := key{s.Resource, id}
					for _, other := range users[k] {
						if !bothMayHave(d, other, s.Resource, id) {
							return fmt.Errorf("device %s of %s is in two hands: %v and %v", id, s.Resource, other.Container, d.Container)
						}
					}
					users[k] = append(users[k], d)
					if owners[k] == nil {
						owners[k] = map[device.PodUID]bool{}
					}
					owners[k][uid] = true
				}
			}
		}
	}
	strays := map[key]device.PodUID{}
	for uid, containers := range a.ledger.Quarantined {
		for _, choice := range containers {
			for r, ids := range choice {
				for _, id := range ids {
					if resource := a.ledger.Resources[r]; resource == nil || !resource.Has(id, uid) {
						return fmt.Errorf("device %s of %s is set aside for %s, which does not have it", id, r, uid)
					}
					if a.ledger.Resources[r].Quarantined(id) {
						strays[key{r, id}] = uid
					}
				}
			}
		}
	}
	for k, uid := range strays {
		if was, taken := owners[k]; taken {
			return fmt.Errorf("device %s of %s is set aside for %s and assigned to %v", k.ID, k.ResourceName, uid, was)
		}
		owners[k] = map[device.PodUID]bool{uid: true}
	}
	for r, resource := range a.ledger.Resources {
		for id := range resource.Taken() {
			if _, known := strays[key{r, id}]; resource.Quarantined(id) && !known {
				return fmt.Errorf("device %s of %s is quarantined for no pod", id, r)
			}
		}
	}
	for uid, assignments := range books {
		if len(assignments) > 0 && a.pods[uid] == nil {
			return fmt.Errorf("pod %s holds devices on disk only", uid)
		}
	}
	for r, resource := range a.ledger.Resources {
		taken := map[holding]bool{}
		for k, uids := range owners {
			for uid := range uids {
				if k.ResourceName == r {
					taken[holding{k.ID, uid}] = true
				}
			}
		}
		has := map[holding]bool{}
		for id := range resource.Taken() {
			for uid := range a.ledger.Lookup(r).Holders(id) {
				has[holding{id, uid}] = true
				holder := a.pods[uid]
				if holder == nil || taken[holding{id, uid}] || holder.phase != allocating && holder.phase != abandoned && !slices.Contains(holder.doubt[r], id) {
					continue
				}
				for was := range owners[key{r, id}] {
					if claim := holder.demand.Claim(r, id); claim == "" || claim != a.pods[was].demand.Claim(r, id) {
						return fmt.Errorf("device %s of %s is in two hands: held for %s, assigned to %s", id, r, uid, was)
					}
				}
				taken[holding{id, uid}] = true
			}
		}
		if !maps.Equal(taken, has) {
			return fmt.Errorf("%s: the ledger says %v is taken, the assignments say %v", r, has, taken)
		}
		if err := resource.Check(); err != nil {
			return fmt.Errorf("%s: %w", r, err)
		}
		hardware := func(id device.ID) string { name, _, _ := strings.Cut(string(id), "::"); return name }
		granted := a.ledger.UnlistedInUse(r)
		unlisted := slices.Collect(maps.Keys(granted))
		if len(unlisted) > resource.Unlisted() {
			return fmt.Errorf("%s: %d devices in use are not listed, counted %d", r, len(unlisted), resource.Unlisted())
		}
		if l := resource.Listing(); len(l.Devices()) > 0 && !maps.Equal(l.Cordons(), a.inForce[r]) {
			return fmt.Errorf("%s: the listing has cordons %v, want %v", r, l.Cordons(), a.inForce[r])
		}
		for _, d := range resource.Listing().Devices() {
			withheld := slices.ContainsFunc(unlisted, func(u device.ID) bool { // it may be the same device
				related := func(d device.Device) bool { return hardware(d.ID) == hardware(u) }
				return d.Added > granted[u] && (related(d) || !slices.ContainsFunc(resource.Listing().Devices(), related))
			})
			replanned := slices.ContainsFunc(slices.Collect(maps.Values(a.pods)), func(q *pod) bool { return len(q.doubt[r]) > 0 }) // until the next commit
			if withheld != resource.Withheld(d.ID) && !replanned {
				return fmt.Errorf("%s: device %s: withheld is %v", r, d.ID, !withheld)
			}
		}
		if err := a.checkFailures(r); err != nil {
			return err
		}
		if resource.Requests() != requests[r] {
			return fmt.Errorf("%s: requests %d, counted %d", r, resource.Requests(), requests[r])
		}
	}
	return nil
}

func firstOf(f *device.Fault, _ bool) *device.Fault { return f }

// checkFailures compares the failures that are recorded with the devices that are broken.
func (a *Allocator) checkFailures(r device.ResourceName) error {
	resource, log := a.ledger.Resources[r], a.ledger.Failures(r)
	if !resource.Current() {
		return nil
	}
	for id := range resource.Taken() {
		f, failed := log.Last(id)
		user, used := a.userLocked(r, id, "")
		recorded := false
		for uid := range resource.Holders(id) {
			recorded = recorded || log.Knows(id, uid, resource.Listing().Lists(id))
		}
		switch broken := resource.Broken(id); {
		case !broken && failed && f.Ended.IsZero():
			return fmt.Errorf("device %s of %s counts as failed and is not", id, r)
		case broken && used && !recorded:
			return fmt.Errorf("device %s of %s of pod %s has failed, and no failure is recorded", id, r, user)
		}
	}
	return nil
}

// bothMayHave reports whether two containers may have one device: by one claim or, in one pod, by number, where an init container hands it on.
func bothMayHave(d, e device.Demand, r device.ResourceName, id device.ID) bool {
	own := d.Container.Pod == e.Container.Pod
	if slices.Contains(d.Fixed[r], id) || slices.Contains(e.Fixed[r], id) {
		claim := d.Claimed[r][id]
		return slices.Contains(d.Fixed[r], id) && slices.Contains(e.Fixed[r], id) && claim == e.Claimed[r][id] && (own || claim != "")
	}
	return own && (d.Kind == device.Init || e.Kind == device.Init)
}

// A holding is a device as one pod has it.
type holding struct {
	device.ID
	device.PodUID
}

// sameSnapshot compares two snapshots, whose pods have no order.
func sameSnapshot(x, y *device.Snapshot) bool {
	pods := map[device.PodUID]device.PodStatus{}
	for _, p := range x.Pods {
		pods[p.Pod.UID] = p
	}
	return x.Revision == y.Revision && len(x.Pods) == len(y.Pods) && !slices.ContainsFunc(y.Pods, func(p device.PodStatus) bool {
		return !reflect.DeepEqual(pods[p.Pod.UID], p)
	})
}

// WaitSynced waits until the runtime's reports have been applied.
func (a *Allocator) WaitSynced() {
	a.mu.Lock()
	behind := a.catchingUp
	a.mu.Unlock()
	if behind != nil {
		<-behind
	}
}

// PodByUID returns a pod's status; the zero status: the pod is unknown.
func (a *Allocator) PodByUID(uid device.PodUID) device.PodStatus {
	for _, p := range a.Snapshot().Pods {
		if p.Pod.UID == uid {
			return p
		}
	}
	return device.PodStatus{}
}

// ReleasedAfter returns the pods that writePending would release, if something happens between the proof and the commit.
func (a *Allocator) ReleasedAfter(between func()) (all []string) {
	found := a.depart()
	between()
	a.commitMu.Lock()
	defer a.commitMu.Unlock()
	_, forget, _ := a.due(found)
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range forget {
		a.enterLocked(p, ended)
		all = append(all, p.demand.Pod.Name)
	}
	return all
}

// ResourceCount returns how many resources are kept in memory.
func (a *Allocator) ResourceCount() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.ledger.Resources)
}

// Hold keeps the lock until the function that it returns is called, as another goroutine would.
func (a *Allocator) Hold() (end func()) {
	held, free := make(chan struct{}), make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		close(held)
		<-free
	})
	<-held
	return func() { close(free); work.Wait() }
}

// StillBroken is what the notifier asks of a failed device.
func (a *Allocator) StillBroken(uid device.PodUID, r device.ResourceName, id device.ID) bool {
	return a.stillBroken(uid, r, id)
}

// LookForSuspensions returns how many objects the planning loop makes when it looks whether suspensions of a resource have changed.
func (a *Allocator) LookForSuspensions(r device.ResourceName) float64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return testing.AllocsPerRun(5, func() {
		delete(a.suspensionsDue, r)
		a.suspendLocked(time.Now(), false)
	})
}

// Suspend has the suspensions of one resource changed, as the planning loop does, and returns how many resources have suspended devices then.
func (a *Allocator) Suspend() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.suspendLocked(time.Now(), false)
	return len(a.suspended)
}

// Downturns has the falls of one downturn counted, as the planning loop does, and returns how many are left.
func (a *Allocator) Downturns() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.judgeFallsLocked(time.Now())
	return len(a.downturns)
}

// FollowedFalls returns how many devices have a record of their falls.
func (a *Allocator) FollowedFalls() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.flapping {
		n += l.Len()
	}
	return n
}

// SuspensionsKnown reports whether the planning loop knows when the suspensions of a resource change.
func (a *Allocator) SuspensionsKnown(r device.ResourceName) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, known := a.suspensionsDue[r]
	return known
}

// WatchFailures looks at failures once, as the planning loop does.
func (a *Allocator) WatchFailures() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.watchFailuresLocked(time.Now())
}

// Refresh takes over changed offers, as the planning loop does.
func (a *Allocator) Refresh() { a.refresh() }

// Late has f called as soon as the lock is given back.
func (a *Allocator) Late(f func()) { a.mu.do(f) }

// NotedRetired returns how many forgotten resources are noted to be taken off the Node.
func (a *Allocator) NotedRetired() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.retired)
}

// UnsavedFalls returns how many devices have a record of their falls that is not on disk.
func (a *Allocator) UnsavedFalls() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.unsavedFalls)
}

// WriteFalls makes the records of falls durable, as the writer does.
func (a *Allocator) WriteFalls() { a.writeFalls() }
