package holdings

import (
	"log/slog"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/containers"
	"github.com/devmgrd/devmgrd/internal/device"
)

// An Allocator knows the pods and plans those that wait.
type Allocator interface {
	// Assigned returns a pod's assignments, or none.
	Assigned(device.PodUID) []device.Assignment
	// Unused reports whether no container has used a container's devices since the boot.
	Unused(pod device.PodUID, container string) bool
	// MayRun reports whether any container of the pod may run.
	MayRun(device.PodUID) bool
	// Freed reports that devices of a resource have become free.
	Freed(device.ResourceName)
}

// A Table records who has which devices. Its methods must not run at the same time.
type Table struct {
	Resources   Resources
	Quarantined containers.Devices // of running containers, unless the state file assigns them to their pods
	Conflicting containers.Devices // of running containers, and assigned to another pod

	allocator Allocator
	log       *slog.Logger
}

// New returns an empty Table.
func New(a Allocator, log *slog.Logger) *Table {
	return &Table{Resources: Resources{}, Quarantined: containers.Devices{}, Conflicting: containers.Devices{}, allocator: a, log: log}
}

// A Hold is the devices that an attempt has set aside for a pod.
type Hold map[device.ResourceName][]device.ID

// HoldOf returns the devices of assignments.
func HoldOf(all []device.Assignment) Hold {
	h := Hold{}
	for _, s := range device.Shares(all) {
		h[s.Resource] = append(h[s.Resource], s.IDs...)
	}
	return h
}

// Hold sets the chosen devices aside. Those that other pods have are shared with them.
func (t *Table) Hold(pod device.PodUID, choices map[string]device.Choice) Hold {
	h := Hold{}
	for _, container := range slices.Sorted(maps.Keys(choices)) {
		for r, ids := range choices[container] {
			p := t.Resources[r]
			for _, id := range ids {
				one := []device.ID{id}
				switch _, taken := p.Holder(id); {
				case !taken, p.Quarantined(id):
					p.Take(one, pod)
					p.EndQuarantine(id)
				case p.Has(id, pod):
					continue // its own already
				default:
					p.Share(one, pod)
					t.agree(pod, r, id)
				}
				h[r] = append(h[r], id)
			}
		}
	}
	return h
}

// Free frees devices of a pod of which no container may run.
func (t *Table) Free(pod device.PodUID, h Hold) {
	for r, ids := range h {
		t.free(r, ids, pod)
		p := t.Resources[r]
		p.Void(ids)
		p.Used(slices.DeleteFunc(slices.Clone(ids), func(id device.ID) bool { _, taken := p.Holder(id); return taken }))
	}
	t.reclaim()
}

// Release frees devices of a pod, except those that its containers run with, which are quarantined, or in dispute where other pods have them.
func (t *Table) Release(pod device.PodUID, h Hold) {
	for r, ids := range h {
		t.free(r, ids, pod)
	}
	for _, choice := range t.Quarantined[pod] {
		for r, ids := range choice {
			t.Resources[r].Quarantine(ids, pod)
			t.Withhold(r)
		}
	}
	if t.Quarantined[pod] != nil {
		t.dispute(pod)
	}
	t.reclaim()
}

// free takes devices back from a pod.
func (t *Table) free(r device.ResourceName, ids []device.ID, from device.PodUID) {
	p := t.Resources[r]
	before := p.Unlisted()
	p.Release(ids, from)
	if p.Unlisted() != before {
		t.Withhold(r)
	}
}

// Withhold withholds the devices that may be in use under an ID that is no longer listed, and frees withheld devices that are no
// longer in doubt. Callers run it whenever the list, or the set of unlisted devices in use, has changed.
func (t *Table) Withhold(r device.ResourceName) {
	p := t.Resources[r]
	if p.Unlisted() == 0 && !p.Withholds() && p.withheldLogged == 0 && p.unlistedIdle == 0 {
		return
	}
	unlisted := t.UnlistedInUse(r)
	p.unlistedIdle = p.Unlisted() - len(unlisted)
	freed := p.Withhold(unlisted)
	n, before := p.WithheldCount(), p.withheldLogged
	p.withheldLogged = n
	switch {
	case n == before:
	case n > 0:
		t.log.Warn("devices withheld: possibly in use under former IDs", "resource", r, "withheld", n, "unlisted_in_use", p.Unlisted())
	default:
		t.log.Info("devices no longer withheld", "resource", r)
	}
	if freed {
		t.allocator.Freed(r)
	}
}

// UnlistedInUse returns the devices in use that the plugin does not list, with the time of each grant. An unknown time counts as
// earlier than all others.
func (t *Table) UnlistedInUse(r device.ResourceName) map[device.ID]int64 {
	p := t.Resources[r]
	if p.Unlisted() == 0 {
		return nil
	}
	granted := make(map[device.ID]int64, p.Unlisted())
	holders := map[device.PodUID]bool{}
	users := make(map[device.ID]int, p.Unlisted()) // pods whose containers may use the device
	for id, pod := range p.Taken() {
		if _, listed := p.Listing().Find(id); listed {
			continue
		}
		granted[id], holders[pod], users[id] = -1, true, 1
		for _, other := range p.Sharers(id) {
			holders[other] = true
			users[id]++
		}
	}
	for pod := range holders {
		unused := map[device.ID]bool{}
		for c, s := range device.Shares(t.allocator.Assigned(pod)) {
			if s.Resource != r || s.At == 0 {
				continue
			}
			idle := t.allocator.Unused(pod, c.Name)
			for _, id := range s.IDs {
				if at, unlisted := granted[id]; unlisted {
					granted[id] = max(at, s.At)
					unused[id] = unused[id] || idle
				}
			}
		}
		for id, idle := range unused {
			if idle {
				users[id]--
			}
		}
	}
	maps.DeleteFunc(granted, func(id device.ID, _ int64) bool { return users[id] == 0 })
	return granted
}
