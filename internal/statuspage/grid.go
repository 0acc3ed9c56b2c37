package statuspage

import (
	"cmp"
	"slices"
	"strings"
	"time"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
)

// states are the states of devices, in the order of counts and explanations.
var states = []struct{ Name, Meaning string }{
	{"free", "available to pods"},
	{"assigned", "a pod has it, or will soon"},
	{"unhealthy", "not in use, and reported unhealthy by its plugin"},
	{"stale", "free, but its plugin is away"},
	{"cordoned", "not in use, and taken out of service by an operator"},
	{"suspended", "not in use, and out of service for a time, because it became unhealthy again and again"},
	{"refused", "not in use, and out of service for a time, because its plugin refuses it"},
	{"withheld", "possibly in use under an ID that is no longer listed"},
	{"quarantined", "a container has it, without an assignment in the state file"},
	{"releasing", "its pod has ended, and it is not proved free yet"},
	{"busy", "its pod has ended, and something still uses it"},
}

// A resource with its devices: each of them, or counts of all and the devices that stand out.
type resource struct {
	Key, Name, Plugin string
	Capacity, Target  int  // of the Node, now and planned; both 0: none
	Claimed           bool // offered through Dynamic Resource Allocation
	Total             int
	Counts            []figure
	Places            []spot
	Tiles             bool  // the devices are few enough to show their names
	Left              int   // number of devices that stand out but are not shown
	Table             []row // nil: each device is shown
}

type figure struct {
	State string
	N     int
}

// A row has the counts of one place, in the order of states.
type row struct {
	Place   string
	Figures []int
	Total   int
}

// A spot is a place with its shown devices.
type spot struct {
	Key   string
	Name  string // empty: no device of the resource has a place
	Cells []cell
}

type cell struct {
	Key, ID, State string
	Also           []string // facts that the state does not include
	Holder, Pod    string
	Cordon         *cordon
	Release        *cordon // why it is not free although its pod has ended
	Failures       int
	Failed         when
	Place          string
}

type cordon struct {
	Reason    string
	Since     when
	Suspended bool
}

// Title describes a cell in one line, as its tooltip.
func (c cell) Title() string {
	all := append([]string{c.ID + " is " + c.State}, c.Also...)
	if c.Holder != "" {
		all = append(all, "held by "+c.Holder)
	}
	if c.Release != nil {
		all = append(all, c.Release.Reason)
	}
	if c.Cordon != nil && c.Cordon.Reason != "" {
		all = append(all, c.Cordon.Reason)
	}
	return strings.Join(all, ", ")
}

func cellKey(resource, id string) string { return key("d", resource, id) }

// resourcesOf returns each resource with its devices, which are sorted by resource.
func resourcesOf(all []*adminv1.Resource, devices []*adminv1.Device, now time.Time) []resource {
	of := map[string][]*adminv1.Device{}
	for i := 0; i < len(devices); {
		j := i
		for j < len(devices) && devices[j].ResourceName == devices[i].ResourceName {
			j++
		}
		of[devices[i].ResourceName] = devices[i:j]
		i = j
	}
	room := maxAllCells
	list := make([]resource, len(all))
	for i, r := range all {
		list[i] = resourceOf(r, of[r.Name], room, now)
		for _, p := range list[i].Places {
			room -= len(p.Cells)
		}
	}
	return list
}

