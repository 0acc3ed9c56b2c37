package allocator

import (
	"fmt"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
)

// recallLocked loads a pod from the state file.
//
// If two records name one device, one of them is left from a failed commit, so neither counts. Both pods wait until the
// runtime has reported their containers' devices. Then the pods get these devices again, and devmgrd replaces the records.
//
// The registry writes a list after it has offered it. A grant that is newer than all devices of the plugin's record was made by a list that was
// lost with devmgrd's death: whether the recorded devices were in it is not known.
func (a *Allocator) recallLocked(r device.PodRecord, c device.Conflict, offers map[device.ResourceName]device.Offer) {
	// A pod with devices counts as admitted, since the API server may be away. A pod without may have been bound past the
	// scheduler while the kubelet was away; the Node's capacity does not fall before the API server has listed all pods.
	r.Demand.Admitted = len(r.Assignments) > 0
	p := &pod{demands: demands{demand: r.Demand}, saved: true, recalled: true, bound: time.Now(), assigned: r.Assignments, waits: waits{since: r.Since, sinceFor: r.Reason}}
	if c.ID != "" {
		p.assigned, p.doubt = nil, ledger.DevicesOf(r.Assignments)
	}
	for c, s := range device.Shares(p.assigned) {
		if s.Boot != "" && s.Boot != a.cfg.Boot && a.cfg.Boot != "" {
			p.lapse(c.Name, otherBoot)
		}
	}
	p.ran = len(p.lapsed) == 0
	a.recallStallLocked(p, r.Stall)
	a.addLocked(p)
	a.ledger.Recall(r.Demand.Pod.UID, ledger.DevicesOf(r.Assignments), r.Demand.Shares() && p.doubt == nil)
	switch {
	case p.doubt != nil:
		other := c.Pods[slices.IndexFunc(c.Pods, func(o device.Pod) bool { return o.UID != r.Demand.Pod.UID })]
		a.cfg.Log.Error("state file assigns one device to two pods", "resource", c.Resource, "device", c.ID, "pod", p.demand.Pod.String(), "other", other.String())
		a.parkLocked(p, device.Wait{Reason: device.AssignmentConflict, Message: fmt.Sprintf(
			"the state file assigns device %s of %s to this pod and to %s; waiting for the container runtime to report which pod uses the device", c.ID, c.Resource, other)}, 0)
		a.saveLaterLocked(p)
	case !p.served():
		a.queueLocked(p)
	default:
		a.settleLocked(p)
	}
	a.redateLocked(p, func(s device.Share) int64 {
		if s.At > offers[s.Resource].Newest {
			return 0
		}
		return s.At
	})
	p.departure.failed, p.departure.recorded = r.ReleaseFailed, r.ReleaseFailed != "" // it counts when the API server reports that the pod has ended
}

// dateLocked dates the grants of a resource whose dates are not known and whose devices the plugin lists: the others in that list are other devices.
func (a *Allocator) dateLocked(r device.ResourceName, l *ledger.Listing) {
	unlisted := func(id device.ID) bool { return !l.Lists(id) }
	for _, p := range a.pods {
		a.redateLocked(p, func(s device.Share) int64 {
			if s.Resource != r || s.At != 0 || slices.ContainsFunc(s.IDs, unlisted) {
				return s.At
			}
			return l.Newest()
		})
	}
}

// redateLocked replaces the dates of a pod's grants. The assignments are shared with readers, and so are copied.
func (a *Allocator) redateLocked(p *pod, date func(device.Share) int64) {
	copied := false
	for i, as := range p.assigned {
		for j, s := range as.Shares {
			at := date(s)
			if at == s.At {
				continue
			}
			if !copied {
				p.assigned, copied = slices.Clone(p.assigned), true
				for k := range p.assigned {
					p.assigned[k].Shares = slices.Clone(p.assigned[k].Shares)
				}
			}
			p.assigned[i].Shares[j].At = at
		}
	}
	if copied {
		a.saveLaterLocked(p)
		a.publishLocked(p)
	}
}
