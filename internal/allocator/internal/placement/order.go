package placement

import (
	"cmp"
	"container/heap"
	"regexp"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// An Order selects which of several equal devices a container gets.
type Order string

// The orders. Each is complete: equal inputs lead to equal choices.
const (
	Lowest Order = "lowest" // the lowest IDs
	Pack   Order = "pack"   // from the smallest group that suffices, so that other groups stay whole
	Spread Order = "spread" // from as many groups as possible, the one with the most free devices first
	Oldest Order = "oldest" // those that have been free for the longest time
)

// An Ordering is the order in which the devices of one resource are given out. The zero value is Lowest.
type Ordering struct {
	Order Order
	// Group finds the group in a device's ID: the first parenthesis, or the whole match if there is none. A device whose ID
	// it does not match is a group of its own. nil: devices near the same NUMA nodes are a group. Only Pack and Spread have
	// groups.
	Group *regexp.Regexp
}

// ordered reports whether the order is another than that of the IDs.
func (o Ordering) ordered() bool { return o.Order == Oldest || o.grouped() }

// grouped reports whether groups matter.
func (o Ordering) grouped() bool { return o.Order == Pack || o.Order == Spread }

// nodes returns the order of NUMA nodes, if it differs from that of their numbers.
func (o Ordering) nodes() Order {
	if o.grouped() && o.Group == nil {
		return o.Order
	}
	return ""
}

// findGroups groups the devices, if the resource's ordering wants that.
func (l *Listing) findGroups() {
	l.group, l.groups = nil, 0
	if !l.ordering.grouped() {
		return
	}
	l.group = make([]int32, len(l.devices))
	if l.ordering.Group == nil {
		l.groups = len(l.places) + 1 // devices without a place are a group as well
		for i := range l.devices {
			l.group[i] = int32(l.place(i) + 1)
		}
		return
	}
	known := map[string]int32{}
	for i, d := range l.devices {
		name := "\x00" + string(d.ID) // no group's name begins so
		if found := l.ordering.Group.FindStringSubmatch(string(d.ID)); found != nil {
			name = found[min(1, len(found)-1)]
		}
		at, is := known[name]
		if !is {
			at = int32(len(known))
			known[name] = at
		}
		l.group[i] = at
	}
	l.groups = len(known)
}

// A group is the candidates of one request in one group, ascending. There is at least one.
type group struct {
	left  []int // not picked yet
	taken int   // picked for this request
}

// groupsOf returns the groups of candidates, with how many devices were picked from each before.
func (l *Listing) groupsOf(candidates []int, picked []device.ID) []*group {
	taken := map[int32]int{}
	for _, id := range picked {
		if i, listed := l.at[id]; listed {
			taken[l.group[i]]++
		}
	}
	ends := make([]int, l.groups+1) // of each group in sorted
	for _, i := range candidates {
		ends[l.group[i]+1]++
	}
	for g := range l.groups {
		ends[g+1] += ends[g]
	}
	sorted, next := make([]int, len(candidates)), slices.Clone(ends)
	for _, i := range candidates {
		g := l.group[i]
		sorted[next[g]] = i
		next[g]++
	}
	var all []*group
	for g := range l.groups {
		if ends[g] < ends[g+1] {
			all = append(all, &group{sorted[ends[g]:ends[g+1]], taken[int32(g)]})
		}
	}
	return all
}

// sorted returns the first n candidates in the resource's order. The candidates are positions, ascending. The container has
// the devices in picked already.
func (p *Resource) sorted(candidates []int, n int, picked []device.ID) []int {
	switch l := p.listing; {
	case n >= len(candidates) || n == 0:
	case l.ordering.Order == Oldest:
		return p.oldest(candidates, n)
	case l.ordering.Order == Pack:
		return packed(l.groupsOf(candidates, nil), n)
	case l.ordering.Order == Spread:
		return spread(l.groupsOf(candidates, picked), n)
	}
	return candidates[:min(n, len(candidates))]
}

// Order returns the free devices in the order in which another program should take them, for one container or several; nil: that of their IDs. Devices that the plugin has recently refused come last.
func (p *Resource) Order() (ids []device.ID) {
	l := p.listing
	if !l.ordering.ordered() && len(p.refused) == 0 {
		return nil
	}
	var candidates, refused []int
	for i := p.free.next(0, nil); i >= 0; i = p.free.next(i+1, nil) {
		if p.refused[l.devices[i].ID].times > 0 {
			refused = append(refused, i)
		} else {
			candidates = append(candidates, i)
		}
	}
	switch l.ordering.Order {
	case Oldest:
		slices.SortFunc(candidates, p.age)
	case Pack:
		candidates = packedOneByOne(l.groupsOf(candidates, nil))
	case Spread:
		candidates = spread(l.groupsOf(candidates, nil), len(candidates)) // also right where one container takes several
	}
	for _, i := range append(candidates, refused...) {
		ids = append(ids, l.devices[i].ID)
	}
	return ids
}

// age compares two devices by how long they have been free, the longest time first.
func (p *Resource) age(i, j int) int {
	return cmp.Or(cmp.Compare(p.freed[i], p.freed[j]), cmp.Compare(i, j))
}

// packedOneByOne returns all devices, those of the smallest group first.
func packedOneByOne(groups []*group) (picked []int) {
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(len(a.left), len(b.left)), cmp.Compare(a.left[0], b.left[0]))
	})
	for _, g := range groups {
		picked = append(picked, g.left...)
	}
	return picked
}

