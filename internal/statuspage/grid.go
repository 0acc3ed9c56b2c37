package statuspage

import (
	"cmp"
	"iter"
	"slices"
	"strings"
	"time"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/lists"
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

// A listing is the part of a resource's devices that the page shows. A plugin may list very many: the page never has all of them at once.
type listing struct {
	total     int
	shown     []*adminv1.Device // each device, or those that stand out
	left      int               // number of devices that stand out but are not shown
	table     []row             // nil: each device is shown
	unhealthy int               // listed devices
	// unhealthyInUse is how many of the unhealthy ones pods have.
	unhealthyInUse int
}

// listingOf returns a resource's devices, with at most room of them shown.
func listingOf(devices iter.Seq[*adminv1.Device], room int) (l listing) {
	room = min(room, maxCells)
	var first, notable []*adminv1.Device
	var t table
	for d := range devices {
		l.total++
		t.add(d)
		if d.Listed && !d.Healthy {
			l.unhealthy++
			if d.Holder != nil {
				l.unhealthyInUse++
			}
		}
		if len(first) < room {
			first = append(first, d)
		}
		switch {
		case ordinary(d):
		case len(notable) < room:
			notable = append(notable, d)
		default:
			l.left++
		}
	}
	if l.total <= room {
		l.shown, l.left = first, 0
		return l
	}
	l.shown, l.table = notable, t.all()
	return l
}

// resourceOf returns one resource.
func resourceOf(r *adminv1.Resource, devices listing, now time.Time) resource {
	one := resource{Key: key("r", r.Name), Name: name(r.Name), Plugin: name(r.Plugin), Capacity: int(r.NodeCapacity), Target: int(r.TargetCapacity), Claimed: r.Claimed,
		Total: devices.total, Tiles: devices.total <= maxTiles, Table: devices.table, Left: devices.left}
	for i, n := range []int32{r.Free, r.Assigned, r.Unhealthy, r.Stale, r.Cordoned, r.Suspended, r.Refused, r.Withheld, r.Quarantined, r.Releasing, r.Busy} {
		if n > 0 {
			one.Counts = append(one.Counts, figure{states[i].Name, int(n)})
		}
	}
	places := map[string]int{}
	byPlace := func(a, b *adminv1.Device) int { return comparePlaces(a.NumaNodes, b.NumaNodes) }
	for _, d := range slices.SortedStableFunc(slices.Values(devices.shown), byPlace) {
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

// comparePlaces compares NUMA nodes of devices; those without a place come last.
func comparePlaces(a, b []int32) int {
	if len(a) == 0 || len(b) == 0 {
		return cmp.Compare(len(b), len(a))
	}
	return slices.Compare(a, b)
}

const maxRows = 64 // of the table of places

// A table counts devices by place and state: those of the first maxRows places, and all others together.
type table struct {
	rows   []placeRow // ascending by place
	others *row
}

type placeRow struct {
	nodes []int32
	row
}

func (t *table) add(d *adminv1.Device) {
	at, there := slices.BinarySearchFunc(t.rows, d.NumaNodes, func(r placeRow, nodes []int32) int { return comparePlaces(r.nodes, nodes) })
	switch {
	case there:
		t.rows[at].add(d)
		return
	case at == maxRows:
		t.addOthers().add(d)
		return
	case len(t.rows) == maxRows:
		last := t.rows[maxRows-1]
		t.rows = t.rows[:maxRows-1]
		t.addOthers().merge(last.row)
	}
	t.rows = slices.Insert(t.rows, at, placeRow{d.NumaNodes, newRow(place(d.NumaNodes))})
	t.rows[at].add(d)
}

// addOthers returns the row of other places.
func (t *table) addOthers() *row {
	if t.others == nil {
		r := newRow("other places")
		t.others = &r
	}
	return t.others
}

// all returns the rows.
func (t *table) all() []row {
	all := lists.Map(t.rows, func(r placeRow) row { return r.row })
	if t.others != nil {
		all = append(all, *t.others)
	}
	return all
}

func newRow(place string) row { return row{Place: place, Figures: make([]int, len(states))} }

func (r *row) add(d *adminv1.Device) {
	r.Total++
	for s := range states {
		if states[s].Name == d.State {
			r.Figures[s]++
		}
	}
}

func (r *row) merge(other row) {
	r.Total += other.Total
	for s, n := range other.Figures {
		r.Figures[s] += n
	}
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
