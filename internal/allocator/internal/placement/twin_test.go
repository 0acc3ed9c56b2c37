package placement

import (
	"cmp"
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
)

// The twin is a second, slow and obvious plan: it examines every set of NUMA nodes and every device repeatedly.

// A world is the input of a plan, as the twin sees it.
type world struct {
	devices map[device.ResourceName][]device.Device // by ID
	taken   map[device.ResourceName]map[device.ID]bool
	prefers map[device.ResourceName]bool
	refused map[device.ResourceName]map[device.ID]int // needMode often
	order   map[device.ResourceName]ledger.Ordering
	freed   map[device.ResourceName][]device.ID // in this order
}

func (w world) resources() Resources {
	l := newLedger()
	for r, devices := range w.devices {
		// A device that is cordoned is, to a plan, as one that is not healthy.
		devices, cordons := slices.Clone(devices), map[device.ID]device.Cordon{}
		for i, d := range devices {
			if !d.Healthy && i%2 == 0 {
				devices[i].Healthy, cordons[d.ID] = true, device.Cordon{}
			}
		}
		l.Accept(r, device.Offer{Inventory: device.Inventory{Resource: r, Devices: devices}, Reported: true, Prefers: w.prefers[r]}, ledger.NewListing(devices, cordons, w.order[r], nil), nil)
		for _, id := range w.freed[r] {
			hold(l, r, []device.ID{id}, "gone")
			l.Release("gone", ledger.Devices{r: {id}})
		}
		hold(l, r, slices.Sorted(maps.Keys(w.taken[r])), "others")
		for id, times := range w.refused[r] {
			for range times {
				l.Refuse(r, id, 1, "no", ledger.Suspected, time.Now())
			}
		}
	}
	return l.Resources
}

type twin struct {
	world
	Input
	out map[string]device.Choice
}

// A state is the twin's assignments so far: by resource, the taken devices and those that init containers hand on.
type state struct {
	gone, reusable map[device.ResourceName]map[device.ID]bool
}

func (s state) clone() state {
	c := state{map[device.ResourceName]map[device.ID]bool{}, map[device.ResourceName]map[device.ID]bool{}}
	for r := range s.gone {
		c.gone[r], c.reusable[r] = maps.Clone(s.gone[r]), maps.Clone(s.reusable[r])
	}
	return c
}

const twinNodes = 5

// byLetter groups devices by the first letters of their IDs.
var byLetter = regexp.MustCompile("^([a-z])[0-9]")

func has(mask int, d device.Device) bool {
	return slices.ContainsFunc(d.NUMA, func(n int) bool { return mask&(1<<n) != 0 })
}

// masks returns all sets of nodes: smaller ones first, then in the order of their numbers, in which the nodes stand in this order.
func masks(nodes []int) []int {
	all := make([]int, 1<<twinNodes)
	for i := range all {
		for at, node := range nodes {
			if i&(1<<at) != 0 {
				all[i] |= 1 << node
			}
		}
	}
	slices.SortStableFunc(all, func(a, b int) int { return bits.OnesCount(uint(a)) - bits.OnesCount(uint(b)) })
	return all
}

// nodes returns the order of the nodes: by the devices that the first resource with such an order has there, or by number.
func (t *twin) nodes(resources []device.ResourceName, from map[device.ResourceName][]device.Device) []int {
	var all []int
	for n := range twinNodes {
		all = append(all, n)
	}
	for _, r := range resources {
		if o := t.order[r]; t.placed(r) && o.Group == nil && (o.Order == ledger.Pack || o.Order == ledger.Spread) {
			slices.SortStableFunc(all, func(a, b int) int {
				return map[ledger.Order]int{ledger.Pack: 1, ledger.Spread: -1}[o.Order] * (count(1<<a, from[r]) - count(1<<b, from[r]))
			})
			break
		}
	}
	return all
}

// count counts the devices near any of the nodes.
func count(mask int, from []device.Device) (n int) {
	for _, d := range from {
		if has(mask, d) {
			n++
		}
	}
	return n
}

func (t *twin) placed(r device.ResourceName) bool {
	return slices.ContainsFunc(t.devices[r], func(d device.Device) bool { return len(d.NUMA) > 0 })
}

