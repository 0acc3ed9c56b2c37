package ledger

import (
	"slices"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/device"
)

// An Index finds the devices assigned to pods, and remembers what it has looked up: a pod may have many devices and containers.
type Index map[device.PodUID]map[device.Key]bool

// of returns the devices that a pod has been assigned.
func (x Index) of(l *Ledger, pod device.PodUID) map[device.Key]bool {
	if x[pod] == nil {
		x[pod] = map[device.Key]bool{}
		for _, s := range device.Shares(l.allocator.Assigned(pod)) {
			for _, id := range s.IDs {
				x[pod][device.Key{Resource: s.Resource, ID: id}] = true
			}
		}
	}
	return x[pod]
}

// Granted returns the devices of a resource that a container has been assigned.
func (l *Ledger) Granted(c device.Container, name device.ResourceName) []device.ID {
	for container, s := range device.Shares(l.allocator.Assigned(c.Pod)) {
		if container.Name == c.Name && s.Resource == name {
			return s.IDs
		}
	}
	return nil
}

// Quarantine keeps other pods from the devices in a container's stamp, unless its pod has been assigned them.
func (l *Ledger) Quarantine(c device.Container, name device.ResourceName, ids []device.ID, own Index) {
	r := l.Of(name)
	if slices.Equal(l.Granted(c, name), ids) {
		return // as in the state file: no need to look at each device
	}
	var unknown, strays, disputed []device.ID
	for _, id := range ids {
		switch {
		case !r.IsTaken(id):
			unknown, strays = append(unknown, id), append(strays, id)
		case !r.Has(id, c.Pod):
			disputed = append(disputed, id)
		case !own.of(l, c.Pod)[device.Key{Resource: name, ID: id}]:
			strays = append(strays, id)
		}
	}
	if len(disputed) > 0 {
		log, message := l.log.Error, "container runs with devices of another pod"
		if !l.allocator.MayRun(c.Pod) {
			log, message = l.log.Warn, "idle container has devices of another pod, and will not be started"
		}
		owner, _ := r.Holder(disputed[0])
		log(message, "resource", name, "devices", device.Abridge(disputed), "uid", c.Pod, "container", c.Name, "owner", owner)
		l.Conflicting.Add(c, name, disputed)
	}
	if len(unknown) > 0 {
		l.log.Warn("quarantined unrecorded devices of running container",
			"resource", name, "devices", device.Abridge(unknown), "uid", c.Pod, "container", c.Name)
	}
	if len(strays) > 0 {
		r.quarantine(strays, c.Pod) // except those that an attempt holds
		l.Quarantined.Add(c, name, strays)
	}
	l.Withhold(name)
}

// agree ends the dispute about a device that a pod shares from now on.
func (l *Ledger) agree(pod device.PodUID, name device.ResourceName, id device.ID) {
	move(l.Conflicting, l.Quarantined, pod, name, func(one device.ID) bool { return one == id })
}

// dispute keeps devices that a pod's containers run with, and that only pods have with which it shared them.
func (l *Ledger) dispute(pod device.PodUID) {
	for name, r := range l.Resources {
		move(l.Quarantined, l.Conflicting, pod, name, func(id device.ID) bool { return r.IsTaken(id) && !r.Has(id, pod) })
	}
}

// move moves some devices of a pod's containers.
func move(from, to containers.Devices, pod device.PodUID, name device.ResourceName, which func(device.ID) bool) {
	for container := range from[pod] {
		c := device.Container{Pod: pod, Name: container}
		if moved := remove(from, c, name, which); len(moved) > 0 {
			to.Add(c, name, moved)
		}
	}
}

// remove removes some devices of a container, and returns them.
func remove(from containers.Devices, c device.Container, name device.ResourceName, which func(device.ID) bool) []device.ID {
	choice := from[c.Pod][c.Name]
	removed, left := split(choice[name], which)
	if len(removed) == 0 {
		return nil
	}
	choice[name] = left
	if len(left) == 0 {
		delete(choice, name)
	}
	if len(choice) == 0 {
		delete(from[c.Pod], c.Name)
	}
	if len(from[c.Pod]) == 0 {
		delete(from, c.Pod)
	}
	return removed
}

// split returns the devices of which a condition is true, and the others.
func split(all []device.ID, which func(device.ID) bool) (yes, no []device.ID) {
	for _, id := range all {
		if which(id) {
			yes = append(yes, id)
		} else {
			no = append(no, id)
		}
	}
	return yes, no
}

// resolveDisputes quarantines disputed devices for the containers that run with them, once the other pod has released them.
func (l *Ledger) resolveDisputes() {
	if len(l.Conflicting) == 0 {
		return
	}
	disputed, own := l.Conflicting, Index{}
	l.Conflicting = containers.Devices{}
	for pod, all := range disputed {
		for container, choice := range all {
			for name, ids := range choice {
				c := device.Container{Pod: pod, Name: container}
				still, free := split(ids, l.Resources[name].IsTaken)
				if len(still) > 0 {
					l.Conflicting.Add(c, name, still)
				}
				if len(free) > 0 {
					l.Quarantine(c, name, free, own)
				}
			}
		}
	}
}

// Disputed counts the devices of pods that containers of other pods run with.
func (l *Ledger) Disputed() map[device.ResourceName]int {
	seen, n := map[device.Key]bool{}, map[device.ResourceName]int{}
	for pod, all := range l.Conflicting {
		for _, choice := range all {
			for name, ids := range choice {
				for _, id := range ids {
					if k := (device.Key{Resource: name, ID: id}); !seen[k] && l.allocator.MayRun(pod) {
						seen[k] = true
						n[name]++
					}
				}
			}
		}
	}
	return n
}

// Disown takes back a Quarantine: the container does not have these devices. Those that another container of its pod has stay.
func (l *Ledger) Disown(c device.Container, name device.ResourceName, ids []device.ID) {
	all := make(map[device.ID]bool, len(ids))
	for _, id := range ids {
		all[id] = true
	}
	in := func(id device.ID) bool { return all[id] }
	remove(l.Conflicting, c, name, in)
	gone := remove(l.Quarantined, c, name, in)
	r := l.Resources[name]
	if r == nil || len(gone) == 0 {
		return
	}
	for _, choice := range l.Quarantined[c.Pod] {
		for _, id := range choice[name] {
			delete(all, id)
		}
	}
	gone = slices.DeleteFunc(gone, func(id device.ID) bool { return !all[id] || !r.quarantined[id] || !r.Has(id, c.Pod) })
	for _, id := range gone {
		delete(r.quarantined, id)
	}
	l.free(name, gone, c.Pod)
	l.allocator.Freed(name)
	l.resolveDisputes()
}

// EndQuarantine frees the devices quarantined for a pod that are neither held nor assigned.
func (l *Ledger) EndQuarantine(pod device.PodUID) {
	for _, choice := range l.Quarantined[pod] {
		for name, ids := range choice {
			r := l.Resources[name]
			if r == nil {
				continue
			}
			gone, _ := split(ids, r.Quarantined)
			for _, id := range gone {
				delete(r.quarantined, id)
			}
			l.free(name, gone, pod) // at once: what is withheld has to be found again
			l.allocator.Freed(name)
		}
	}
	delete(l.Quarantined, pod)
	l.resolveDisputes()
}
