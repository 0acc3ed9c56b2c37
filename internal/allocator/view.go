package allocator

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/placement"
)

// Devices returns the devices of one resource, or of all resources if of is empty, in the order of their names. It returns
// false if the resource is unknown. Its time grows with the number of devices; it holds the lock only for a time that grows
// with the number of devices in use.
func (a *Allocator) Devices(of device.ResourceName) (all []device.DeviceStatus, known bool) {
	for _, r := range a.knownResources(of) {
		known = true
		all = append(all, a.view(r).Statuses()...)
	}
	return all, known || of == ""
}

// knownResources returns the known resources, ascending: all, or only this one.
func (a *Allocator) knownResources(of device.ResourceName) (all []device.ResourceName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for r, p := range a.pools {
		if (of == "" || of == r) && (p.Offered() || p.TakenCount() > 0 || len(a.cordons[r]) > 0) {
			all = append(all, r)
		}
	}
	slices.Sort(all)
	return all
}

func (a *Allocator) view(r device.ResourceName) placement.View {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pools.of(r)
	v := p.View(r)
	v.Cordons = a.cordons[r]
	v.Holders, v.Failures = make(map[device.ID]*device.Holder, p.TakenCount()), p.failures.Recent(time.Now())
	users := a.usersLocked(r)
	for id, uid := range p.Taken() {
		v.Holders[id] = a.holderLocked(uid, r, id, users[id])
	}
	return v
}

// A deviceUser is a container that has been assigned a device.
type deviceUser struct {
	pod       device.PodUID
	container string
}

// usersLocked returns the users of all devices of a resource: a search for each device would take quadratic time.
func (a *Allocator) usersLocked(r device.ResourceName) map[device.ID][]deviceUser {
	users := map[device.ID][]deviceUser{}
	for uid, p := range a.pods {
		for _, as := range p.assigned {
			for _, s := range as.Shares {
				if s.Resource != r {
					continue
				}
				for _, id := range s.IDs {
					users[id] = append(users[id], deviceUser{uid, as.Container.Name})
				}
			}
		}
	}
	return users
}

// holderLocked returns the pod that has a device.
func (a *Allocator) holderLocked(uid device.PodUID, r device.ResourceName, id device.ID, users []deviceUser) *device.Holder {
	h := &device.Holder{Pod: device.Pod{UID: uid}}
	if p := a.pods[uid]; p != nil {
		h.Pod = p.demand.Pod
	}
	for _, u := range users {
		if u.pod == uid {
			h.Containers = append(h.Containers, u.container)
		}
	}
	for container, choice := range a.quarantined[uid] {
		if len(h.Containers) == 0 && slices.Contains(choice[r], id) {
			h.Containers = append(h.Containers, container)
		}
	}
	return h
}

// PodStatus returns the status of the pod of that name. Of several pods with that name it prefers the active one.
func (a *Allocator) PodStatus(namespace, name string) (device.PodStatus, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found *pod
	for _, p := range a.pods {
		if id := p.demand.Pod; id.Namespace == namespace && id.Name == name && (found == nil || p.active()) {
			found = p
		}
	}
	if found == nil {
		return device.PodStatus{}, false
	}
	return a.podStatusLocked(found), true
}

// WaitingPods returns the status of all waiting pods, the longest wait first.
func (a *Allocator) WaitingPods() []device.PodStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []device.PodStatus
	for _, p := range a.pods {
		if p.active() && (!p.served() || p.refusal != (device.Wait{})) {
			all = append(all, a.podStatusLocked(p))
		}
	}
	slices.SortFunc(all, func(x, y device.PodStatus) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Allocation.Pod.String(), y.Allocation.Pod.String()))
	})
	return all
}

func (a *Allocator) podStatusLocked(p *pod) device.PodStatus {
	o := device.PodStatus{Allocation: p.allocation, Since: p.bound}
	switch {
	case !p.active():
		o.State, o.Since = device.Unknown, p.droppedAt
	case len(p.demand.Demands) == 0:
		o.State = device.NoDevices
	case p.refusal != (device.Wait{}):
		o.State, o.Wait, o.Since = device.Waiting, p.refusal, p.since
	case p.served():
		o.State, o.Since = device.Ready, p.since
	default:
		o.State, o.Wait, o.Retry, o.Since = device.Waiting, p.wait, p.retry, p.since
		if p.phase != waiting {
			o.Wait = waitAllocating
		}
	}
	if o.Since.IsZero() {
		o.Since = p.bound
	}
	wants := map[device.ResourceName]bool{}
	for _, d := range p.demand.Demands {
		for r := range d.Wants {
			wants[r] = true
		}
	}
	o.Wants = slices.Sorted(maps.Keys(wants))
	return o
}

// DeviceCounts returns the number of devices in each state of the metric devmgrd_devices, by resource.
func (a *Allocator) DeviceCounts() map[device.ResourceName]map[string]int {
	figures, _ := a.counts()
	return figures
}
