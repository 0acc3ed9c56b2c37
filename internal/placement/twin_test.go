package placement

import (
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// The twin is a second, slow and obvious plan: it examines every set of NUMA nodes and every device repeatedly.

// A world is the input of a plan, as the twin sees it.
type world struct {
	devices map[device.ResourceName][]device.Device // by ID
	taken   map[device.ResourceName]map[device.ID]bool
	prefers map[device.ResourceName]bool
	refused map[device.ResourceName]map[device.ID]int // needMode often
}

func (w world) resources() Resources {
	rs := Resources{}
	for r, devices := range w.devices {
		p := rs.of(r)
		// A device that is cordoned is, to a plan, as one that is not healthy.
		devices, cordons := slices.Clone(devices), map[device.ID]device.Cordon{}
		for i, d := range devices {
			if !d.Healthy && i%2 == 0 {
				devices[i].Healthy, cordons[d.ID] = true, device.Cordon{}
			}
		}
		p.Accept(device.Offer{Inventory: device.Inventory{Resource: r, Devices: devices}, Reported: true, Prefers: w.prefers[r]}, NewListing(devices, cordons, nil))
		p.Take(slices.Sorted(maps.Keys(w.taken[r])), "others")
		for id, times := range w.refused[r] {
			p.refused[id] = refusal{times: times}
		}
	}
	return rs
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

func has(mask int, d device.Device) bool {
	return slices.ContainsFunc(d.NUMA, func(n int) bool { return mask&(1<<n) != 0 })
}

// masks returns all sets of nodes: smaller ones first, then in the order of their numbers.
func masks() []int {
	all := make([]int, 1<<twinNodes)
	for i := range all {
		all[i] = i
	}
	slices.SortStableFunc(all, func(a, b int) int { return bits.OnesCount(uint(a)) - bits.OnesCount(uint(b)) })
	return all
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
		case !dev.Healthy:
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

// meets reports whether the rest can be chosen near the nodes, and whether the certain devices are near them too.
func (t *twin) meets(mask, rest int, certain, from []device.Device) bool {
	n := 0
	for _, d := range from {
		if has(mask, d) {
			n++
		}
	}
	for _, d := range certain {
		if len(d.NUMA) > 0 && !has(mask, d) {
			return false
		}
	}
	return n >= rest
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
			ids := t.choose(r, t.prefers[r] && !p.handed, t.Preferences[PreferenceKey{d.Container.Name, r}], mask, p.certain, p.from, p.rest)
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
		return try(pod)
	case !t.Topology.strict():
		for _, mask := range masks() {
			if satisfies(mask, true) {
				return try(mask)
			}
		}
		panic("all nodes do not suffice")
	}
	limit := 1
	if t.Topology.Policy == Restricted {
		limit = t.ideal(d.Wants)
	}
	for _, mask := range masks() {
		if bits.OnesCount(uint(mask)) <= limit && satisfies(mask, false) {
			if why := try(mask); why != "apart" {
				return why
			}
		}
	}
	return "apart"
}

// ideal returns how many nodes would suffice if all listed devices were free; -1: no number would.
func (t *twin) ideal(wants map[device.ResourceName]int) int {
	for _, mask := range masks() {
		ok := true
		for r, n := range wants {
			ok = ok && (!t.placed(r) || t.meets(mask, n, nil, t.devices[r]))
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
		limit = t.ideal(requests)
	}
	for _, mask := range masks() {
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
func (t *twin) choose(r device.ResourceName, asked bool, advice []device.ID, mask int, certain, from []device.Device, rest int) []device.ID {
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
	lowest := func() []device.ID {
		var order []device.ID
		for _, d := range from {
			order = append(order, d.ID)
		}
		slices.SortStableFunc(order, func(a, b device.ID) int { return t.refused[r][a] - t.refused[r][b] })
		return order
	}()
	near := func(d device.Device) bool { return mask > 0 && has(mask, d) }
	close := 0
	for _, d := range from {
		if near(d) {
			close++
		}
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
		for _, fewer := range masks() {
			if fewer&mask == fewer && t.meets(fewer, want-len(ids), had, left) {
				pick(lowest, func(d device.Device) bool { return has(fewer, d) })
				break
			}
		}
		pick(lowest, near)
	} else {
		pick(lowest, near)
		if asked && len(ids) < want && want-len(ids) < len(from)-close {
			pick(advice, func(device.Device) bool { return true })
		}
		if mask >= 0 {
			pick(lowest, func(d device.Device) bool { return len(d.NUMA) > 0 })
		}
		pick(lowest, func(device.Device) bool { return true })
	}
	slices.Sort(ids)
	return ids
}

func randomWorld(random *rand.Rand) (world, Input) {
	w := world{map[device.ResourceName][]device.Device{}, map[device.ResourceName]map[device.ID]bool{}, map[device.ResourceName]bool{},
		map[device.ResourceName]map[device.ID]int{}}
	refusing := random.IntN(3) == 0
	resources := []device.ResourceName{"v.com/a", "v.com/b", "v.com/c"}[:1+random.IntN(3)]
	for _, r := range resources {
		places := random.IntN(4) // 0: this resource has none
		w.taken[r], w.refused[r] = map[device.ID]bool{}, map[device.ID]int{}
		w.prefers[r] = random.IntN(3) == 0
		for i := range 1 + random.IntN(9) {
			d := device.Device{ID: device.ID(fmt.Sprintf("d%02d", i)), Healthy: random.IntN(8) > 0}
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
			Wants:     map[device.ResourceName]int{},
		}
		for _, r := range resources {
			if random.IntN(3) > 0 {
				d.Wants[r] = 1 + random.IntN(3)
				if random.IntN(2) == 0 {
					for range random.IntN(5) {
						q.Preferences[PreferenceKey{d.Container.Name, r}] = append(q.Preferences[PreferenceKey{d.Container.Name, r}], device.ID(fmt.Sprintf("d%02d", random.IntN(11))))
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
		anywhere.Topology, anywhere.out = Topology{}, map[string]device.Choice{}
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

// On small random worlds plan and its twin return the same result.
func TestPlanAgainstTwin(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint64(20000) {
		w, q := randomWorld(rand.New(rand.NewPCG(seed, 7)))
		tw := &twin{world: w, Input: q, out: map[string]device.Choice{}}
		why := tw.plan()
		got, no := Plan(q, w.resources())
		outcome := "served"
		if no != nil {
			outcome = map[device.Reason]string{device.NotEnoughDevices: "too few", device.DeviceUnhealthy: "too few", device.TopologyMismatch: "apart"}[no.Reason]
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
		if outcomes[outcome] < 50 {
			t.Errorf("only %d of 20000 random plans were %q: %v", outcomes[outcome], outcome, outcomes)
		}
	}
}
