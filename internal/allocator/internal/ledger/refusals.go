package ledger

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A plugin may list a device as healthy and refuse it: a GPU that has fallen off the bus, a virtual function that another driver has. Such a device is
// chosen last. When it has been refused three times in a row, and a request for other devices has succeeded meanwhile, it is out of service for a while
// that doubles with each further refusal. Without such a success the requests are refused and not the device. A request for fewer devices is none: some
// plugins grant no container more than one.

const (
	// refusalMemory is for how long after a refusal, or a pause, a device is chosen last.
	refusalMemory = 10 * time.Minute
	// manyRefusals in a row take a device out of service.
	manyRefusals = 3
	// firstPause and lastPause are the shortest and the longest time out of service.
	firstPause, lastPause = 30 * time.Second, 10 * time.Minute
)

// A Finding is what is known against a device.
type Finding int

const (
	Denied    Finding = iota // the plugin does not grant it
	Unasked                  // the plugin had no time to be asked for it
	Lacking                  // it is granted, and the host lacks what the grant names, or the plugin cannot prepare it
	Suspected                // it is granted, and the container cannot start, perhaps for another cause
)

// A refusal records that a device's plugin has refused it, or that its grant could not be used.
type refusal struct {
	times    int    // in a row
	counted  int    // those that prove something: the Denied and Lacking ones
	fewest   int    // the size of the smallest request of these
	why      string // the last one
	unusable bool   // the plugin had granted the device: only a container that starts is a success
	others   int    // the size of the largest request for other devices that has succeeded since the first refusal. If unusable, a request succeeds once a container has started
	until    time.Time
	pause    time.Duration // the last one
	paused   time.Time     // until then the device is out of service; zero: it never was
}

// proved reports whether the device is refused, and not each request.
func (was refusal) proved() bool { return was.counted >= manyRefusals && was.others >= was.fewest }

// answers are what the plugin has answered to requests for devices.
type answers struct {
	refused map[device.ID]refusal       // lately
	granted map[device.ID]device.PodUID // the pod to which the plugin has granted a listed or taken device last; none has been released since
}

// Refuse records a refusal of a device in a request for that many. It reports whether the device is out of service for it.
func (l *Ledger) Refuse(name device.ResourceName, id device.ID, size int, why string, found Finding, now time.Time) (out bool) {
	r := l.Resources[name]
	was := r.refused[id]
	if unusable := found == Lacking || found == Suspected; was.unusable != unusable {
		was.unusable, was.others = unusable, 0
	}
	was.times++
	was.why = why
	if found == Denied || found == Lacking {
		was.counted++
		if was.counted == 1 || size < was.fewest {
			was.fewest = size
		}
		if out = was.proved(); out {
			was.pause = min(max(2*was.pause, firstPause), lastPause)
			was.paused = now.Add(was.pause)
		}
	}
	was.until = now.Add(refusalMemory)
	if was.paused.After(now) {
		was.until = was.paused.Add(refusalMemory)
	}
	r.refused[id] = was
	return out
}

// Grant records that the plugin has granted devices to a pod. It reports whether one of these was out of service.
func (l *Ledger) Grant(name device.ResourceName, ids []device.ID, pod device.PodUID) (back bool) {
	r := l.Resources[name]
	for _, id := range ids {
		r.granted[id] = pod
	}
	return r.succeeded(ids, false)
}

// Start records that a container has started with devices. It reports whether one of these was out of service.
func (l *Ledger) Start(name device.ResourceName, ids []device.ID) (back bool) {
	back = l.Pardon(name, ids...)
	l.Resources[name].succeeded(ids, true)
	return back
}

// Pardon forgets the refusals of devices. It reports whether one of these was out of service.
func (l *Ledger) Pardon(name device.ResourceName, ids ...device.ID) (back bool) {
	return l.Of(name).pardon(ids...)
}

// ForgetRefusals forgets the refusals that have expired.
func (l *Ledger) ForgetRefusals(name device.ResourceName, now time.Time) {
	maps.DeleteFunc(l.Resources[name].refused, func(_ device.ID, was refusal) bool { return now.After(was.until) })
}

// succeeded ends the refusals of these devices that are unusable or not, and notes the success for all others. It reports whether one was out of service.
func (a *answers) succeeded(ids []device.ID, unusable bool) (back bool) {
	if len(a.refused) == 0 { // no need to look at each device
		return false
	}
	for _, id := range ids {
		if was, refused := a.refused[id]; refused && was.unusable == unusable {
			back = a.pardon(id) || back
		}
	}
	for id, was := range a.refused {
		if was.unusable == unusable && was.others < len(ids) {
			was.others = len(ids)
			a.refused[id] = was
		}
	}
	return back
}

// pardon forgets the refusals of devices. It reports whether one of these was out of service.
func (a *answers) pardon(ids ...device.ID) (back bool) {
	if len(a.refused) == 0 {
		return false
	}
	for _, id := range ids {
		back = back || !a.refused[id].paused.IsZero()
		delete(a.refused, id)
	}
	return back
}

// endPauses ends all pauses: another process of the plugin may grant the devices. They are still chosen last.
func (a *answers) endPauses() {
	for id, was := range a.refused {
		was.paused = time.Time{}
		a.refused[id] = was
	}
}

// GrantedLast reports whether the plugin has granted each of these devices last to this pod, and none has been released since.
func (a *answers) GrantedLast(ids []device.ID, pod device.PodUID) bool {
	return !slices.ContainsFunc(ids, func(id device.ID) bool { return a.granted[id] != pod })
}

// Paused returns the devices that are out of service because they are refused, as cordons, and when the first of them is tried again; zero: there is none.
func (a *answers) Paused(name device.ResourceName, now time.Time) (all []device.Cordon, next time.Time) {
	for id, was := range a.refused {
		if !now.Before(was.paused) {
			continue
		}
		all = append(all, device.Cordon{Resource: name, ID: id, Suspended: true, Refused: true, Since: was.paused.Add(-was.pause), Until: was.paused,
			Reason: fmt.Sprintf("refused %d times in a row, tried again at %s: %s", was.times, was.paused.UTC().Format(time.RFC3339), was.why)})
		next = loops.Earliest(next, was.paused)
	}
	slices.SortFunc(all, func(x, y device.Cordon) int { return device.CompareIDs(x.ID, y.ID) })
	return all, next
}

func (a *answers) AnyRefused() bool              { return len(a.refused) > 0 }     // lately
func (a *answers) Refused() iter.Seq[device.ID]  { return maps.Keys(a.refused) }   // lately
func (a *answers) TimesRefused(id device.ID) int { return a.refused[id].times }    // in a row
func (a *answers) Refuses(id device.ID) bool     { return a.refused[id].proved() } // the plugin refuses the device and not each request, in or out of service

// AllRefused returns the devices of which Refuses is true, ascending.
func (a *answers) AllRefused() (ids []device.ID) {
	for id, was := range a.refused {
		if was.proved() {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, device.CompareIDs) // these few: a plugin may refuse each request for many
	return ids
}

// UnrefusedCount returns the number of free devices that have not been refused lately.
func (r *Resource) UnrefusedCount(now time.Time) int {
	n := r.freeCount
	for id, was := range r.refused {
		if i, listed := r.listing.At(id); listed && r.free.Has(i) && now.Before(was.until) {
			n--
		}
	}
	return n
}
