package allocator

import (
	"fmt"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A conflict is a device that the state file assigns to two pods.
type conflict struct {
	resource device.ResourceName
	id       device.ID
	other    device.Pod
}

// findConflicts returns the pods whose records share a device with another pod's record, with one such device each.
func findConflicts(known []device.PodRecord) map[device.PodUID]conflict {
	type key struct {
		device.ResourceName
		device.ID
	}
	found, owners := map[device.PodUID]conflict{}, map[key]device.Pod{}
	for _, r := range known {
		pod := r.Demand.Pod
		for _, as := range r.Assignments {
			for _, s := range as.Shares {
				for _, id := range s.IDs {
					owner, taken := owners[key{s.Resource, id}]
					if !taken {
						owners[key{s.Resource, id}] = pod
					} else if owner.UID != pod.UID {
						found[owner.UID], found[pod.UID] = conflict{s.Resource, id, pod}, conflict{s.Resource, id, owner}
					}
				}
			}
		}
	}
	return found
}

// recallLocked loads a pod from the state file.
//
// If two records name one device, one of them is left from a failed commit, so neither counts. Both pods wait until the
// runtime has reported their containers' devices. Then the pods get these devices again, and devmgrd replaces the records.
func (a *Allocator) recallLocked(r device.PodRecord, c conflict) {
	// A pod with devices counts as admitted, since the API server may be away. A pod without may have been bound past the
	// scheduler while the kubelet was away; the Node's capacity does not fall before the API server has listed all pods.
	r.Demand.Admitted = len(r.Assignments) > 0
	p := &pod{demand: r.Demand, saved: true, bound: time.Now(), assigned: r.Assignments}
	if c.id != "" {
		p.assigned, p.doubt = nil, hold{}
	}
	for _, as := range p.assigned {
		for _, s := range as.Shares {
			if s.Boot != "" && s.Boot != a.boot && a.boot != "" {
				p.lapse(as.Container.Name, otherBoot)
			}
		}
	}
	p.ran = len(p.lapsed) == 0
	a.addLocked(p)
	for _, as := range r.Assignments {
		for _, s := range as.Shares {
			a.pools.of(s.Resource).Take(s.IDs, r.Demand.Pod.UID)
			if p.doubt != nil {
				p.doubt[s.Resource] = append(p.doubt[s.Resource], s.IDs...)
			}
		}
	}
	switch {
	case p.doubt != nil:
		a.log.Error("state file assigns one device to two pods", "resource", c.resource, "device", c.id, "pod", p.demand.Pod.String(), "other", c.other.String())
		a.parkLocked(p, device.Wait{Reason: device.AssignmentConflict, Message: fmt.Sprintf(
			"the state file assigns device %s of %s to this pod and to %s; waiting for the container runtime to report which pod uses the device", c.id, c.resource, c.other)}, 0)
		a.saveLaterLocked(p)
	case !p.served():
		a.queueLocked(p)
	default:
		a.settleLocked(p)
	}
}
