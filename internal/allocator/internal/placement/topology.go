package placement

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
)

// A Policy selects the handling of a container whose devices cannot be near each other. The values and their meaning are
// those of the kubelet's topology manager.
type Policy string

// The policies.
const (
	NoPolicy   Policy = "none"             // ignore topology
	BestEffort Policy = "best-effort"      // as near as currently possible
	Restricted Policy = "restricted"       // as near as with all listed devices free, or wait
	SingleNUMA Policy = "single-numa-node" // near one NUMA node, or wait
)

// A Scope selects the devices that must be near each other: a container's or a pod's.
type Scope string

// The scopes.
const (
	PerContainer Scope = "container"
	PerPod       Scope = "pod"
)

// Topology is the policy and scope of NUMA placement.
type Topology struct {
	Policy Policy
	Scope  Scope
}

// enabled reports whether placement matters.
func (t Topology) enabled() bool { return t.Policy != "" && t.Policy != NoPolicy }

// strict reports whether a container waits rather than have its devices apart.
func (t Topology) strict() bool { return t.Policy == Restricted || t.Policy == SingleNUMA }

// nodes is a set of NUMA nodes, ascending; nil: placement does not matter.
type nodes []int

// A place is a group of devices of one resource near the same NUMA nodes, ascending. Mostly it is one node.
type place struct {
	nodes []int
	count int // available devices there
}

// A need is one resource's demand on a set of NUMA nodes: want devices near any of them, and every certain device.
type need struct {
	want   int
	places []place
	must   [][]int      // the nodes of each certain device that has a place
	order  ledger.Order // Pack: nodes with few devices come first; Spread: those with many; else by number
}

// byNode returns the number of available devices by NUMA node.
func (n need) byNode() map[int]int {
	at := map[int]int{}
	for _, p := range n.places {
		for _, node := range p.nodes {
			at[node] += p.count
		}
	}
	return at
}

// counts returns byNode for messages.
func (n need) counts() string {
	const most = 8 // nodes listed
	at := n.byNode()
	var all []string
	for i, node := range slices.Sorted(maps.Keys(at)) {
		if i == most {
			all = append(all, "...")
			break
		}
		all = append(all, fmt.Sprintf("%d on %d", at[node], node))
	}
	return strings.Join(all, ", ")
}

// maxWork bounds the cost of one plan in places examined: about a millisecond. Typical requests on machines of a few nodes
// take hundreds or thousands. When maxWork is used up, the plan tries no further set of nodes but a greedy choice, which ends
// without a result after as much work again.
const maxWork = 300_000

// requestWork is the fixed part of maxWork that choosing one request's devices costs after another choice has failed. The
// rest depends on the number of devices.
const requestWork = 300

// A search finds the smallest sets of NUMA nodes that satisfy all needs. Sets of one size are ordered like the kubelet's bit
// masks: compared from the highest node down, lower nodes first. Where a need has an order, that order counts instead of the nodes'
// numbers.
type search struct {
	needs []need
	work  *int        // the rest of maxWork; shared by all searches of one plan
	nodes []int       // the nodes that occur in any need, in the order in which they are tried
	index map[int]int // of each node in nodes

	touches [][]touch // by index of node: the places there
	covered [][]int   // by need and place: how many of the chosen nodes are there
	sums    []int     // by need: devices near the chosen nodes
	chosen  []int     // indexes of nodes, descending

	best  [][]int // by need: the most that j nodes can add is best[i][j]
	below [][]int // by need: the most that all nodes below an index can add
	joint []int64 // like best for all needs together, each scaled to share
}

// A touch is a place of a need at a node.
type touch struct{ need, place int }

// orderWork is what an order other than Lowest costs for each free device and each group.
const orderWork = 4

// share stands for a whole need in search.joint.
const share = 1 << 20

func newSearch(needs []need, work *int) *search {
	s := &search{needs: needs, work: work, sums: make([]int, len(needs))}
	if s.exhausted() {
		return s
	}
	at := map[int]int{}
	see := func(nodes []int) {
		for _, n := range nodes {
			if _, seen := at[n]; !seen {
				at[n] = 0
				s.nodes = append(s.nodes, n)
			}
		}
	}
	for _, n := range needs {
		for _, p := range n.places {
			if p.count > 0 {
				see(p.nodes)
			}
		}
		for _, nodes := range n.must {
			see(nodes)
		}
	}
	s.sortNodes()
	for i, n := range s.nodes {
		at[n] = i
	}
	s.index = at
	s.touches = make([][]touch, len(s.nodes))
	s.covered = make([][]int, len(needs))
	adds := make([][]int, len(needs)) // by need and node
	for i, n := range needs {
		s.covered[i] = make([]int, len(n.places))
		adds[i] = make([]int, len(s.nodes))
		for j, p := range n.places {
			if p.count == 0 {
				continue
			}
			for _, node := range p.nodes {
				s.touches[at[node]] = append(s.touches[at[node]], touch{i, j})
				adds[i][at[node]] += p.count
			}
			*work -= len(p.nodes)
		}
	}
	joint := make([]int, len(s.nodes))
	for i, n := range needs {
		below := make([]int, len(s.nodes)+1)
		for m, add := range adds[i] {
			below[m+1] = below[m] + add
			if n.want > 0 {
				joint[m] += (min(add, n.want)*share + n.want - 1) / n.want
			}
		}
		s.below = append(s.below, below)
		s.best = append(s.best, sumsOfLargest(adds[i]))
	}
	for _, sum := range sumsOfLargest(joint) {
		s.joint = append(s.joint, int64(sum))
	}
	return s
}

