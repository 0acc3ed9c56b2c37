package placement

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// A group is the candidates of one request in one group, ascending. There is at least one.
type group struct {
	left  []int // not picked yet
	taken int   // picked for this request
}

// groupsOf returns the groups of candidates, with how many devices were picked from each before.
func groupsOf(l *ledger.Listing, candidates []int, picked []device.ID) []*group {
	taken := map[int]int{}
	for _, id := range picked {
		if i, listed := l.At(id); listed {
			taken[l.Group(i)]++
		}
	}
	ends := make([]int, l.Groups()+1) // of each group in sorted
	for _, i := range candidates {
		ends[l.Group(i)+1]++
	}
	for g := range l.Groups() {
		ends[g+1] += ends[g]
	}
	sorted, next := make([]int, len(candidates)), slices.Clone(ends)
	for _, i := range candidates {
		g := l.Group(i)
		sorted[next[g]] = i
		next[g]++
	}
	var all []*group
	for g := range l.Groups() {
		if ends[g] < ends[g+1] {
			all = append(all, &group{sorted[ends[g]:ends[g+1]], taken[g]})
		}
	}
	return all
}

// ordered reports whether a resource's order is another than that of the IDs.
func ordered(resource *ledger.Resource) bool {
	o := resource.Listing().Ordering()
	return o.Order == ledger.Oldest || o.Grouped()
}

// sorted returns the first n candidates in the resource's order. The candidates are positions, ascending. The container has
// the devices in picked already.
func sorted(resource *ledger.Resource, candidates []int, n int, picked []device.ID) []int {
	l := resource.Listing()
	if n < len(candidates) && n > 0 {
		switch l.Ordering().Order {
		case ledger.Oldest:
			return oldest(candidates, n, age(resource))
		case ledger.Pack:
			return packed(groupsOf(l, candidates, nil), n)
		case ledger.Spread:
			return spread(groupsOf(l, candidates, picked), n)
		}
	}
	return candidates[:min(n, len(candidates))]
}

// Order returns the free devices in the order in which another program should take them, for one container or several; nil: that of their IDs. Devices that the plugin has recently refused come last.
func Order(resource *ledger.Resource) []device.ID {
	l := resource.Listing()
	if !ordered(resource) && !resource.AnyRefused() {
		return nil
	}
	var candidates, refused []int
	free := resource.Free()
	for i := free.Next(0, bitset.Set{}); i >= 0; i = free.Next(i+1, bitset.Set{}) {
		if resource.TimesRefused(l.Devices()[i].ID) > 0 {
			refused = append(refused, i)
		} else {
			candidates = append(candidates, i)
		}
	}
	switch l.Ordering().Order {
	case ledger.Oldest:
		slices.SortFunc(candidates, age(resource))
	case ledger.Pack:
		candidates = packedOneByOne(groupsOf(l, candidates, nil))
	case ledger.Spread:
		candidates = spread(groupsOf(l, candidates, nil), len(candidates)) // also right where one container takes several
	}
	return lists.Map(append(candidates, refused...), func(i int) device.ID { return l.Devices()[i].ID })
}

// age compares two devices by how long they have been free, the longest time first.
func age(resource *ledger.Resource) func(i, j int) int {
	return func(i, j int) int { return cmp.Or(cmp.Compare(resource.Freed(i), resource.Freed(j)), i-j) }
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
func oldest(candidates []int, n int, age func(i, j int) int) (picked []int) {
	if n > few {
		slices.SortFunc(candidates, age)
		return candidates[:n]
	}
	for _, i := range candidates {
		if len(picked) == n {
			if age(picked[n-1], i) < 0 {
				continue
			}
			picked = picked[:n-1]
		}
		at, _ := slices.BinarySearchFunc(picked, i, age)
		picked = slices.Insert(picked, at, i)
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