// split returns a container's certain devices of a resource, and the candidates for the rest.
func (t *twin) split(d device.Demand, r device.ResourceName, s state) (certain, from []device.Device, handed, ok bool) {
	n := d.Wants[r]
	var hand, free []device.Device
	for _, dev := range t.devices[r] {
		switch {
		case !dev.Healthy || !selects(d, r, dev):
		case s.reusable[r][dev.ID]:
			hand = append(hand, dev)
		case !t.taken[r][dev.ID] && !s.gone[r][dev.ID]:
			free = append(free, dev)
		}
	}
	switch {
	case len(hand) > n:
		return nil, hand, true, true
	case len(hand)+len(free) < n:
		return nil, nil, false, false
	}
	return hand, free, false, true
}

// selects reports whether a container may have a device.
func selects(d device.Demand, r device.ResourceName, dev device.Device) bool {
	limit, limited := d.Select[r]
	return !limited || limit.Selects(dev.ID)
}

// meets reports whether the rest can be chosen near the nodes, and whether the certain devices are near them too.
func (t *twin) meets(mask, rest int, certain, from []device.Device) bool {
	for _, d := range certain {
		if len(d.NUMA) > 0 && !has(mask, d) {
			return false
		}
	}
	return count(mask, from) >= rest
}

func (t *twin) run(i int, s state, pod int) string {
	if i == len(t.Demand.Demands) {
		return ""
	}
	d := t.Demand.Demands[i]
	resources := slices.Sorted(maps.Keys(d.Wants))
	type part struct {
		certain, from []device.Device
		rest          int
		handed        bool // from init containers: plugins are not asked
	}
	parts := map[device.ResourceName]part{}
	for _, r := range resources {
		certain, from, handed, ok := t.split(d, r, s)
		if !ok {
			return "too few"
		}
		parts[r] = part{certain, from, d.Wants[r] - len(certain), handed}
	}
	from := map[device.ResourceName][]device.Device{}
	for r, p := range parts {
		from[r] = p.from
	}
	nodes := t.nodes(resources, from)
	satisfies := func(mask int, lenient bool) bool {
		for _, r := range resources {
			p := parts[r]
			if !t.placed(r) {
				continue
			}
			rest := p.rest
			if lenient {
				placed := 0
				for _, d := range p.from {
					if len(d.NUMA) > 0 {
						placed++
					}
				}
				rest = min(rest, placed)
			}
			if !t.meets(mask, rest, p.certain, p.from) {
				return false
			}
		}
		return true
	}
	try := func(mask int) string {
		next := s.clone()
		choice := device.Choice{}
		for _, r := range resources {
			p := parts[r]
			_, limited := d.Select[r]
			ids := t.choose(r, limited, t.prefers[r] && !p.handed, t.Preferences[PreferenceKey{d.Container.Name, r}], mask, p.certain, p.from, p.rest)
			choice[r] = ids
			for _, id := range ids {
				next.gone[r][id] = true
				if d.Kind == device.Init {
					next.reusable[r][id] = true
				} else {
					delete(next.reusable[r], id)
				}
			}
		}
		t.out[d.Container.Name] = choice
		return t.run(i+1, next, pod)
	}
	switch {
	case !t.Topology.enabled():
		return try(-1)
	case t.Topology.Scope == PerPod:
		for _, r := range resources {
			// The nodes are chosen without the containers' limits.
			if _, limited := d.Select[r]; limited && t.Topology.strict() && pod > 0 && t.placed(r) && count(pod, parts[r].from) < parts[r].rest {
				return "apart"
			}
		}
		return try(pod)
	case !t.Topology.strict():
		for _, mask := range masks(nodes) {
			if satisfies(mask, true) {
				return try(mask)
			}
		}
		panic("all nodes do not suffice")
	}
	limit := 1
	if t.Topology.Policy == Restricted {
		limit = t.ideal(d.Wants, func(r device.ResourceName, dev device.Device) bool { return selects(d, r, dev) })
	}
	first := ""
	for _, mask := range masks(nodes) {
		if bits.OnesCount(uint(mask)) <= limit && satisfies(mask, false) {
			why := try(mask)
			if why == "" {
				return ""
			}
			first = cmp.Or(first, why)
		}
	}
	return cmp.Or(first, "apart")
}

// ideal returns how many nodes would suffice if all listed devices were free; -1: no number would.
func (t *twin) ideal(wants map[device.ResourceName]int, may func(device.ResourceName, device.Device) bool) int {
	for _, mask := range masks(t.nodes(nil, nil)) {
		ok := true
		for r, n := range wants {
			from := slices.DeleteFunc(slices.Clone(t.devices[r]), func(d device.Device) bool { return !may(r, d) })
			ok = ok && (!t.placed(r) || t.meets(mask, n, nil, from))
		}
		if ok {
			return bits.OnesCount(uint(mask))
		}
	}
	return -1
}

