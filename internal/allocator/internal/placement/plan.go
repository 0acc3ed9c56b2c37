package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// Resources are the resources that a plan is about. The plan can only read them.
type Resources map[device.ResourceName]*ledger.Resource

// An Input is all that a plan for one pod depends on, besides the Resources.
type Input struct {
	Demand      device.PodDemand
	Has         []device.Assignment      // the pod's assignments so far
	Running     map[string]device.Choice // devices that its containers run with, by their stamps, if the state file was lost
	Preferences Preferences              // the plugins' preferences
	Topology    Topology
	Sharing     map[device.ResourceName]map[device.ID]Sharing // of devices that other pods have by the pod's claims
	avoid       bool                                          // exclude devices that a plugin has recently refused
}

// Sharing is whether a pod may have a device that another pod has.
type Sharing int

const (
	Never Sharing = iota // they do not have it by the same claim
	Later                // no active pod has been granted the device yet
	Now
)

// A Result is a plan's choice: devices for every container that has none yet.
type Result struct {
	Choices map[string]device.Choice
	Why     map[string]map[device.ResourceName]device.Why // of choices
	At      map[device.ResourceName]int64                 // the newest Added of each resource's list, see device.Share.At
	Ask     *PreferenceRequest                            // the first choice that a plugin's preference may improve; nil: none, or all have been asked
}

// Assignments returns the choices as assignments without grants, in the order of the demand.
func (r Result) Assignments(d device.PodDemand) (all []device.Assignment) {
	for _, demand := range d.Demands {
		choice, chosen := r.Choices[demand.Container.Name]
		if !chosen {
			continue
		}
		as := device.Assignment{Container: demand.Container}
		for _, resource := range slices.Sorted(maps.Keys(choice)) {
			as.Shares = append(as.Shares, device.Share{
				Resource: resource, IDs: choice[resource], At: r.At[resource], Why: r.Why[demand.Container.Name][resource],
			})
		}
		all = append(all, as)
	}
	return all
}

