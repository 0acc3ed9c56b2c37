package registry

import (
	"maps"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A deviceList is one resource's inventory with the past that dates it: it tells a device that the plugin has begun to list
// from one that it listed before. Rosters are replaced and never edited.
type deviceList struct {
	devices []device.Device     // sorted, without doubles
	listed  bool                // a list has been taken, though perhaps before devmgrd's last restart
	newest  int64               // the highest Added of any device so far
	absent  map[device.ID]int64 // Added of devices that the plugin lists no longer, and may list again
}

// deviceListOf returns the roster of a remembered plugin. Absences are not remembered.
func deviceListOf(k device.PluginRecord) deviceList {
	r := deviceList{devices: k.Devices, listed: k.Reported}
	for _, d := range k.Devices {
		r.newest = max(r.newest, d.Added)
	}
	return r
}

// additions dates the devices that one list adds to a roster.
type additions struct {
	before *deviceList
	now    time.Time
	stamp  int64 // Added of the new devices; 0: there has been none so far
}

// added returns Device.Added of a device that the list before did not have.
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

// with returns the roster of the next list. The list lacks the devices in gone and dates its new devices with stamp.
//
// Plugins list no devices, or some, for a moment after their start: a device that is absent keeps its date. It loses the
// date when the plugin lists a new ID meanwhile, since the new one may be the absent device under another name: time-slicing
// switched on and off again must not leave the first names dated before the second ones. There are at most so many absences;
// where they would be more, those of earlier lists go.
func (r *deviceList) with(devices, gone []device.Device, stamp int64, most int) deviceList {
	next := deviceList{devices: devices, listed: true, newest: max(r.newest, stamp)}
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