// resourceOf returns one resource, with at most room of its devices.
func resourceOf(r *adminv1.Resource, devices []*adminv1.Device, room int, now time.Time) resource {
	one := resource{Key: key("r", r.Name), Name: name(r.Name), Plugin: name(r.Plugin), Capacity: int(r.NodeCapacity), Target: int(r.TargetCapacity), Claimed: r.Claimed, Total: len(devices)}
	for i, n := range []int32{r.Free, r.Assigned, r.Unhealthy, r.Stale, r.Cordoned, r.Suspended, r.Refused, r.Withheld, r.Quarantined, r.Releasing, r.Busy} {
		if n > 0 {
			one.Counts = append(one.Counts, figure{states[i].Name, int(n)})
		}
	}
	room = min(room, maxCells)
	one.Tiles = len(devices) <= maxTiles
	if len(devices) > room {
		one.Table = tableOf(devices)
		devices = slices.DeleteFunc(slices.Clone(devices), ordinary)
		one.Left = max(0, len(devices)-room)
		devices = devices[:min(len(devices), room)]
	}
	places := map[string]int{}
	for _, d := range byPlace(devices) {
		at := place(d.NumaNodes)
		i, there := places[at]
		if !there {
			i = len(one.Places)
			places[at] = i
			one.Places = append(one.Places, spot{Key: key("n", r.Name, at), Name: at})
		}
		one.Places[i].Cells = append(one.Places[i].Cells, cellOf(d, now))
	}
	if len(one.Places) == 1 && one.Places[0].Name == place(nil) {
		one.Places[0].Name = ""
	}
	return one
}

// ordinary reports whether a device is free or assigned, and has no note.
func ordinary(d *adminv1.Device) bool {
	return (d.State == "free" || d.State == "assigned") && d.Healthy && d.Listed && d.Cordon == nil && d.Failures == 0
}

// byPlace sorts stably by place.
func byPlace(devices []*adminv1.Device) []*adminv1.Device {
	devices = slices.Clone(devices)
	slices.SortStableFunc(devices, func(a, b *adminv1.Device) int {
		if len(a.NumaNodes) == 0 || len(b.NumaNodes) == 0 { // devices without a place come last
			return cmp.Compare(len(b.NumaNodes), len(a.NumaNodes))
		}
		return slices.Compare(a.NumaNodes, b.NumaNodes)
	})
	return devices
}

const maxRows = 64 // of the table of places

// tableOf counts devices by place and state.
func tableOf(devices []*adminv1.Device) []row {
	var all []row
	at := map[string]int{}
	for _, d := range byPlace(devices) {
		where := place(d.NumaNodes)
		if _, there := at[where]; !there && len(all) == maxRows {
			where = "other places"
		}
		i, there := at[where]
		if !there {
			i = len(all)
			at[where] = i
			all = append(all, row{Place: where, Figures: make([]int, len(states))})
		}
		all[i].Total++
		for s := range states {
			if states[s].Name == d.State {
				all[i].Figures[s]++
			}
		}
	}
	return all
}

func cellOf(d *adminv1.Device, now time.Time) cell {
	c := cell{
		Key: cellKey(d.ResourceName, d.Id), ID: nameOf(d.Id), State: name(d.State), Holder: holders(d), Place: place(d.NumaNodes),
		Failures: int(d.Failures), Failed: whenOf(d.Failed, now),
	}
	if h := d.Holder; h != nil {
		c.Pod = cmp.Or(name(h.Name), "UID "+name(h.Uid))
	}
	if d.Cordon != nil {
		c.Cordon = &cordon{text(d.Cordon.Reason), whenOf(d.Cordon.Since, now), d.Cordon.Suspended}
		switch {
		case d.State == "cordoned", d.State == "suspended", d.State == "refused":
		case d.Cordon.Suspended:
			c.Also = append(c.Also, "suspended")
		default:
			c.Also = append(c.Also, "cordoned")
		}
	}
	if d.Refusals > 0 && d.State != "refused" {
		c.Also = append(c.Also, "has been refused")
	}
	if d.Release != nil {
		c.Release = &cordon{Reason: text(d.Release.Why), Since: whenOf(d.Release.Since, now)}
	}
	switch {
	case !d.Listed:
		c.Also = append(c.Also, "its plugin does not list it")
	case !d.Healthy && d.State != "unhealthy":
		c.Also = append(c.Also, "unhealthy")
	}
	return c
}