// podMask returns the set of nodes for the pod as a whole.
func (t *twin) podMask() (int, string) {
	requests := t.Demand.Requests()
	free := map[device.ResourceName][]device.Device{}
	for r := range requests {
		for _, d := range t.devices[r] {
			if d.Healthy && !t.taken[r][d.ID] {
				free[r] = append(free[r], d)
			}
		}
		if len(free[r]) < requests[r] {
			return 0, "too few"
		}
	}
	limit := twinNodes
	switch t.Topology.Policy {
	case SingleNUMA:
		limit = 1
	case Restricted:
		limit = t.ideal(requests, func(device.ResourceName, device.Device) bool { return true })
	}
	for _, mask := range masks(t.nodes(slices.Sorted(maps.Keys(requests)), free)) {
		ok := bits.OnesCount(uint(mask)) <= limit
		for r, n := range requests {
			if !t.Topology.strict() {
				placed := 0
				for _, d := range free[r] {
					if len(d.NUMA) > 0 {
						placed++
					}
				}
				n = min(n, placed)
			}
			ok = ok && (!t.placed(r) || t.meets(mask, n, nil, free[r]))
		}
		if ok {
			return mask, ""
		}
	}
	return 0, "apart"
}

// choose picks the devices: -1 for nodes that do not matter.
func (t *twin) choose(r device.ResourceName, limited, asked bool, advice []device.ID, mask int, certain, from []device.Device, rest int) []device.ID {
	var ids []device.ID
	for _, c := range certain {
		ids = append(ids, c.ID)
	}
	want := len(ids) + rest
	pick := func(order []device.ID, ok func(device.Device) bool) {
		for _, id := range order {
			at := slices.IndexFunc(from, func(d device.Device) bool { return d.ID == id })
			if at >= 0 && len(ids) < want && ok(from[at]) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	// in picks in the resource's order, and refused devices last.
	in := func(ok func(device.Device) bool) {
		var good, others, refused []device.Device
		for _, d := range from {
			switch {
			case slices.Contains(ids, d.ID) || !ok(d):
			case t.refused[r][d.ID] > 0:
				refused = append(refused, d)
			case !limited && t.named(r, d):
				others = append(others, d)
			default:
				good = append(good, d)
			}
		}
		slices.SortStableFunc(refused, func(a, b device.Device) int { return t.refused[r][a.ID] - t.refused[r][b.ID] })
		for _, class := range [][]device.Device{good, others} {
			given := map[string]int{}
			for _, d := range t.devices[r] {
				if t.order[r].Order == ledger.Spread && slices.Contains(ids, d.ID) {
					given[t.group(r, d)]++
				}
			}
			for len(ids) < want && len(class) > 0 {
				at := t.best(r, class, want-len(ids), given)
				given[t.group(r, class[at])]++
				ids = append(ids, class[at].ID)
				class = slices.Delete(class, at, at+1)
			}
		}
		for _, d := range refused[:min(len(refused), want-len(ids))] {
			ids = append(ids, d.ID)
		}
	}
	near := func(d device.Device) bool { return mask > 0 && has(mask, d) }
	close := 0
	if mask > 0 {
		close = count(mask, from)
	}
	if rest < close {
		if asked {
			pick(advice, near)
		}
		// as few of the nodes as will do for this resource alone
		var had, left []device.Device
		for _, d := range slices.Concat(certain, from) {
			if slices.Contains(ids, d.ID) {
				had = append(had, d)
			} else {
				left = append(left, d)
			}
		}
		had = slices.DeleteFunc(had, func(d device.Device) bool { return !has(mask, d) })
		for _, fewer := range masks(t.nodes([]device.ResourceName{r}, map[device.ResourceName][]device.Device{r: left})) {
			if fewer&mask == fewer && t.meets(fewer, want-len(ids), had, left) {
				in(func(d device.Device) bool { return has(fewer, d) })
				break
			}
		}
		in(near)
	} else {
		in(near)
		if asked && len(ids) < want && want-len(ids) < len(from)-close {
			pick(advice, func(device.Device) bool { return true })
		}
		if mask >= 0 {
			in(func(d device.Device) bool { return len(d.NUMA) > 0 })
		}
		in(func(device.Device) bool { return true })
	}
	slices.Sort(ids)
	return ids
}

// named reports whether a container of the pod names a device.
func (t *twin) named(r device.ResourceName, dev device.Device) bool {
	return slices.ContainsFunc(t.Demand.Demands, func(d device.Demand) bool {
		return len(d.Select[r].Use) > 0 && d.Select[r].Selects(dev.ID)
	})
}

// best returns which of the devices to take next, when n are still to take. given are those taken by group.
func (t *twin) best(r device.ResourceName, from []device.Device, n int, given map[string]int) int {
	left, first := map[string]int{}, map[string]int{}
	for i, d := range from {
		g := t.group(r, d)
		left[g]++
		if left[g] == 1 {
			first[g] = i
		}
	}
	better := func(a, b string) bool { return first[a] < first[b] } // of two groups
	switch t.order[r].Order {
	case ledger.Oldest:
		freed := func(d device.Device) int {
			for i, id := range slices.Backward(t.freed[r]) {
				if id == d.ID {
					return i + 1
				}
			}
			return 0
		}
		at := 0
		for i, d := range from {
			if freed(d) < freed(from[at]) {
				at = i
			}
		}
		return at
	case ledger.Spread:
		better = func(a, b string) bool {
			return given[a] < given[b] || given[a] == given[b] && (left[a] > left[b] || left[a] == left[b] && first[a] < first[b])
		}
	case ledger.Pack: // the smallest that suffices, else the largest, and from the one that was begun
		better = func(a, b string) bool {
			open := func(g string) bool { return given[g] > 0 }
			enough := func(g string) bool { return left[g] >= n }
			switch {
			case open(a) != open(b):
				return open(a)
			case enough(a) != enough(b):
				return enough(a)
			case left[a] != left[b]:
				return (left[a] < left[b]) == enough(a)
			}
			return first[a] < first[b]
		}
	}
	best := t.group(r, from[0])
	for g := range left {
		if better(g, best) {
			best = g
		}
	}
	return first[best]
}

// group names the group of a device.
func (t *twin) group(r device.ResourceName, d device.Device) string {
	switch o := t.order[r]; {
	case o.Order == "" || o.Order == ledger.Lowest:
		return ""
	case o.Group == nil:
		return fmt.Sprint(d.NUMA)
	}
	return string(d.ID[:1])
}

// id returns the ID of a device. Three have the same first letter.
func id(i int) device.ID { return device.ID(fmt.Sprintf("%c%02d", 'a'+i/3, i)) }

func randomWorld(random *rand.Rand) (world, Input) {
	w := world{map[device.ResourceName][]device.Device{}, map[device.ResourceName]map[device.ID]bool{}, map[device.ResourceName]bool{},
		map[device.ResourceName]map[device.ID]int{}, map[device.ResourceName]ledger.Ordering{}, map[device.ResourceName][]device.ID{}}
	refusing := random.IntN(3) == 0
	resources := []device.ResourceName{"v.com/a", "v.com/b", "v.com/c"}[:1+random.IntN(3)]
	for _, r := range resources {
		places := random.IntN(4) // 0: this resource has none
		w.taken[r], w.refused[r] = map[device.ID]bool{}, map[device.ID]int{}
		w.prefers[r] = random.IntN(3) == 0
		w.order[r] = ledger.Ordering{Order: []ledger.Order{"", ledger.Lowest, ledger.Pack, ledger.Pack, ledger.Spread, ledger.Spread, ledger.Oldest}[random.IntN(7)], Group: []*regexp.Regexp{nil, byLetter}[random.IntN(2)]}
		for range random.IntN(12) {
			w.freed[r] = append(w.freed[r], id(random.IntN(9)))
		}
		for i := range 1 + random.IntN(9) {
			d := device.Device{ID: id(i), Healthy: random.IntN(8) > 0}
			if places > 0 && random.IntN(6) > 0 {
				d.NUMA = []int{random.IntN(twinNodes)}
				if other := random.IntN(twinNodes); places == 3 && other > d.NUMA[0] {
					d.NUMA = append(d.NUMA, other)
				}
			}
			if random.IntN(4) == 0 {
				w.taken[r][d.ID] = true
			} else if refusing && random.IntN(3) == 0 {
				w.refused[r][d.ID] = 1 + random.IntN(3)
			}
			w.devices[r] = append(w.devices[r], d)
		}
	}
	q := Input{Preferences: Preferences{}, Topology: Topology{
		Policy: []Policy{NoPolicy, BestEffort, BestEffort, Restricted, SingleNUMA}[random.IntN(5)],
		Scope:  []Scope{PerContainer, PerContainer, PerPod}[random.IntN(3)],
	}}
	q.Demand.Pod.UID = "pod"
	for i := range 1 + random.IntN(4) {
		d := device.Demand{
			Container: device.Container{Pod: "pod", Name: fmt.Sprintf("c%d", i)},
			Kind:      []device.Kind{device.Init, device.Sidecar, device.App, device.App}[random.IntN(4)],
			Wants:     map[device.ResourceName]int{}, Select: map[device.ResourceName]device.Selection{},
		}
		for _, r := range resources {
			if random.IntN(3) > 0 {
				d.Wants[r] = 1 + random.IntN(3)
				switch random.IntN(8) {
				case 0:
					d.Select[r] = device.Selection{Use: []string{"a*", "c*"}}
				case 1:
					d.Select[r] = device.Selection{Avoid: []string{"a*", string(id(random.IntN(9)))}}
				}
				if random.IntN(2) == 0 {
					for range random.IntN(5) {
						q.Preferences[PreferenceKey{d.Container.Name, r}] = append(q.Preferences[PreferenceKey{d.Container.Name, r}], id(random.IntN(11)))
					}
				}
			}
		}
		if len(d.Wants) > 0 {
			q.Demand.Demands = append(q.Demand.Demands, d)
		}
	}
	return w, q
}

// plan treats refused devices as taken, and as free only if the pod cannot be served otherwise.
func (t *twin) plan() string {
	careful := &twin{world: t.world, Input: t.Input, out: map[string]device.Choice{}}
	careful.taken = map[device.ResourceName]map[device.ID]bool{}
	for r := range t.taken {
		careful.taken[r] = maps.Clone(t.taken[r])
		for id := range t.refused[r] {
			careful.taken[r][id] = true
		}
	}
	if careful.planOnce() == "" {
		maps.Copy(t.out, careful.out)
		return ""
	}
	return t.planOnce()
}

func (t *twin) planOnce() string {
	start := state{map[device.ResourceName]map[device.ID]bool{}, map[device.ResourceName]map[device.ID]bool{}}
	for r := range t.devices {
		start.gone[r], start.reusable[r] = map[device.ID]bool{}, map[device.ID]bool{}
	}
	if t.Topology.strict() {
		anywhere := *t
		anywhere.Topology, anywhere.Preferences, anywhere.prefers, anywhere.out = Topology{}, nil, nil, map[string]device.Choice{}
		if why := anywhere.run(0, start.clone(), 0); why != "" {
			return why
		}
	}
	pod := 0
	if t.Topology.enabled() && t.Topology.Scope == PerPod {
		mask, why := t.podMask()
		if why != "" {
			return why
		}
		pod = mask
	}
	return t.run(0, start, pod)
}

// On small random worlds, others in each run, plan and its twin return the same result.
func TestPlanAgainstTwin(t *testing.T) {
	t.Parallel()
	const plans = 6000
	outcomes, first := map[string]int{}, rand.Uint64()
	for n := range uint64(plans) {
		seed := first + n
		w, q := randomWorld(rand.New(rand.NewPCG(seed, 7)))
		tw := &twin{world: w, Input: q, out: map[string]device.Choice{}}
		why := tw.plan()
		got, no := Plan(q, w.resources())
		outcome := "served"
		if no != nil {
			outcome = map[device.Reason]string{device.NotEnoughDevices: "too few", device.DeviceUnhealthy: "too few", device.NoSuchDevice: "too few", device.TopologyMismatch: "apart"}[no.Reason]
			if why != outcome {
				t.Fatalf("seed %d: %v, and the twin says %q\n%+v\n%+v", seed, no, why, w, q)
			}
		} else if why != "" || len(q.Demand.Demands) > 0 && !reflect.DeepEqual(got.Choices, tw.out) {
			t.Fatalf("seed %d: %v, and the twin says %q %v\n%+v\n%+v", seed, got.Choices, why, tw.out, w, q)
		}
		outcomes[string(q.Topology.Policy)+" "+outcome]++
		again, _ := Plan(q, w.resources())
		if !reflect.DeepEqual(got, again) {
			t.Fatalf("seed %d: %+v, and then %+v", seed, got, again)
		}
	}
	for _, outcome := range []string{"none served", "best-effort served", "best-effort too few", "restricted apart", "restricted served", "single-numa-node apart", "single-numa-node served"} {
		if outcomes[outcome] < 15 {
			t.Errorf("only %d of %d random plans, from seed %d, were %q: %v", outcomes[outcome], plans, first, outcome, outcomes)
		}
	}
}
