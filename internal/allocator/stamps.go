package allocator

import (
	"fmt"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/placement"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// What a container says it has, by its annotation, the kubelet's checkpoint or its CDI devices, counts as far as its pod requests it: others write there.
// CRI-O copies all annotations of a pod to its containers, and a device plugin that stays with the kubelet can write the checkpoint. devmgrd and the kubelet assign
// a container exactly as many devices as it requests.
//
// Until the API server or the runtime has reported the pod, its request is not known, and all counts, within limits: the API server may be away, and
// containers of a pod that was deleted by force keep their devices.

const (
	// maxSaid bounds the devices of all containers whose requests are not known: changes of a plugin's list look at each of them. A longer
	// list counts as unknown devices.
	maxSaid = 16 << 10
	// maxSaidResources bounds the resources of one such container: a pod requests at most as many (pods.maxNames).
	maxSaidResources = 64
	// maxSaidID bounds an ID: the registry takes no longer one.
	maxSaidID = 1 << 10
)

// A request is what a container requests, by two demands: the one for which its pod has been assigned devices, and the newest. Only the newest has the
// resources that were ignored until a restart.
type request []device.Demand

// requestedLocked returns what a container requests; false: that is not known.
func (a *Allocator) requestedLocked(c device.Container) (all request, known bool) {
	p := a.pods[c.Pod]
	if p == nil || p.recalled { // a state file may be an old copy
		return nil, false
	}
	for _, demands := range [][]device.Demand{p.demand.Demands, p.newest} {
		d, _ := device.PodDemand{Demands: demands}.Of(c.Name)
		if placement.Unread(d) {
			return nil, false
		}
		all = append(all, d)
	}
	return all, true
}

// has reports whether a container requests a resource.
func (all request) has(r device.ResourceName) bool {
	return slices.ContainsFunc(all, func(d device.Demand) bool { return d.Wants[r] > 0 })
}

// misfit returns why a container cannot have these devices by its request; empty: it can.
func (all request) misfit(r device.ResourceName, ids []device.ID) string {
	why := "it requests none of the resource"
	for _, d := range all {
		unfixed := func(id device.ID) bool { return !slices.Contains(d.Fixed[r], id) }
		switch n := d.Wants[r]; {
		case n == 0:
		case n != len(ids) && slices.ContainsFunc(ids, unfixed):
			why = fmt.Sprintf("it requests %d of the resource, not %d", n, len(ids))
		default:
			return ""
		}
	}
	return why
}

// A disbelief is what does not count of what a container says.
type disbelief struct {
	resource device.ResourceName
	why      string
	more     int // resources
}

func (no *disbelief) add(r device.ResourceName, why string) {
	if no.why != "" {
		no.more++
		return
	}
	no.resource, no.why = r, why
}

// log logs a disbelief once for each container.
func (a *Allocator) log(no disbelief, c device.Container, id string, l *containers.Container) {
	if no.why == "" || l.Disbelieved {
		return
	}
	l.Disbelieved = true
	a.cfg.Log.Warn("container does not have the devices that its annotation or the kubelet's checkpoint names", "uid", c.Pod, "container", c.Name, "id", id,
		"resource", device.Clip(string(no.resource)), "why", no.why, "more", no.more)
}

// believeLocked takes over what a container says it has, and reports whether anything of it counts.
func (a *Allocator) believeLocked(r device.Running, l *containers.Container, own ledger.Index) (any bool) {
	requested, known := a.requestedLocked(r.Container)
	var no disbelief
	for _, resource := range slices.Sorted(maps.Keys(r.Stamp)) {
		ids := r.Stamp[resource]
		why := ""
		switch {
		case slices.Equal(a.ledger.Granted(r.Container, resource), ids): // as in the state file: no need to look at each device
			l.Granted = true
		case known:
			if why = requested.misfit(resource, ids); why == "" {
				a.ledger.Quarantine(r.Container, resource, short(ids), own)
			}
		default:
			why = a.setAsideLocked(r.Container, l, resource, short(ids), own)
		}
		if why != "" {
			no.add(resource, why)
		}
		any = any || why == ""
	}
	for resource, digest := range r.Digests {
		switch ids := a.ledger.Granted(r.Container, resource); {
		case len(ids) > 0 && device.Digest(ids) == digest:
			l.Granted = true
		case known && !requested.has(resource):
			no.add(resource, "it requests none of the resource")
			continue
		default:
			a.pauseLocked(r.Container, r.ID, l, resource)
		}
		any = true
	}
	a.log(no, r.Container, r.ID, l)
	return any
}

// short returns the devices whose IDs are not too long.
func short(ids []device.ID) []device.ID {
	return slices.DeleteFunc(slices.Clone(ids), func(id device.ID) bool { return id == "" || len(id) > maxSaidID })
}

// setAsideLocked records devices of a container whose request is not known, or returns why not.
func (a *Allocator) setAsideLocked(c device.Container, l *containers.Container, r device.ResourceName, ids []device.ID, own ledger.Index) string {
	if _, err := device.ParseResourceName(string(r)); err != nil {
		return err.Error()
	}
	if len(l.Said) >= maxSaidResources && a.ledger.Resources[r] == nil {
		return "it names too many resources that no plugin has"
	}
	lists.Put(&l.Said, r, ids)
	if len(ids) > a.room {
		a.pauseLocked(c, "", l, r)
		return ""
	}
	a.room -= len(ids)
	a.ledger.Quarantine(c, r, ids, own)
	return ""
}

// unsaidLocked takes back what setAsideLocked has counted of a container.
func (a *Allocator) unsaidLocked(l *containers.Container) {
	for r, ids := range l.Said {
		if !slices.Contains(l.UnknownDevices, r) {
			a.room += len(ids)
		}
	}
	l.Said = nil
}

// pauseLocked records that a container has unknown devices of a resource: nothing of it is assigned until the container has ended.
func (a *Allocator) pauseLocked(c device.Container, id string, l *containers.Container, r device.ResourceName) {
	if slices.Contains(l.UnknownDevices, r) {
		return
	}
	l.UnknownDevices = append(l.UnknownDevices, r)
	a.ledger.AddUnknownUsers(r, 1)
	a.cfg.Log.Error("container runs with unknown devices; resource paused", "resource", r, "uid", c.Pod, "container", c.Name, "id", id)
}

// unpauseLocked takes back pauseLocked.
func (a *Allocator) unpauseLocked(l *containers.Container, r device.ResourceName) {
	l.UnknownDevices = slices.DeleteFunc(l.UnknownDevices, func(one device.ResourceName) bool { return one == r })
	a.ledger.AddUnknownUsers(r, -1)
	a.wakeLocked(r, false)
	a.pruneLocked(r)
}

// reviewSaidLocked compares what a pod's containers say they have with its demand, which has become known or has changed.
func (a *Allocator) reviewSaidLocked(p *pod) {
	if p == nil {
		return
	}
	uid, fit := p.demand.Pod.UID, map[string]map[device.ResourceName][]device.ID{}
	for id, l := range a.running[uid] {
		c := device.Container{Pod: uid, Name: l.Name}
		requested, known := a.requestedLocked(c)
		if !known || l.Said == nil && len(l.UnknownDevices) == 0 {
			continue
		}
		fit[id] = a.doubtLocked(c, id, l, requested)
		a.changedLocked()
	}
	own := ledger.Index{}
	for id, said := range fit { // once what does not fit is gone: another container of that name may say it
		for r, ids := range said {
			a.ledger.Quarantine(device.Container{Pod: uid, Name: a.running[uid][id].Name}, r, ids, own)
		}
	}
}

// doubtLocked drops what a container says it has and does not request. It returns what is left.
func (a *Allocator) doubtLocked(c device.Container, id string, l *containers.Container, requested request) map[device.ResourceName][]device.ID {
	var no disbelief
	said := l.Said
	a.unsaidLocked(l)
	for _, r := range slices.Sorted(maps.Keys(said)) {
		paused := slices.Contains(l.UnknownDevices, r)
		if paused {
			a.unpauseLocked(l, r)
		}
		why := requested.misfit(r, said[r])
		if why == "" {
			continue
		}
		no.add(r, why)
		if !paused {
			a.ledger.Disown(c, r, said[r])
			a.pruneLocked(r)
		}
		delete(said, r)
	}
	for _, r := range slices.Clone(l.UnknownDevices) { // by a digest
		if !requested.has(r) {
			no.add(r, "it requests none of the resource")
			a.unpauseLocked(l, r)
		}
	}
	l.Stamped = l.Stamped && (no.why == "" || l.Granted || len(said)+len(l.UnknownDevices) > 0)
	a.log(no, c, id, l)
	return said
}
