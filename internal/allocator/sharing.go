package allocator

import (
	"iter"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// Containers that use one ResourceClaim, of one pod or of several, share its devices. A plugin does not know that: under a kubelet it is
// never asked to allocate or to prepare a device that a running container has, and it may reset the device then. So a container has the grant
// that another one has for the same devices, and PreStartContainer is not called for devices that another container has. A release is proved when
// the last pod leaves; before, openers are looked for only of device nodes that no other pod has been granted.
//
// A pod joins only while another pod with that claim has its grant on disk and has not ended. So no release command is running when it joins.
// None starts until the join has succeeded or failed, which may take as long as the plugins of the pod's other resources: the pods that have the
// device may end meanwhile.

// sharingLocked returns whether a pod may have the devices of its claims that other pods have.
func (a *Allocator) sharingLocked(p *pod) map[device.ResourceName]map[device.ID]placement.Sharing {
	if !p.demand.Shares() {
		return nil
	}
	all := map[device.ResourceName]map[device.ID]placement.Sharing{}
	for _, d := range p.demand.Demands {
		for r, claimed := range d.Claimed {
			of := lists.Inner(all, r)
			for id, claim := range claimed {
				if _, known := of[id]; !known {
					of[id] = a.shareableLocked(r, id, claim)
				}
			}
		}
	}
	return all
}

// shareableLocked returns whether a device can be shared by a claim.
func (a *Allocator) shareableLocked(r device.ResourceName, id device.ID, claim device.ClaimUID) placement.Sharing {
	may := placement.Never
	for uid := range a.ledger.Lookup(r).Holders(id) {
		switch q := a.pods[uid]; {
		case q == nil || q.demand.Claim(r, id) != claim:
			return placement.Never
		case q.phase == settled && !q.recalled:
			may = placement.Now
		default:
			may = max(may, placement.Later)
		}
	}
	return may
}

// wakeSharersLocked queues the pods that wait for a pod with the same claims, whose attempt has ended or which is served again, and has the
// releases reviewed that wait for the end of the attempt.
func (a *Allocator) wakeSharersLocked(p *pod) {
	if !p.demand.Shares() {
		return
	}
	if len(a.ended) > 0 {
		a.scheduleWriteLocked(0)
	}
	mine := map[device.ClaimUID]bool{}
	for claim := range p.demand.Claims() {
		mine[claim] = true
	}
	for _, q := range a.waiting {
		if q == p || !q.retry.IsZero() {
			continue
		}
		for claim := range q.demand.Claims() {
			if mine[claim] {
				a.queueLocked(q)
				break
			}
		}
	}
}

// allocatingSharerLocked returns another pod with devices of the same claims whose plugins are being asked; nil: there is none.
func (a *Allocator) allocatingSharerLocked(p *pod) *pod {
	for _, d := range p.demand.Demands {
		for r, claimed := range d.Claimed {
			for id := range claimed {
				for uid := range a.ledger.Lookup(r).Holders(id) {
					if q := a.pods[uid]; q != nil && q != p && (q.phase == allocating || q.phase == abandoned) {
						return q
					}
				}
			}
		}
	}
	return nil
}

// sharedGrant returns the grant that another container has for the same devices by the same claims; false: the plugin has to be asked.
// before are the assignments of the pod's earlier containers.
func (a *Allocator) sharedGrant(c device.Container, s device.Share, before []device.Assignment) (device.Grant, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[c.Pod]
	if p == nil {
		return device.Grant{}, false
	}
	d, _ := p.demand.Of(c.Name)
	why, lapsed := p.lapsed[c.Name]
	claimed := !slices.ContainsFunc(s.IDs, func(id device.ID) bool { return d.Claimed[s.Resource][id] == "" })
	if !claimed || lapsed && why == unusable || p.distrusts[c.Name] {
		return device.Grant{}, false
	}
	has := func(all []device.Assignment, lapsed map[string]lapse) (device.Grant, bool) {
		for of, one := range device.Shares(all) {
			if _, is := lapsed[of.Name]; !is && one.Resource == s.Resource && one.Boot == a.cfg.Boot && slices.Equal(one.IDs, s.IDs) {
				return one.Grant, true
			}
		}
		return device.Grant{}, false
	}
	if grant, shared := has(before, nil); shared {
		return grant, true
	}
	for uid := range a.ledger.Lookup(s.Resource).Holders(s.IDs[0]) {
		if q := a.pods[uid]; q != nil && q != p {
			if grant, shared := has(q.assigned, q.lapsed); shared {
				return grant, true
			}
		}
	}
	return device.Grant{}, false
}

// usersLocked yields the other containers that have a device by the claim by which this one has it.
func (a *Allocator) usersLocked(c device.Container, r device.ResourceName, id device.ID) iter.Seq2[*pod, string] {
	return func(yield func(*pod, string) bool) {
		p := a.pods[c.Pod]
		if p == nil {
			return
		}
		if d, _ := p.demand.Of(c.Name); d.Claimed[r][id] == "" {
			return
		}
		for uid := range a.ledger.Lookup(r).Holders(id) {
			q := a.pods[uid]
			if q == nil {
				continue
			}
			for of, s := range device.Shares(q.assigned) {
				if of != c && s.Resource == r && slices.Contains(s.IDs, id) && !yield(q, of.Name) {
					return
				}
			}
		}
	}
}

// unpreparedLocked returns the shares of a container without the devices that another container has, or for which they have been prepared.
func (a *Allocator) unpreparedLocked(c device.Container, shares []device.Share) []device.Share {
	if p := a.pods[c.Pod]; p == nil || !p.demand.Shares() {
		return shares
	}
	for i, s := range shares {
		shares[i].IDs = slices.DeleteFunc(slices.Clone(s.IDs), func(id device.ID) bool {
			for q, name := range a.usersLocked(c, s.Resource, id) {
				prep := q.preparations[name]
				if a.running[q.demand.Pod.UID].Has(name) || prep.has(s.Resource, id) && !prep.running && prep.err == nil {
					return true
				}
			}
			return false
		})
	}
	return slices.DeleteFunc(shares, func(s device.Share) bool { return len(s.IDs) == 0 })
}

// preparingLocked returns a preparation of devices of the container that is in progress for another container; nil: there is none.
func (a *Allocator) preparingLocked(as device.Assignment) *preparation {
	p := a.pods[as.Container.Pod]
	if p == nil {
		return nil
	}
	for other := range p.siblings(as) {
		if prep := p.preparations[other.Container.Name]; prep != nil && prep.running {
			return prep
		}
	}
	if !p.demand.Shares() {
		return nil
	}
	for _, s := range as.Shares {
		for _, id := range s.IDs {
			for q, name := range a.usersLocked(as.Container, s.Resource, id) {
				if prep := q.preparations[name]; prep.has(s.Resource, id) && prep.running {
					return prep
				}
			}
		}
	}
	return nil
}

// consumeLocked forgets the preparations for other containers of devices that a container uses from now on.
func (a *Allocator) consumeLocked(p *pod, name string) {
	as, _ := p.of(name)
	if len(p.preparations) > 0 {
		for other := range p.siblings(as) {
			if prep := p.preparations[other.Container.Name]; prep != nil && !prep.running {
				delete(p.preparations, other.Container.Name)
			}
		}
	}
	if !p.demand.Shares() {
		return
	}
	for _, s := range as.Shares {
		for _, id := range s.IDs {
			for q, other := range a.usersLocked(as.Container, s.Resource, id) {
				if prep := q.preparations[other]; prep.has(s.Resource, id) && !prep.running {
					delete(q.preparations, other)
				}
			}
		}
	}
}

// departureLocked returns what has to be proved free for an ended pod: the devices that no other pod keeps, with the nodes of their grants. If several pods
// with a device end together, the pod with the lowest UID proves the device free. joined: another pod may be about to get one of these devices, by an attempt
// or a commit that has not ended. The proof must not begin then.
func (a *Allocator) departureLocked(p *pod) (d device.Departure, joined bool) {
	d = device.Departure{Pod: p.demand.Pod, Assignments: p.assigned, Failed: p.departure.failed}
	if !p.demand.Shares() {
		return d, false
	}
	uid := p.demand.Pod.UID
	keeps := func(other device.PodUID) bool {
		q := a.pods[other]
		return other != uid && q != nil && (q.active() || q.departure.stage < quiet || other < uid)
	}
	kept := map[device.Key]bool{} // for all devices of a pod at once: a claim may have many, and many pods
	isKept := func(r device.ResourceName, id device.ID) bool {
		if kept[device.Key{Resource: r, ID: id}] {
			return true
		}
		joins := false
		for other := range a.ledger.Lookup(r).Holders(id) {
			q := a.pods[other]
			if !keeps(other) {
				continue
			}
			if !q.has(r, id) {
				joins = joins || q.phase == allocating || q.phase == abandoned || q.doubt != nil
				continue
			}
			for _, s := range device.Shares(q.assigned) {
				for _, id := range s.IDs {
					kept[device.Key{Resource: s.Resource, ID: id}] = true
				}
			}
			return true
		}
		joined = joined || joins
		return false
	}
	d.Assignments = nil
	for _, as := range p.assigned {
		shares := as.Shares
		as.Shares = nil
		for _, s := range shares {
			all := s.IDs
			s.IDs = slices.DeleteFunc(slices.Clone(all), func(id device.ID) bool { return isKept(s.Resource, id) })
			for _, id := range all {
				if slices.Contains(s.IDs, id) {
					continue
				}
				for other := range a.ledger.Lookup(s.Resource).Holders(id) {
					if names(s.Grant) && keeps(other) {
						s.Grant = without(s.Grant, a.pods[other], s.Resource, id)
					}
				}
			}
			if len(s.IDs) > 0 || names(s.Grant) {
				as.Shares = append(as.Shares, s)
			}
		}
		if len(as.Shares) > 0 {
			d.Assignments = append(d.Assignments, as)
		}
	}
	return d, joined
}

// leaveProofLocked leaves the proof for the devices of a pod that is forgotten to the pods that keep them: they count as having run themselves.
func (a *Allocator) leaveProofLocked(p *pod) {
	if !p.ran || !p.demand.Shares() {
		return
	}
	for r, ids := range ledger.DevicesOf(p.assigned) {
		for _, id := range ids {
			for uid := range a.ledger.Lookup(r).Holders(id) {
				if q := a.pods[uid]; q != nil {
					q.ran = true
				}
			}
		}
	}
}

// names reports whether a grant names device nodes.
func names(g device.Grant) bool { return len(g.Nodes)+len(g.CDI) > 0 }

// without returns a grant without the device nodes that a pod has with a device that it keeps. A grant does not name the device of a node.
func without(g device.Grant, keeper *pod, r device.ResourceName, id device.ID) device.Grant {
	for _, s := range device.Shares(keeper.assigned) {
		if s.Resource != r || !slices.Contains(s.IDs, id) {
			continue
		}
		g.Nodes = slices.DeleteFunc(slices.Clone(g.Nodes), func(n device.Node) bool {
			return slices.ContainsFunc(s.Grant.Nodes, func(kept device.Node) bool { return kept.HostPath == n.HostPath })
		})
		g.CDI = slices.DeleteFunc(slices.Clone(g.CDI), func(name string) bool { return slices.Contains(s.Grant.CDI, name) })
	}
	return g
}

// stillProvedLocked reports whether the proof for an ended pod was about exactly what has to be proved now.
func (a *Allocator) stillProvedLocked(p *pod) bool {
	d, joined := a.departureLocked(p)
	return !joined && p.proves(d)
}

// proves reports whether the proof in progress for an ended pod is about exactly these devices.
func (p *pod) proves(d device.Departure) bool {
	return maps.EqualFunc(ledger.DevicesOf(p.departure.proving), ledger.DevicesOf(d.Assignments), slices.Equal)
}

// disturbLocked has the proofs begun again that are about devices that a pod has been assigned, and may use from now on.
func (a *Allocator) disturbLocked(p *pod) {
	if !p.demand.Shares() || len(p.assigned) == 0 {
		return
	}
	for _, q := range a.ended {
		if q != p && sharesDevices(p, q.departure.proving) {
			a.unprovenLocked(q)
			a.scheduleWriteLocked(0)
		}
	}
}

// sharesDevices reports whether a pod has one of these devices, or is to have it, by a claim.
func sharesDevices(p *pod, all []device.Assignment) bool {
	for _, s := range device.Shares(all) {
		if slices.ContainsFunc(s.IDs, func(id device.ID) bool { return p.demand.Claim(s.Resource, id) != "" }) {
			return true
		}
	}
	return false
}

// commandRunsLocked reports whether a command of a release runs for devices of a pod, also where another pod was the last that had them.
func (a *Allocator) commandRunsLocked(p *pod) bool {
	if a.cfg.Releaser == nil {
		return false
	}
	if a.cfg.Releaser.Running(p.demand.Pod.UID) {
		return true
	}
	if !p.demand.Shares() {
		return false
	}
	for uid, q := range a.ended {
		if a.cfg.Releaser.Running(uid) && sharesDevices(p, q.assigned) {
			return true
		}
	}
	return false
}
