package registry

import (
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A deviceList is a resource's inventory and the devices that were in it before, which distinguishes a new device from one that returns.
// It is replaced, never edited.
type deviceList struct {
	devices []device.Device     // sorted, without doubles
	listed  bool                // a list has been taken, though perhaps before devmgrd's last restart
	newest  int64               // device.PluginRecord.Newest
	absent  map[device.ID]int64 // Added of devices that the plugin lists no longer, and may list again
}

// deviceListOf returns the list in the state file. Absences are not in the file. An older version wrote no newest date, and pods may have devices that were
// newer than those listed: now is later than all of them.
func deviceListOf(k device.PluginRecord, now time.Time) deviceList {
	r := deviceList{devices: k.Devices, listed: k.Reported, newest: k.Newest}
	if r.listed && r.newest == 0 {
		r.newest = now.UnixNano()
	}
	for _, d := range k.Devices {
		r.newest = max(r.newest, d.Added)
	}
	return r
}

// additions dates the devices that a list adds.
type additions struct {
	before *deviceList
	now    time.Time
	stamp  int64 // Added of the new devices; 0: there has been none so far
}

// added returns Device.Added of a device that was not in the list before.
func (c *additions) added(id device.ID) int64 {
	if !c.before.listed {
		return 0
	}
	if was, ok := c.before.absent[id]; ok {
		return was
	}
	if c.stamp == 0 {
		c.stamp = max(c.now.UnixNano(), c.before.newest+1)
	}
	return c.stamp
}

// after returns the list of another plugin, or an earlier list, as the one that follows former. Devices that former has keep their date. All others
// count as new, even if they were listed before former: pods may have them under the IDs of former.
func (r *deviceList) after(former *deviceList, now time.Time, most int) deviceList {
	devices, copied := r.devices, false
	old, come := walk{rest: former.devices}, additions{before: former, now: now}
	for i, d := range r.devices {
		was, known := old.find(d.ID)
		added := was.Added
		if !known {
			added = come.added(d.ID)
		}
		if added == d.Added {
			continue
		}
		if !copied {
			devices, copied = slices.Clone(devices), true
		}
		devices[i].Added = added
	}
	return former.with(devices, old.end(), come.stamp, most)
}

// A walk goes through an old list in step with a new one. Both are sorted.
type walk struct {
	rest []device.Device
	gone []device.Device // that the new list lacks
}

// find returns the device of the old list with the next ID of the new one.
func (w *walk) find(id device.ID) (was device.Device, known bool) {
	for len(w.rest) > 0 && w.rest[0].ID != id && device.CompareIDs(w.rest[0].ID, id) < 0 {
		w.gone, w.rest = append(w.gone, w.rest[0]), w.rest[1:]
	}
	if len(w.rest) == 0 || w.rest[0].ID != id {
		return device.Device{}, false
	}
	was, w.rest = w.rest[0], w.rest[1:]
	return was, true
}

// end returns the devices that the new list lacks.
func (w *walk) end() []device.Device { return append(w.gone, w.rest...) }

// with returns the next deviceList, whose list lacks the devices in gone and dates its new devices with stamp.
//
// Plugins list no devices, or only some, for a moment after their start: an absent device keeps its date. It loses the date when
// the plugin lists a new ID, which may be the same device under another name, as when time-slicing is switched on and off. At most
// most absences are kept, the latest ones.
func (r *deviceList) with(devices, gone []device.Device, stamp int64, most int) deviceList {
	next := deviceList{devices: devices, listed: true, newest: max(r.newest, stamp, 1)}
	if stamp != 0 || len(gone) == 0 && len(r.absent) == 0 {
		return next
	}
	next.absent = make(map[device.ID]int64, len(gone))
	if len(gone)+len(r.absent) <= most {
		maps.Copy(next.absent, r.absent)
		for _, d := range devices {
			delete(next.absent, d.ID)
		}
	}
	for _, d := range gone[:min(len(gone), most)] {
		next.absent[d.ID] = d.Added
	}
	return next
}