// sortNodes sorts the nodes as the first need with an order wants, else by their numbers.
func (s *search) sortNodes() {
	slices.Sort(s.nodes)
	i := slices.IndexFunc(s.needs, func(n need) bool { return n.order != "" })
	if i < 0 {
		return
	}
	available := s.needs[i].byNode()
	sign := 1
	if s.needs[i].order == ledger.Spread {
		sign = -1
	}
	slices.SortStableFunc(s.nodes, func(a, b int) int { return sign * (available[a] - available[b]) })
}

// sumsOfLargest returns the sum of the n largest values for each n. It sorts values.
func sumsOfLargest(values []int) []int {
	slices.Sort(values)
	slices.Reverse(values)
	sums := make([]int, len(values)+1)
	for i, v := range values {
		sums[i+1] = sums[i] + v
	}
	return sums
}

// sets yields the sets of at most limit nodes that satisfy all needs, smaller ones first. The caller may keep a yielded set.
// When the work is used up, sets yields at most one more, from a greedy choice.
func (s *search) sets(limit int) iter.Seq[nodes] {
	return func(yield func(nodes) bool) {
		if s.exhausted() {
			return
		}
		for size := 0; size <= min(limit, len(s.nodes)); size++ {
			if !s.extend(len(s.nodes), size, yield) {
				return
			}
		}
		if *s.work <= 0 {
			if set, found := s.greedy(); found && len(set) <= limit {
				yield(set)
			}
		}
	}
}

// extend adds more nodes below an index in every way, and yields the sets that satisfy all needs. It returns false when yield
// wants no further set.
func (s *search) extend(below, more int, yield func(nodes) bool) bool {
	if !s.promises(below, more) {
		return true
	}
	if more == 0 {
		if !s.satisfied() {
			return true
		}
		return yield(s.set())
	}
	for m := more - 1; m < below; m++ {
		if *s.work <= 0 {
			return true
		}
		s.add(m)
		goOn := s.extend(m, more-1, yield)
		s.remove(m)
		if !goOn {
			return false
		}
	}
	return true
}

// promises reports whether more nodes below an index may satisfy all needs. A false result is always right.
func (s *search) promises(below, more int) bool {
	left := int64(0)
	for i, n := range s.needs {
		lack := n.want - s.sums[i]
		if lack <= 0 {
			continue
		}
		if lack > s.best[i][min(more, len(s.nodes))] || lack > s.below[i][below] {
			return false
		}
		left += int64(lack) * share / int64(n.want)
	}
	return left <= s.joint[min(more, len(s.nodes))]
}

func (s *search) satisfied() bool {
	for i, n := range s.needs {
		if s.sums[i] < n.want {
			return false
		}
		for _, nodes := range n.must {
			if !slices.ContainsFunc(s.chosen, func(m int) bool { return slices.Contains(nodes, s.nodes[m]) }) {
				return false
			}
		}
	}
	return true
}

func (s *search) add(m int) {
	s.chosen = append(s.chosen, m)
	for _, t := range s.touches[m] {
		s.covered[t.need][t.place]++
		if s.covered[t.need][t.place] == 1 {
			s.sums[t.need] += s.needs[t.need].places[t.place].count
		}
	}
	*s.work -= 1 + len(s.touches[m])
}

func (s *search) remove(m int) {
	s.chosen = s.chosen[:len(s.chosen)-1]
	for _, t := range s.touches[m] {
		s.covered[t.need][t.place]--
		if s.covered[t.need][t.place] == 0 {
			s.sums[t.need] -= s.needs[t.need].places[t.place].count
		}
	}
}

// greedy repeatedly takes the node that adds most until all needs are satisfied. The result is not always the smallest, but
// takes one pass over the nodes for each node chosen. greedy returns false if it finds no set.
func (s *search) greedy() (nodes, bool) {
	defer func() {
		for len(s.chosen) > 0 {
			s.remove(s.chosen[len(s.chosen)-1])
		}
	}()
	for _, n := range s.needs {
		for _, nodes := range n.must {
			if !slices.ContainsFunc(s.chosen, func(m int) bool { return slices.Contains(nodes, s.nodes[m]) }) {
				s.add(s.index[nodes[0]])
			}
		}
	}
	for !s.satisfied() {
		if s.exhausted() {
			return nil, false
		}
		best, most := -1, 0
		for m := range s.nodes {
			if slices.Contains(s.chosen, m) {
				continue
			}
			if gain := s.gain(m); gain > most {
				best, most = m, gain
			}
		}
		if best < 0 {
			return nil, false
		}
		s.add(best)
	}
	return s.set(), true
}

// set returns the chosen nodes.
func (s *search) set() nodes {
	set := make(nodes, len(s.chosen))
	for i, m := range s.chosen {
		set[i] = s.nodes[m]
	}
	slices.Sort(set)
	return set
}

// gain returns how much a node would add to the unmet needs, each need scaled to share.
func (s *search) gain(m int) int {
	adds := make([]int, len(s.needs))
	*s.work -= len(s.touches[m])
	for _, t := range s.touches[m] {
		if s.covered[t.need][t.place] == 0 {
			adds[t.need] += s.needs[t.need].places[t.place].count
		}
	}
	gain := 0
	for i, n := range s.needs {
		if lack := n.want - s.sums[i]; lack > 0 {
			gain += min(adds[i], lack) * share / n.want
		}
	}
	return gain
}

// exhausted reports whether no work is left, not even for a greedy choice.
func (s *search) exhausted() bool { return *s.work < -maxWork }

// first returns the first set of at most limit nodes that satisfies all needs, or false if none does.
func (s *search) first(limit int) (nodes, bool) {
	for set := range s.sets(limit) {
		return set, true
	}
	return nil, false
}

// fewest returns a smallest set of nodes that satisfies all needs, or false if none does.
func (s *search) fewest() (nodes, bool) { return s.first(len(s.nodes)) }
