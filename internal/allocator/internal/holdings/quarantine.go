package holdings

import (
	"slices"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/device"
)

// An Index finds the devices assigned to pods, and remembers what it has looked up: a pod may have many devices and containers.
type Index map[indexKey]map[device.ID]bool

type indexKey struct {
	pod      device.PodUID
	resource device.ResourceName
}

// of returns the devices of a resource that a pod has been assigned.
func (x Index) of(t *Table, pod device.PodUID, r device.ResourceName) map[device.ID]bool {
	key := indexKey{pod, r}
	ids, known := x[key]
	if !known {
		ids = map[device.ID]bool{}
		for _, s := range device.Shares(t.allocator.Assigned(pod)) {
			if s.Resource == r {
				for _, id := range s.IDs {
					ids[id] = true
				}
			}
		}
		x[key] = ids
	}
	return ids
}

// Granted returns the devices of a resource that a container has been assigned.
func (t *Table) Granted(c device.Container, r device.ResourceName) []device.ID {
	for container, s := range device.Shares(t.allocator.Assigned(c.Pod)) {
		if container.Name == c.Name && s.Resource == r {
			return s.IDs
		}
	}
	return nil
}

// Quarantine keeps other pods from the devices in a container's stamp, unless its pod has been assigned them.
func (t *Table) Quarantine(c device.Container, r device.ResourceName, ids []device.ID, own Index) {
	p := t.Resources.Of(r)
	if slices.Equal(t.Granted(c, r), ids) {
		return // as in the state file: no need to look at each device
	}
	var unknown, strays, disputed []device.ID
	for _, id := range ids {
		switch _, taken := p.Holder(id); {
		case taken && !p.Has(id, c.Pod):
			disputed = append(disputed, id)
			continue
		case taken && own.of(t, c.Pod, r)[id]:
			continue
		case !taken:
			unknown = append(unknown, id)
		}
		strays = append(strays, id)
	}
	if len(disputed) > 0 {
		log, message := t.log.Error, "container runs with devices of another pod"
		if !t.allocator.MayRun(c.Pod) {
			log, message = t.log.Warn, "idle container has devices of another pod, and will not be started"
		}
		owner, _ := p.Holder(disputed[0])
		log(message, "resource", r, "devices", device.Abridge(disputed), "uid", c.Pod, "container", c.Name, "owner", owner)
		t.Conflicting.Add(c, r, disputed)
	}
	if len(unknown) > 0 {
		t.log.Warn("quarantined unrecorded devices of running container",
			"resource", r, "devices", device.Abridge(unknown), "uid", c.Pod, "container", c.Name)
	}
	if len(strays) > 0 {
		p.Quarantine(strays, c.Pod) // except those that an attempt holds
		t.Quarantined.Add(c, r, strays)
	}
	t.Withhold(r)
}

// agree ends the dispute about a device that a pod shares from now on.
func (t *Table) agree(pod device.PodUID, r device.ResourceName, id device.ID) {
	move(t.Conflicting, t.Quarantined, pod, r, func(one device.ID) bool { return one == id })
}

// dispute keeps devices that a pod's containers run with, and that only pods have with which it shared them.
func (t *Table) dispute(pod device.PodUID) {
	for r, p := range t.Resources {
		move(t.Quarantined, t.Conflicting, pod, r, func(id device.ID) bool { _, taken := p.Holder(id); return taken && !p.Has(id, pod) })
	}
}

// move moves some devices of a pod's containers.
func move(from, to containers.Devices, pod device.PodUID, r device.ResourceName, which func(device.ID) bool) {
	for container, choice := range from[pod] {
		var moved, left []device.ID
		for _, id := range choice[r] {
			if which(id) {
				moved = append(moved, id)
			} else {
				left = append(left, id)
			}
		}
		if len(moved) == 0 {
			continue
		}
		to.Add(device.Container{Pod: pod, Name: container}, r, moved)
		if choice[r] = left; len(left) == 0 {
			delete(choice, r)
		}
		if len(choice) == 0 {
			delete(from[pod], container)
		}
	}
	if len(from[pod]) == 0 {
		delete(from, pod)
	}
}

// reclaim quarantines disputed devices for the containers that run with them, once the other pod has released them.
func (t *Table) reclaim() {
	if len(t.Conflicting) == 0 {
		return
	}
	disputed, own := t.Conflicting, Index{}
	t.Conflicting = containers.Devices{}
	for pod, all := range disputed {
		for container, choice := range all {
			for r, ids := range choice {
				c := device.Container{Pod: pod, Name: container}
				var still, free []device.ID
				for _, id := range ids {
					if _, taken := t.Resources[r].Holder(id); taken {
						still = append(still, id)
					} else {
						free = append(free, id)
					}
				}
				if len(still) > 0 {
					t.Conflicting.Add(c, r, still)
				}
				if len(free) > 0 {
					t.Quarantine(c, r, free, own)
				}
			}
		}
	}
}

// EndQuarantine frees the devices quarantined for a pod that are neither held nor assigned.
func (t *Table) EndQuarantine(pod device.PodUID) {
	for _, choice := range t.Quarantined[pod] {
		for r, ids := range choice {
			p := t.Resources[r]
			for _, id := range ids {
				if p.Quarantined(id) {
					p.EndQuarantine(id)
					t.free(r, []device.ID{id}, pod)
				}
			}
			t.allocator.Freed(r)
		}
	}
	delete(t.Quarantined, pod)
	t.reclaim()
}
