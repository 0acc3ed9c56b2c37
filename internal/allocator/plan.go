package allocator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A planInput is all that a plan for one pod depends on, beside the pools.
type planInput struct {
	demand      device.PodDemand
	has         []device.Assignment      // what its containers have already
	running     map[string]device.Choice // what they run with, by stamps, if the state file was lost
	preferences preferences              // what plugins have said that they prefer
	topology    Topology
	avoid       bool // devices that a plugin has lately refused are not to be had
}

// A planResult is what a plan gives: devices for every container that has none yet.
type planResult struct {
	choices map[string]device.Choice
	why     map[string]map[device.ResourceName]device.Why // of choices
	at      map[device.ResourceName]int64                 // the newest Added of each resource's list, see device.Share.At
	ask     *preferenceRequest                            // the first choice that a plugin might make better; nil: there is none, or all have been asked
}

// plan chooses devices for every container of a pod that has none yet, or says why it cannot: all or nothing. It is
// pure: the same wish and pools give the same answer, and nothing is changed.
//
// For each resource of a container, in this order: what it runs with already, by a stamp, if the state file was lost; devices
// of the pod's init containers that are still healthy, since those containers have ended when later ones start; and then
// free devices. App containers and sidecars keep what they take from an init container, so no other can have it too (the
// rules of the kubelet's device manager, which the scheduler's arithmetic expects).
//
// Free devices are taken near as few NUMA nodes as will do for all of the container's resources (or the pod's); among
// those the ones that the plugin prefers, and then those with the lowest IDs. Devices that a plugin has lately refused are
// taken only where the pod cannot have its devices without them.
func plan(w planInput, from pools) (planResult, *device.Refusal) {
	for r := range w.demand.Requests() {
		if p := from[r]; p != nil && len(p.refused) > 0 {
			careful := w
			careful.avoid = true
			if best, no := planOnce(careful, from); no == nil {
				return best, nil
			}
			break
		}
	}
	return planOnce(w, from)
}

func planOnce(w planInput, from pools) (planResult, *device.Refusal) {
	if w.strict() { // that there are too few is said first, and places do not change it
		anywhere := w
		anywhere.topology, anywhere.preferences = Topology{}, nil
		if _, no := planOnce(anywhere, from); no != nil {
			return planResult{}, no
		}
	}
	work := maxWork
	p := &planner{planInput: w, from: from, work: &work, out: planResult{choices: map[string]device.Choice{}, why: map[string]map[device.ResourceName]device.Why{}, at: map[device.ResourceName]int64{}}}
	var near nodes
	if w.topology.enabled() && w.topology.Scope == PerPod {
		var no *device.Refusal
		if near, no = p.podNodes(); no != nil {
			return planResult{}, no
		}
	}
	if no := p.choose(0, drafts{}, near); no != nil {
		return planResult{}, no
	}
	return p.out, nil
}

// A planner is one run of plan.
type planner struct {
	planInput
	from pools
	work *int // what is left of maxWork
	back bool // a choice has been in vain: from now on each other one counts as work
	out  planResult
	hope *bool // what hopeless has found out; nil: nobody has asked
}

// A request is what a container wants of one resource.
type request struct {
	container device.Container
	resource  device.ResourceName
	n         int
	certain   []device.ID // those of the n that need not be chosen, ascending
	stamped   bool        // certain are what the container runs with already
	among     []device.ID // what the rest is chosen from, ascending; nil: all that is free
}

func (l request) rest() int { return l.n - len(l.certain) }

// choose chooses for the containers from the i-th on. Where a container rather waits than have its devices apart, it
// tries one set of NUMA nodes after the other, until the containers after it have theirs too.
func (p *planner) choose(i int, on drafts, near nodes) *device.Refusal {
	if i == len(p.demand.Demands) {
		return nil
	}
	d := p.demand.Demands[i]
	if held := sharesOf(p.has, d.Container.Name); held != nil {
		for r := range d.Wants {
			p.draft(on, r).assign(d.Kind, held[r])
		}
		return p.choose(i+1, on, near)
	}
	lines, no := p.requests(d, on)
	switch {
	case no != nil:
		return no
	case !p.topology.enabled() || p.topology.Scope == PerPod:
		return p.take(i, on, lines, near, near)
	case !p.strict():
		own, _ := newSearch(needs(lines, on, needPlaced), p.work).fewest()
		return p.take(i, on, lines, own, nil)
	}
	for own := range newSearch(needs(lines, on, needAll), p.work).sets(p.limit(lines, on)) {
		later := p.take(i, on.clone(), lines, own, nil)
		if later == nil {
			return nil
		}
		p.back = true
		if no = cmp.Or(no, later); *p.work <= 0 || p.hopeless() {
			break
		}
	}
	return cmp.Or(no, p.mismatch("container "+d.Container.Name, lines, on))
}

// hopeless tells whether one of the containers could not have its devices as the policy demands if it were alone, so that
// it is no use to try other places for the ones before it.
func (p *planner) hopeless() bool {
	if p.hope == nil {
		hope := len(p.has) > 0 || !slices.ContainsFunc(p.demand.Demands, func(d device.Demand) bool {
			on := drafts{}
			lines, _ := p.requests(d, on)
			_, found := newSearch(needs(lines, on, needAll), p.work).first(p.limit(lines, on))
			return !found
		})
		p.hope = &hope
	}
	return !*p.hope
}