// Plan chooses devices for every container of a pod that has none yet, or returns why it cannot: all or nothing. It is pure:
// equal inputs and resources lead to equal results. Which devices it takes is in the package's documentation: the kubelet's device manager
// hands on the devices of init containers by the same rules, and the scheduler's arithmetic relies on them. Plan takes devices that a plugin has
// recently refused only where the pod cannot be served without them.
func Plan(w Input, from Resources) (Result, *device.Refusal) {
	for r := range w.Demand.Requests() {
		if resource := from[r]; resource != nil && resource.AnyRefused() {
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

func planOnce(w Input, from Resources) (Result, *device.Refusal) {
	if w.strict() { // report too few devices first, which does not depend on places
		anywhere := w
		anywhere.Topology, anywhere.Preferences = Topology{}, nil
		if _, no := planOnce(anywhere, from); no != nil {
			return Result{}, no
		}
	}
	work := maxWork
	p := &planner{Input: w, open: w.Demand.Open(), chosen: fixedIn(w.Demand), named: map[device.ResourceName]bitset.Set{}, from: from, work: &work,
		out: Result{Choices: map[string]device.Choice{}, Why: map[string]map[device.ResourceName]device.Why{}, At: map[device.ResourceName]int64{}}}
	var near nodes
	var no *device.Refusal
	if w.Topology.enabled() && w.Topology.Scope == PerPod {
		near, no = p.podNodes()
	}
	if no == nil {
		no = p.choose(0, drafts{}, near)
	}
	if no == nil {
		return p.out, nil
	}
	no.InUse = p.lacksOnlyTaken(no.Reason)
	return Result{}, no
}

// lacksOnlyTaken reports whether the pod could be served if no other pod had any devices. It may be wrong for a pod whose containers compete for the
// same devices, and where the work is used up.
func (p *planner) lacksOnlyTaken(why device.Reason) bool {
	switch why {
	case device.NotEnoughDevices, device.DeviceUnhealthy, device.NoSuchDevice, device.TopologyMismatch:
		if slices.ContainsFunc(p.Demand.Demands, func(d device.Demand) bool { return len(d.Fixed) > 0 }) {
			return false // other devices do not help
		}
	default:
		return why == device.DeviceInUse
	}
	wants := p.Demand.Requests()
	for _, s := range device.Shares(p.Has) { // it keeps what it has, usable or not
		for _, id := range s.IDs {
			if !p.from[s.Resource].Listing().IsUsable(id) {
				wants[s.Resource]--
			}
		}
	}
	for r, n := range wants {
		if p.from[r] == nil { // a static pod's, and no plugin has registered it
			return false
		}
		if p.from[r].Listing().Usable().Common(bitset.Set{})-p.from[r].Busy().Usable < n { // no pod has the busy ones any longer
			return false
		}
	}
	for _, d := range p.Demand.Demands {
		for r, selection := range d.Select {
			if p.matching(r, selection).Common(p.from[r].Listing().Usable()) < d.Wants[r] {
				return false
			}
		}
		if why != device.TopologyMismatch {
			continue
		}
		var lines []request
		for _, r := range slices.Sorted(maps.Keys(d.Wants)) {
			l := request{container: d.Container, name: r, n: d.Wants[r]}
			if selection, limited := d.Select[r]; limited {
				l.only = p.matching(r, selection)
			}
			lines = append(lines, l)
		}
		on := drafts{}
		for r := range d.Wants {
			p.draft(on, r)
		}
		_, found := newSearch(needs(lines, on, needIfUsable), p.work).first(p.limit(lines, on))
		if !found && *p.work > 0 {
			return false
		}
	}
	return true
}

// A planner is one run of plan.
type planner struct {
	Input
	open   device.PodDemand                    // the demand without what the scheduler has chosen
	chosen map[device.ResourceName][]device.ID // by the scheduler, for any of the pod's containers
	named  map[device.ResourceName]bitset.Set  // the results of selectedByOthers
	from   Resources
	work   *int // the rest of maxWork
	back   bool // a choice has failed: from now on each further one counts as work
	out    Result
	hope   *bool // the result of hopeless; nil: not computed
}

// A request is a container's demand for one resource.
type request struct {
	container device.Container
	name      device.ResourceName
	n         int
	certain   []device.ID // devices among the n that need no choice, ascending
	stamped   bool        // the container already runs with the certain devices
	among     []device.ID // candidates for the rest, ascending; nil: all free devices
	only      bitset.Set  // the devices that the container may have; zero: all
	others    bitset.Set  // those that only some of the pod's other containers may have, to be taken last; zero: none
}

// limited reports whether the rest can be had from some free devices only, or from devices of init containers.
func (l request) limited() bool { return l.among != nil || !l.only.IsZero() }

func (l request) rest() int { return l.n - len(l.certain) }

// choose chooses devices for the containers from the i-th on. Under a strict policy per container it tries one set of NUMA
// nodes after another until the later containers have their devices too.
func (p *planner) choose(i int, on drafts, near nodes) *device.Refusal {
	if i == len(p.Demand.Demands) {
		return nil
	}
	d := p.Demand.Demands[i]
	if as, has := device.AssignmentOf(p.Has, d.Container.Name); has {
		held := ledger.DevicesOf([]device.Assignment{as})
		for r := range p.open.Demands[i].Wants {
			p.draft(on, r).assign(d.Kind, held[r])
		}
		return p.choose(i+1, on, near)
	}
	if no := p.blocked(d); no != nil {
		return no
	}
	if no := p.fixed(d, on); no != nil {
		return no
	}
	lines, no := p.requests(p.open.Demands[i], on)
	switch {
	case no != nil:
		return no
	case !p.Topology.enabled() || p.Topology.Scope == PerPod:
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

// blocked returns why a container's request cannot be met as it is; nil: it can. A pod that already runs keeps its devices, unless its request
// is Unread: the pod would be served without them.
func (p *planner) blocked(d device.Demand) *device.Refusal {
	if d.Mistake == "" || len(p.Running) > 0 && !Unread(d) {
		return nil
	}
	return device.Refuse(cmp.Or(d.Blocked, device.NoSuchDevice), nil, "%s", d.Mistake)
}

// Unread reports whether a container's request may lack some of its devices: its claims do not say yet which they are, or the pod exceeds a limit.
func Unread(d device.Demand) bool {
	switch d.Blocked {
	case device.ClaimUnknown, device.Allocating, device.DeviceGone, device.PodTooLarge:
		return d.Mistake != ""
	}
	return false
}

// fixed returns why a container cannot have the devices that the scheduler has chosen; nil: it can.
func (p *planner) fixed(d device.Demand, on drafts) *device.Refusal {
	for _, r := range slices.Sorted(maps.Keys(d.Fixed)) {
		s := p.draft(on, r)
		if no := s.resource.Unavailable(r); no != nil {
			return no
		}
		for _, id := range d.Fixed[r] {
			if no := unclaimable(s.resource, r, id, p.Demand.Pod.UID, p.Sharing[r][id]); no != nil {
				return no
			}
		}
	}
	return nil
}

// unclaimable returns why a pod cannot have a device that the scheduler has chosen for it; nil: it can.
func unclaimable(resource *ledger.Resource, r device.ResourceName, id device.ID, pod device.PodUID, with Sharing) *device.Refusal {
	holder, taken := resource.Holder(id)
	l := resource.Listing()
	i, listed := l.At(id)
	cordon, name := l.Cordons()[id], device.QuoteID(id)
	switch why := resource.ReleaseOf(id); {
	case resource.Has(id, pod):
		return nil
	case taken && why != nil && why.Busy:
		return device.Refuse(device.DeviceBusy, nil, "%s: device %s is busy although its pod has ended: %s", r, name, why)
	case taken && with == Later:
		return device.Refuse(device.DeviceInUse, nil, "%s: the pod with UID %s has device %s by the same claim, and has either not been served yet or ended", r, holder, name)
	case taken && with != Now:
		return device.Refuse(device.DeviceInUse, nil, "%s: the scheduler has chosen device %s, which the pod with UID %s still has", r, name, holder)
	case !listed:
		return device.Refuse(device.DeviceGone, nil, "%s: the scheduler has chosen device %s, which the device plugin does not list", r, name)
	case !l.Devices()[i].Healthy:
		return device.Refuse(device.DeviceUnhealthy, nil, "%s: the scheduler has chosen device %s, which is unhealthy", r, name)
	case !l.Usable().Has(i) && !cordon.Refused: // a refused one is tried: the pod cannot have another
		return device.Refuse(device.DeviceCordoned, nil, "%s: the scheduler has chosen device %s, which is cordoned: %s", r, name, cordon.Reason)
	case !taken && resource.Withheld(id):
		return device.Refuse(device.DeviceInUse, nil, "%s: the scheduler has chosen device %s, which may be in use under an ID that is no longer listed", r, name)
	}
	return nil
}

// hopeless reports whether a container could not have its devices under the policy even if it were alone. Then other places
// for earlier containers do not help.
func (p *planner) hopeless() bool {
	if p.hope == nil {
		hope := len(p.Has) > 0 || !slices.ContainsFunc(p.open.Demands, func(d device.Demand) bool {
			on := drafts{}
			lines, _ := p.requests(d, on)
			_, found := newSearch(needs(lines, on, needAll), p.work).first(p.limit(lines, on))
			return !found
		})
		p.hope = &hope
	}
	return !*p.hope
}

// take chooses devices for the i-th container near the nodes, and then for the later ones.
func (p *planner) take(i int, on drafts, lines []request, own, pod nodes) *device.Refusal {
	d, choice, ask := p.Demand.Demands[i], device.Choice{}, p.out.Ask
	why := map[device.ResourceName]device.Why{}
	for _, l := range lines {
		s := on[l.name]
		listing := s.resource.Listing()
		if p.back {
			*p.work -= requestWork + 4*s.left.Len() + l.n
			if ordered(s.resource) {
				*p.work -= orderWork * (s.resource.FreeCount() + listing.Groups())
			}
		}
		if _, n := s.near(l, own); !l.only.IsZero() && p.strict() && len(own) > 0 && len(listing.Places()) > 0 && n < l.rest() {
			return p.mismatch("container "+d.Container.Name, lines, on) // the nodes of the whole pod have been chosen without its limits
		}
		p.out.At[l.name] = listing.Newest()
		ids, reasons, question := s.pick(l, own, p.Preferences, p.out.Ask == nil, p.work)
		s.assign(d.Kind, ids)
		choice[l.name], why[l.name] = ids, reasons
		p.out.Ask = cmp.Or(p.out.Ask, question)
	}
	for r, ids := range d.Fixed {
		p.out.At[r] = on[r].resource.Listing().Newest()
		choice[r], why[r] = ids, device.Why{Claimed: len(ids)}
	}
	p.out.Choices[d.Container.Name], p.out.Why[d.Container.Name] = choice, why
	no := p.choose(i+1, on, pod)
	if no != nil {
		p.out.Ask = ask
	}
	return no
}

// requests returns a container's requests, or why there are too few devices.
func (p *planner) requests(d device.Demand, on drafts) ([]request, *device.Refusal) {
	lines := make([]request, 0, len(d.Wants))
	for _, r := range slices.Sorted(maps.Keys(d.Wants)) {
		s := p.draft(on, r)
		if no := s.resource.Unavailable(r); no != nil {
			return nil, no
		}
		l := request{container: d.Container, name: r, n: d.Wants[r]}
		hand := s.reusableFor(d.Kind)
		if selection, limited := d.Select[r]; !limited {
			l.others = p.selectedByOthers(r)
		} else {
			l.only = p.matching(r, selection)
			hand = slices.DeleteFunc(hand, func(id device.ID) bool { i, _ := s.resource.Listing().At(id); return !l.only.Has(i) })
		}
		switch runs := p.Running[d.Container.Name][r]; {
		case len(runs) == l.n:
			l.certain, l.stamped = slices.Sorted(slices.Values(runs)), true
		case len(hand) > l.n:
			l.among = hand
		default:
			l.certain = hand
			if free := s.free(); free < l.rest() {
				return nil, s.shortage(r, l.n, free+len(hand))
			}
			if free := s.left.Common(l.only); !l.only.IsZero() && free < l.rest() {
				return nil, s.unselected(l, free+len(hand))
			}
		}
		lines = append(lines, l)
	}
	return lines, nil
}

// draft returns the draft of a resource, creating it if necessary. The devices that the scheduler has chosen for a container of the pod are
// not in it: another container has them by the same claim only, and other pods may have them by that claim.
func (p *planner) draft(on drafts, r device.ResourceName) *draft {
	if on[r] == nil {
		s := &draft{resource: p.from[r], used: map[int]int{}}
		if s.resource != nil {
			s.left = s.resource.Free()
			for _, id := range p.chosen[r] {
				s.chooseID(id)
			}
			if p.avoid {
				before := s.chosen
				for id := range s.resource.Refused() {
					s.chooseID(id)
				}
				s.avoided = s.chosen - before
			}
		}
		for _, choice := range p.Running {
			s.running = append(s.running, choice[r]...)
		}
		s.running = slices.DeleteFunc(s.running, func(id device.ID) bool { return slices.Contains(p.chosen[r], id) })
		slices.Sort(s.running)
		on[r] = s
	}
	return on[r]
}

// fixedIn returns the devices that the scheduler has chosen for the pod's containers; nil: none.
func fixedIn(d device.PodDemand) (all map[device.ResourceName][]device.ID) {
	for _, one := range d.Demands {
		for r, ids := range one.Fixed {
			lists.Put(&all, r, append(all[r], ids...))
		}
	}
	return all
}

// podNodes finds NUMA nodes for the whole pod: for as many devices as its containers need at one time.
func (p *planner) podNodes() (nodes, *device.Refusal) {
	on := drafts{}
	requests := p.open.Requests()
	var lines []request
	for _, r := range slices.Sorted(maps.Keys(requests)) {
		s := p.draft(on, r)
		if no := s.resource.Unavailable(r); no != nil {
			return nil, no
		}
		l := request{name: r, n: requests[r], certain: slices.Clone(s.running)}
		for _, s := range device.Shares(p.Has) {
			if s.Resource == r {
				l.certain = append(l.certain, s.IDs...)
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

// limit returns the number of NUMA nodes allowed under a strict policy.
func (p *planner) limit(lines []request, on drafts) int {
	if p.Topology.Policy == SingleNUMA {
		return 1
	}
	best, possible := newSearch(needs(lines, on, needIfAllFree), p.work).fewest()
	if !possible {
		return -1
	}
	return len(best)
}

// mismatch returns a refusal that explains why a strict policy cannot be met.
func (p *planner) mismatch(whose string, lines []request, on drafts) *device.Refusal {
	var wants []string
	for i, n := range needs(lines, on, needAll) {
		if len(n.places)+len(n.must) > 0 {
			wants = append(wants, fmt.Sprintf("%d %s (free by NUMA node: %s)", lines[i].n, lines[i].name, n.counts()))
		}
	}
	how := "on one NUMA node"
	if p.Topology.Policy == Restricted {
		how = "on as few NUMA nodes as with all devices free"
	}
	if *p.work <= 0 {
		how += ", within the search limit"
	}
	return device.Refuse(device.TopologyMismatch, nil, "%s requests %s, which cannot be allocated %s, as topology.policy %s requires",
		whose, strings.Join(wants, " and "), how, p.Topology.Policy)
}

// strict reports whether the pod waits rather than have its devices apart. A pod that already runs keeps its devices.
func (w Input) strict() bool { return w.Topology.strict() && len(w.Running) == 0 }
