package allocator

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Devices gives all devices of a resource, or of all resources if it is empty, in the order of their names. It gives false if
// nobody has heard of the resource. It takes time with the number of devices, and is for people.
func (a *Allocator) Devices(of device.ResourceName) (all []device.DeviceStatus, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range slices.Sorted(maps.Keys(a.pools)) {
		p := a.pools[r]
		if of != "" && of != r || !p.offered && len(p.taken) == 0 && len(a.cordons[r]) == 0 {
			continue
		}
		known = true
		from, users := len(all), a.usersLocked(r)
		for _, d := range p.listing.devices {
			all = append(all, a.statusLocked(r, p, d, true, users))
		}
		for _, id := range a.unlistedLocked(r, p) {
			all = append(all, a.statusLocked(r, p, device.Device{ID: id}, false, users))
		}
		slices.SortFunc(all[from:], func(x, y device.DeviceStatus) int { return cmp.Compare(x.ID, y.ID) })
	}
	return all, known || of == ""
}

// unlistedLocked gives devices that somebody has or that are cordoned, and that the plugin does not list.
func (a *Allocator) unlistedLocked(r device.ResourceName, p *pool) []device.ID {
	unlisted := map[device.ID]bool{}
	for id := range p.taken {
		unlisted[id] = true
	}
	for id := range a.cordons[r] {
		unlisted[id] = true
	}
	maps.DeleteFunc(unlisted, func(id device.ID, _ bool) bool {
		_, listed := p.listing.at[id]
		return listed
	})
	return slices.Collect(maps.Keys(unlisted))
}

func (a *Allocator) statusLocked(r device.ResourceName, p *pool, d device.Device, listed bool, users map[device.ID][]user) device.DeviceStatus {
	s := device.DeviceStatus{Resource: r, Device: d, Listed: listed}
	if c, cordoned := a.cordons[r][d.ID]; cordoned {
		s.Cordon = &c
	}
	if uid, taken := p.taken[d.ID]; taken {
		s.Holder = a.holderLocked(uid, r, d.ID, users[d.ID])
	}
	s.Failures, s.Failed = p.failuresOf(d.ID, time.Now())
	switch {
	case p.strays[d.ID]:
		s.State = device.Quarantined
	case s.Holder != nil:
		s.State = device.Assigned
	case s.Cordon != nil:
		s.State = device.Cordoned
	case !d.Healthy:
		s.State = device.Unhealthy
	case p.offer.State != device.Serving:
		s.State = device.OfAwayOne
	default:
		s.State = device.Available
	}
	return s
}

// A user is a container that has been assigned a device.
type user struct {
	pod       device.PodUID
	container string
}

// usersLocked gives all of a resource's: to look for each device's would take time with the square of what a pod has.
func (a *Allocator) usersLocked(r device.ResourceName) map[device.ID][]user {
	users := map[device.ID][]user{}
	for uid, p := range a.pods {
		for _, as := range p.assigned {
			for _, s := range as.Shares {
				if s.Resource != r {
					continue
				}
				for _, id := range s.IDs {
					users[id] = append(users[id], user{uid, as.Container.Name})
				}
			}
		}
	}
	return users
}

// holderLocked tells who has a device.
func (a *Allocator) holderLocked(uid device.PodUID, r device.ResourceName, id device.ID, users []user) *device.Holder {
	h := &device.Holder{Pod: device.Pod{UID: uid}}
	if p := a.pods[uid]; p != nil {
		h.Pod = p.demand.Pod
	}
	for _, u := range users {
		if u.pod == uid {
			h.Containers = append(h.Containers, u.container)
		}
	}
	for container, choice := range a.strays[uid] {
		if len(h.Containers) == 0 && slices.Contains(choice[r], id) {
			h.Containers = append(h.Containers, container)
		}
	}
	return h
}

// Outlook tells how the pod of that name stands. Of several lives of one name the one that is wanted counts.
func (a *Allocator) Outlook(namespace, name string) (device.Outlook, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found *pod
	for _, p := range a.pods {
		if id := p.demand.Pod; id.Namespace == namespace && id.Name == name && (found == nil || p.wanted) {
			found = p
		}
	}
	if found == nil {
		return device.Outlook{}, false
	}
	return a.outlookLocked(found), true
}

// Waiting tells how all pods stand that wait, those that have waited longest first.
func (a *Allocator) Waiting() []device.Outlook {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []device.Outlook
	for _, p := range a.pods {
		if p.wanted && !p.complete() {
			all = append(all, a.outlookLocked(p))
		}
	}
	slices.SortFunc(all, func(x, y device.Outlook) int {
		return cmp.Or(x.Since.Compare(y.Since), cmp.Compare(x.Holding.Pod.String(), y.Holding.Pod.String()))
	})
	return all
}

func (a *Allocator) outlookLocked(p *pod) device.Outlook {
	o := device.Outlook{Holding: p.shown, Since: p.bound}
	switch {
	case !p.wanted:
		o.Stand, o.Since = device.Unknown, p.left
	case len(p.demand.Demands) == 0:
		o.Stand = device.Free
	case p.complete():
		o.Stand, o.Since = device.Ready, p.since
	default:
		o.Stand, o.Wait, o.Retry, o.Since = device.Waiting, p.wait, p.retry, p.since
		if p.phase != parked {
			o.Wait = allocating
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

// Figures gives the number of devices in each state of the metric devmgrd_devices, by resource.
func (a *Allocator) Figures() map[device.ResourceName]map[string]int {
	figures, _ := a.counts()
	return figures
}