// take chooses for the i-th container near the nodes, and then for those after it.
func (p *planner) take(i int, on drafts, lines []request, own, pod nodes) *device.Refusal {
	d, choice, ask := p.demand.Demands[i], device.Choice{}, p.out.ask
	why := map[device.ResourceName]device.Why{}
	for _, l := range lines {
		if p.back {
			*p.work -= requestWork + 4*len(on[l.resource].left) + l.n
		}
		p.out.at[l.resource] = on[l.resource].pool.listing.newest
		ids, reasons, question := on[l.resource].pick(l, own, p.preferences, p.out.ask == nil, p.work)
		on[l.resource].assign(d.Kind, ids)
		choice[l.resource], why[l.resource] = ids, reasons
		p.out.ask = cmp.Or(p.out.ask, question)
	}
	p.out.choices[d.Container.Name], p.out.why[d.Container.Name] = choice, why
	no := p.choose(i+1, on, pod)
	if no != nil {
		p.out.ask = ask
	}
	return no
}

// requests tells what a container wants, or why it cannot have so many.
func (p *planner) requests(d device.Demand, on drafts) ([]request, *device.Refusal) {
	lines := make([]request, 0, len(d.Wants))
	for _, r := range slices.Sorted(maps.Keys(d.Wants)) {
		s := p.draft(on, r)
		if no := s.unavailable(r); no != nil {
			return nil, no
		}
		l := request{container: d.Container, resource: r, n: d.Wants[r]}
		hand := s.reusableFor(d.Kind)
		switch runs := p.running[d.Container.Name][r]; {
		case len(runs) == l.n:
			l.certain, l.stamped = slices.Sorted(slices.Values(runs)), true
		case len(hand) > l.n:
			l.among = hand
		default:
			l.certain = hand
			if free := s.free(); free < l.rest() {
				return nil, s.shortage(r, l.n, free+len(hand))
			}
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// draft gives the shelf of a resource, making one if there is none.
func (p *planner) draft(on drafts, r device.ResourceName) *draft {
	if on[r] == nil {
		s := &draft{pool: p.from[r], used: map[int]int{}}
		if s.pool != nil {
			s.left = s.pool.free
			if p.avoid {
				s.exclude(s.pool.refused)
			}
		}
		for _, choice := range p.running {
			s.running = append(s.running, choice[r]...)
		}
		slices.Sort(s.running)
		on[r] = s
	}
	return on[r]
}

// podNodes finds NUMA nodes for the pod as a whole: for as many devices as its containers need at one time.
func (p *planner) podNodes() (nodes, *device.Refusal) {
	on := drafts{}
	requests := p.demand.Requests()
	var lines []request
	for _, r := range slices.Sorted(maps.Keys(requests)) {
		s := p.draft(on, r)
		if no := s.unavailable(r); no != nil {
			return nil, no
		}
		l := request{resource: r, n: requests[r], certain: slices.Clone(s.running)}
		for _, as := range p.has {
			for _, s := range as.Shares {
				if s.Resource == r {
					l.certain = append(l.certain, s.IDs...)
				}
			}
		}
		slices.Sort(l.certain)
		l.certain = slices.Compact(l.certain)
		if free := s.free(); free < l.rest() {
			return nil, s.shortage(r, l.n, free+len(l.certain))
		}
		lines = append(lines, l)
	}
	if !p.strict() {
		set, _ := newSearch(needs(lines, on, needPlaced), p.work).fewest()
		return set, nil
	}
	if set, found := newSearch(needs(lines, on, needAll), p.work).first(p.limit(lines, on)); found {
		return set, nil
	}
	return nil, p.mismatch("the pod", lines, on)
}

// limit is how many NUMA nodes may be taken under a strict policy.
func (p *planner) limit(lines []request, on drafts) int {
	if p.topology.Policy == SingleNUMA {
		return 1
	}
	best, possible := newSearch(needs(lines, on, needIfAllFree), p.work).fewest()
	if !possible {
		return -1
	}
	return len(best)
}

// mismatch says what stands against a strict policy.
func (p *planner) mismatch(whose string, lines []request, on drafts) *device.Refusal {
	var wants []string
	for i, n := range needs(lines, on, needAll) {
		if len(n.places)+len(n.must) > 0 {
			wants = append(wants, fmt.Sprintf("%d %s (free by NUMA node: %s)", lines[i].n, lines[i].resource, n.counts()))
		}
	}
	how := "on one NUMA node"
	if p.topology.Policy == Restricted {
		how = "on as few NUMA nodes as with all devices free"
	}
	if *p.work <= 0 {
		how += ", within the search limit"
	}
	return device.Refuse(device.TopologyMismatch, nil, "%s requests %s, which cannot be allocated %s, as topology.policy %s requires",
		whose, strings.Join(wants, " and "), how, p.topology.Policy)
}

// strict tells whether the pod rather waits than have its devices apart. One that runs already has what it has.
func (w planInput) strict() bool { return w.topology.strict() && len(w.running) == 0 }

// sharesOf gives what a container has already, or nil.
func sharesOf(has []device.Assignment, container string) map[device.ResourceName][]device.ID {
	for _, a := range has {
		if a.Container.Name == container {
			held := map[device.ResourceName][]device.ID{}
			for _, s := range a.Shares {
				held[s.Resource] = s.IDs
			}
			return held
		}
	}
	return nil
}
