package ledger

import (
	"maps"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Capacity returns a resource's number for the Node. Package nodestatus decides what the Node shows, and when.
//
//	max( free + taken - busy - idle - hidden - claimed - strange, admitted )
//
//	free      devices that can be assigned, unless the plugin is lost. No withheld device is free, so that none counts under two IDs
//	taken     devices that pods have
//	busy      those of ended pods that are not proved free
//	idle      unlisted devices that were granted in an earlier boot and have not been used since: their pods will get listed ones instead.
//	          They count as far as they are more than the unlisted busy ones, which may be the same
//	hidden    devices of static pods that no mirror pod requests, so that the scheduler does not count them; at least 0
//	claimed   devices that pods name by claims and the scheduler does not count as requests. Of these, only free ones and those that the
//	          naming pod has and that are not busy are subtracted
//	strange   quarantined devices that the plugin does not list. Each listed device that is neither free nor taken reduces them by one: it may be the
//	          same device
//	admitted  the requests of the pods that the kubelet has admitted, and mirrored, those of mirror pods. 0 until the API server has listed the
//	          node's pods: some are known only from the state file until then and may be gone, and nodestatus lowers no capacity
//
// A kubelet sets allocatable to capacity; at its restart it admits all pods again against that value and fails the youngest where the value is too
// low. Hence admitted.
func (r *Resource) Capacity(hidden, mirrored int, podsListed bool) int {
	n, busy := len(r.taken)-max(0, hidden), r.Busy()
	n -= busy.All - busy.Unlisted + max(busy.Unlisted, r.unlistedIdle)
	free := r.freeCount
	if r.offer.State == device.Lost {
		free = 0
	}
	n += free - r.spokenFor() - r.strange(free)
	admitted := 0
	if podsListed {
		admitted = r.admitted + mirrored
	}
	return max(n, admitted)
}

// strange counts the quarantined devices that raise the number above that of the listed ones. A container says that it has them, and nothing else does.
func (r *Resource) strange(free int) (n int) {
	for id := range r.quarantined {
		if !r.listing.Lists(id) {
			n++
		}
	}
	return n - min(n, max(0, len(r.listing.devices)-free-(len(r.taken)-n)))
}

// spokenFor counts the claimed devices of the capacity that their pods have or will have. Some wait for a device that another pod has, or that
// no pod can be assigned now: the first counts for the other pod, the second not at all.
func (r *Resource) spokenFor() int {
	counted := map[device.ID]bool{}
	for of := range r.claimed {
		i, listed := r.listing.At(of.id)
		why := r.ReleaseOf(of.id)
		if r.Has(of.id, of.pod) && (why == nil || !why.Busy) || listed && r.offer.State != device.Lost && r.free.Has(i) {
			counted[of.id] = true
		}
	}
	return len(counted)
}

// Busy counts a resource's busy devices.
type Busy struct {
	All      int
	Unlisted int             // those that are not listed
	Usable   int             // those that are listed, healthy and not cordoned
	Why      *device.Release // what keeps the one that has been busy for the longest time; nil: none is busy
}

// Busy counts the busy devices.
func (r *Resource) Busy() (b Busy) {
	for id, why := range r.unreleased {
		if !why.Busy {
			continue
		}
		b.All++
		if i, listed := r.listing.At(id); !listed {
			b.Unlisted++
		} else if r.listing.usable.Has(i) {
			b.Usable++
		}
		if b.Why == nil || why.Since.Before(b.Why.Since) {
			b.Why = why
		}
	}
	return b
}

// Counts returns the number of devices in each state of the metric devmgrd_devices. Each device is in exactly one state.
func (r *Resource) Counts() map[device.DeviceState]int {
	free, stale, busy := r.freeCount, 0, r.Busy().All
	releasing := len(maps.Collect(r.unreleased)) - busy
	if r.offer.State != device.Serving {
		free, stale = 0, r.freeCount
	}
	all := map[device.DeviceState]int{
		device.StateFree: free, device.StateStale: stale, device.StateAssigned: len(r.taken) - len(r.quarantined) - busy - releasing, device.StateQuarantined: len(r.quarantined),
		device.StateReleasing: releasing, device.StateBusy: busy,
		device.StateUnhealthy: r.Unhealthy(), device.StateCordoned: 0, device.StateSuspended: 0, device.StateRefused: 0, device.StateWithheld: r.WithheldCount(),
	}
	for c := range r.OutOfService {
		all[c.State()]++
	}
	return all
}

// Unhealthy returns the number of devices that would be free if they were healthy.
func (r *Resource) Unhealthy() int {
	n := len(r.listing.devices) - r.listing.usableCount - r.takenUnusable
	for range r.OutOfService {
		n--
	}
	return n
}

// OutOfService yields the cordons of the devices that are listed and not taken.
func (r *Resource) OutOfService(yield func(device.Cordon) bool) {
	for id, c := range r.listing.cordons {
		if r.listing.Lists(id) && !r.IsTaken(id) && !yield(c) {
			return
		}
	}
}
