package dra

import (
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	// firstWord and lastWord are the shortest and the longest time for which a plugin's word holds before the next one is taken.
	firstWord, lastWord = time.Second, time.Minute
	// calm is the time after which a plugin that has not changed its word has the shortest time again.
	calm = 10 * time.Minute
)

// A word is a plugin's list as the slices show it: its devices, with their health and NUMA nodes, and that the plugin
// is there at all. The slices follow the first change at once, and further ones after pauses that double: then all changes of the resource's devices are
// written together. What devmgrd or the operator does with a device does not wait, and neither does the loss of a plugin, which the grace period delays
// already.
type word struct {
	devices []device.DeviceStatus // in natural order; shared, never changed
	lost    bool
	taken   time.Time     // when it last differed from the one before; zero: nothing has been said
	pause   time.Duration // until the next one
}

// take returns what the slices follow: the plugin's present word or, before it is due, the one before. again is when to ask again; zero: after the next
// change.
func (w *word) take(devices []device.DeviceStatus, lost bool, now time.Time) (of []device.DeviceStatus, isLost bool, again time.Time) {
	if w.said(devices) && (lost || !w.lost) {
		w.devices, w.lost = devices, lost
		return devices, lost, time.Time{}
	}
	if due := w.taken.Add(w.pause); due.After(now) {
		w.lost = w.lost || lost
		return w.apply(devices), w.lost, due
	}
	if now.Sub(w.taken) > calm {
		w.pause = firstWord
	} else {
		w.pause = min(2*w.pause, lastWord)
	}
	w.devices, w.lost, w.taken = devices, lost, now
	return devices, lost, time.Time{}
}

// said reports whether the plugin says the same of devices.
func (w *word) said(devices []device.DeviceStatus) bool {
	i := 0
	for _, d := range devices {
		if !d.Listed {
			continue
		}
		for i < len(w.devices) && !w.devices[i].Listed {
			i++
		}
		if i == len(w.devices) || w.devices[i].ID != d.ID || w.devices[i].Healthy != d.Healthy || !slices.Equal(w.devices[i].NUMA, d.NUMA) {
			return false
		}
		i++
	}
	return !slices.ContainsFunc(w.devices[i:], func(d device.DeviceStatus) bool { return d.Listed })
}

// apply returns devices as they are, but for what the plugin says of them. A device that it no longer lists is as it was.
func (w *word) apply(devices []device.DeviceStatus) []device.DeviceStatus {
	before := make(map[device.ID]device.DeviceStatus, len(w.devices))
	for _, d := range w.devices {
		if d.Listed {
			before[d.ID] = d
		}
	}
	all := make([]device.DeviceStatus, 0, len(devices))
	for _, d := range devices {
		was, known := before[d.ID]
		switch {
		case d.Listed && known:
			d.Device = was.Device
			all = append(all, d)
			delete(before, d.ID)
		case !d.Listed && !known:
			all = append(all, d)
		}
	}
	for _, d := range before {
		all = append(all, d)
	}
	slices.SortFunc(all, func(x, y device.DeviceStatus) int { return device.CompareIDs(x.ID, y.ID) })
	return all
}