// few is up to how many devices are inserted one by one, which takes no sorting of all candidates.
const few = 64

// oldest takes the n devices that have been free for the longest time.
func (p *Resource) oldest(candidates []int, n int) (picked []int) {
	if n > few {
		slices.SortFunc(candidates, p.age)
		return candidates[:n]
	}
	for _, i := range candidates {
		if at, _ := slices.BinarySearchFunc(picked, i, p.age); at < n {
			picked = slices.Insert(picked[:min(len(picked), n-1)], at, i)
		}
	}
	return picked
}

// packed takes n devices from the smallest group that has as many, and otherwise all of the largest group first.
func packed(groups []*group, n int) (picked []int) {
	slices.SortFunc(groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(len(b.left), len(a.left)), cmp.Compare(a.left[0], b.left[0]))
	})
	for n > 0 {
		best := groups[0]
		for _, g := range groups { // descending
			if len(g.left) < n {
				break
			}
			if len(g.left) < len(best.left) {
				best = g
			}
		}
		take := min(n, len(best.left))
		picked = append(picked, best.left[:take]...)
		n -= take
		groups = groups[1:] // best, or nothing more is needed
	}
	return picked
}

// spread takes n devices one by one: from the groups that have given the fewest, and among these from the one with the most
// devices left.
func spread(groups []*group, n int) (picked []int) {
	q := spreading(groups)
	heap.Init(&q)
	for range n {
		g := q[0]
		picked = append(picked, g.left[0])
		g.left, g.taken = g.left[1:], g.taken+1
		if len(g.left) == 0 {
			heap.Pop(&q)
		} else {
			heap.Fix(&q, 0)
		}
	}
	return picked
}

// spreading is a heap of groups with devices left; the next one to take from is the first.
type spreading []*group

func (q spreading) Len() int      { return len(q) }
func (q spreading) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q spreading) Less(i, j int) bool {
	a, b := q[i], q[j]
	return cmp.Or(cmp.Compare(a.taken, b.taken), cmp.Compare(len(b.left), len(a.left)), cmp.Compare(a.left[0], b.left[0])) < 0
}

// Push is part of heap.Interface.
func (q *spreading) Push(g any) { *q = append(*q, g.(*group)) }

// Pop is part of heap.Interface.
func (q *spreading) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}
