package ledger

import (
	"maps"
	"math"
	"strings"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/device"
)

// A plugin that restarts may list its devices under other IDs while pods use them under the old ones: time-slicing is
// switched on or off, a driver numbers its devices differently, or IDs are random. The device plugin API does not say
// which new ID is which old one, so a device is withheld while it may be in use under another ID.
//
// Two IDs are different devices if the plugin listed both at one time: when it granted the old one, it listed the new one
// already. NVIDIA's shared devices are named UUID::N, so their names say more: an ID of a physical device that is listed
// under any name stands for no other physical device.

// unclear is what the plugin's list and the state file leave open about devices in use.
type unclear struct {
	withheld       bitset.Mutable     // listed, and possibly the same hardware as an unlisted device in use, be it free otherwise or not; zero: none
	withheldLogged int                // number of withheld devices last logged
	unlistedIdle   int                // the part of the unlisted devices in use that no container has used since the boot
	vanished       map[device.ID]bool // taken, and no longer listed by the plugin that listed them
	unknownUsers   int                // containers with devices that only a lost state file named
}

// Withhold withholds the devices that may be in use under an ID that is no longer listed, and frees those that no longer
// may be. Callers run it whenever the time of a grant has become known; the Ledger does when a list, or the pods that have
// unlisted devices, have changed.
func (l *Ledger) Withhold(name device.ResourceName) {
	r := l.Resources[name]
	if r.unlisted == 0 && r.withheld.IsZero() && r.withheldLogged == 0 && r.unlistedIdle == 0 {
		return
	}
	unlisted := l.UnlistedInUse(name)
	r.unlistedIdle = r.unlisted - len(unlisted)
	freed := r.withhold(unlisted)
	n, before := r.WithheldCount(), r.withheldLogged
	r.withheldLogged = n
	switch {
	case n == before:
	case n > 0:
		l.log.Warn("devices withheld: possibly in use under former IDs", "resource", name, "withheld", n, "unlisted_in_use", r.unlisted)
	default:
		l.log.Info("devices no longer withheld", "resource", name)
	}
	if freed {
		l.allocator.Freed(name)
	}
}

// UnlistedInUse returns the devices in use that the plugin does not list, with the time of each grant. An unknown time counts as
// earlier than all others.
func (l *Ledger) UnlistedInUse(name device.ResourceName) map[device.ID]int64 {
	r := l.Resources[name]
	if r.unlisted == 0 {
		return nil
	}
	granted := make(map[device.ID]int64, r.unlisted)
	holders := map[device.PodUID]bool{}
	users := make(map[device.ID]int, r.unlisted) // pods whose containers may use the device
	for id := range r.taken {
		if r.listing.Lists(id) {
			continue
		}
		granted[id] = -1
		for pod := range r.Holders(id) {
			holders[pod] = true
			users[id]++
		}
	}
	for pod := range holders {
		unused := map[device.ID]bool{}
		for c, s := range device.Shares(l.allocator.Assigned(pod)) {
			if s.Resource != name {
				continue
			}
			idle := l.allocator.Unused(pod, c.Name)
			for _, id := range s.IDs {
				if at, unlisted := granted[id]; unlisted {
					if s.At > 0 {
						granted[id] = max(at, s.At)
					}
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

// physical returns the part of an ID that names the physical device.
func physical(id device.ID) string {
	name, _, _ := strings.Cut(string(id), "::")
	return name
}

// withhold removes the listed devices that may be one of the unlisted ones from the free ones, frees those that no longer
// may, and reports whether there are any of the latter.
func (r *Resource) withhold(unlisted map[device.ID]int64) (freed bool) {
	since := map[string]int64{} // by physical device: IDs added later may name it
	for id, at := range unlisted {
		name := physical(id)
		if was, known := since[name]; !known || at < was {
			since[name] = at
		}
	}
	listed := map[string]bool{} // physical devices with an unlisted ID in use, and a listed one
	if len(since) > 0 {
		for _, d := range r.listing.devices {
			if name := physical(d.ID); since[name] != 0 {
				listed[name] = true
			}
		}
	}
	unknown := int64(math.MaxInt64) // IDs added later may name a device that is listed under no name
	for name, at := range since {
		if !listed[name] {
			unknown = min(unknown, at)
		}
	}
	was := r.withheld
	r.withheld = bitset.Mutable{}
	for i, d := range r.listing.devices {
		at := unknown
		if len(listed) > 0 {
			if name := physical(d.ID); listed[name] {
				at = min(at, since[name])
			}
		}
		is := d.Added > at
		if is {
			if r.withheld.IsZero() {
				r.withheld = bitset.New(len(r.listing.devices))
			}
			r.withheld.Add(i)
		}
		if was.Has(i) == is || r.IsTaken(d.ID) || !r.listing.usable.Has(i) {
			continue
		}
		r.index.set(r.listing, i, !is)
		freed = freed || !is
	}
	return freed
}

// Withheld reports whether a device is withheld, be it free otherwise or not.
func (r *Resource) Withheld(id device.ID) bool {
	i, listed := r.listing.At(id)
	return listed && r.withheld.Has(i)
}

// WithheldCount returns the number of devices that would be free if they were not withheld.
func (r *Resource) WithheldCount() (n int) {
	for i := r.withheld.Next(0, r.listing.usable.Set); i >= 0; i = r.withheld.Next(i+1, r.listing.usable.Set) {
		if !r.IsTaken(r.listing.devices[i].ID) {
			n++
		}
	}
	return n
}
