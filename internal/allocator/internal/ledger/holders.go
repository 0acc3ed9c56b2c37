package ledger

import (
	"iter"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// holders are the pods that have devices. A device that several pods have, by one claim, has one holder, and the others are its sharers.
type holders struct {
	taken       map[device.ID]device.PodUID   // held, assigned or quarantined
	sharers     map[device.ID][]device.PodUID // of taken devices
	quarantined map[device.ID]bool            // taken, and the state file does not assign them
	releasing   map[podDevice]*device.Release // why a taken device of a pod that has ended is not free yet
}

// A podDevice is a device as one of its pods has it.
type podDevice struct {
	id  device.ID
	pod device.PodUID
}

// Holder returns the pod that has a device, if one has. Of several, which have it by one claim, it is the first that is left.
func (h *holders) Holder(id device.ID) (device.PodUID, bool) {
	uid, taken := h.taken[id]
	return uid, taken
}

// Holders yields the pods that have a device.
func (h *holders) Holders(id device.ID) iter.Seq[device.PodUID] {
	return func(yield func(device.PodUID) bool) {
		if holder, taken := h.taken[id]; !taken || !yield(holder) {
			return
		}
		for _, other := range h.sharers[id] {
			if !yield(other) {
				return
			}
		}
	}
}

// Has reports whether a pod has a device.
func (h *holders) Has(id device.ID, pod device.PodUID) bool {
	holder, taken := h.taken[id]
	return taken && (holder == pod || slices.Contains(h.sharers[id], pod))
}

func (h *holders) Sharers(id device.ID) []device.PodUID       { return h.sharers[id] }     // the other pods that have it by the same claim as its Holder
func (h *holders) Taken() iter.Seq2[device.ID, device.PodUID] { return maps.All(h.taken) } // with their Holders
func (h *holders) TakenCount() int                            { return len(h.taken) }
func (h *holders) Quarantined(id device.ID) bool              { return h.quarantined[id] }

// IsTaken reports whether any pod has a device.
func (h *holders) IsTaken(id device.ID) bool {
	_, taken := h.taken[id]
	return taken
}

// share records a device that another pod has as this pod's too.
func (h *holders) share(id device.ID, pod device.PodUID) {
	if !h.Has(id, pod) {
		h.sharers[id] = append(slices.Clip(h.sharers[id]), pod)
	}
}

// remove removes a pod that has a device, and reports whether another has it still.
func (h *holders) remove(id device.ID, pod device.PodUID) bool {
	delete(h.releasing, podDevice{id, pod})
	others := h.sharers[id]
	switch {
	case len(others) == 0:
		delete(h.taken, id)
		return false
	case h.taken[id] == pod:
		h.taken[id], others = others[0], others[1:]
	default:
		others = slices.DeleteFunc(slices.Clone(others), func(other device.PodUID) bool { return other == pod })
	}
	h.sharers[id] = others
	if len(others) == 0 {
		delete(h.sharers, id)
	}
	return true
}

// ReleaseOf returns why a device is not free although all pods that have it have ended; nil: one has not ended.
func (h *holders) ReleaseOf(id device.ID) (why *device.Release) {
	for pod := range h.Holders(id) {
		one := h.releasing[podDevice{id, pod}]
		if one == nil {
			return nil
		}
		if why == nil || one.Busy && !why.Busy {
			why = one
		}
	}
	return why
}

// unreleased yields the devices of ended pods that are not free yet, and why.
func (h *holders) unreleased(yield func(device.ID, *device.Release) bool) {
	for of := range h.releasing {
		if h.taken[of.id] != of.pod {
			continue // its Holder is another one
		}
		if why := h.ReleaseOf(of.id); why != nil && !yield(of.id, why) {
			return
		}
	}
}
