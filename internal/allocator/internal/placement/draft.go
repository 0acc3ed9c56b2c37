package placement

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/bitset"
	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
	"github.com/devmgrd/devmgrd/internal/loops"
)

// A draft is one resource during one plan: the devices that the plan has used, and those that init containers hand on.
type draft struct {
	resource *ledger.Resource
	left     bitset.Set     // free and not chosen
	own      bitset.Mutable // left, once it differs from that of the resource or of another draft
	chosen   int            // number of devices chosen or avoided
	avoided  int            // number of devices avoided
	used     map[int]int    // number of chosen devices at each place
	reusable []device.ID    // ascending
	running  []device.ID    // devices of the pod's containers that only their stamps name; ascending
}

// chooseID takes a device out of the draft, if it is left: no later container of the draft may choose it.
func (s *draft) chooseID(id device.ID) {
	if i, listed := s.resource.Listing().At(id); listed && s.left.Has(i) {
		s.choose(i)
	}
}

// choose takes the device at a position, which is left.
func (s *draft) choose(i int) {
	if s.own.IsZero() {
		s.own = s.left.Clone()
		s.left = s.own.Set
	}
	s.own.Remove(i)
	s.chosen++
	if at := s.resource.Listing().Place(i); at >= 0 {
		s.used[at]++
	}
}

type drafts map[device.ResourceName]*draft

func (ss drafts) clone() drafts {
	all := make(drafts, len(ss))
	for r, s := range ss {
		s.own = bitset.Mutable{} // both have left now
		c := *s
		c.used, c.reusable = maps.Clone(s.used), slices.Clone(s.reusable)
		all[r] = &c
	}
	return all
}

// shortage returns why a container that wants some devices has got fewer.
func (s *draft) shortage(r device.ResourceName, want, got int) *device.Refusal {
	listed, unhealthy, busy := len(s.resource.Listing().Devices()), s.resource.Unhealthy(), s.resource.Busy()
	if unhealthy > 0 && got+unhealthy >= want {
		return device.Refuse(device.DeviceUnhealthy, nil, "%s: %d wanted, %d of %d free and healthy, %d free but unhealthy", r, want, got, listed, unhealthy)
	}
	if busy.Usable > 0 && got+busy.Usable >= want {
		return device.Refuse(device.DeviceBusy, nil, "%s: %d wanted, %d of %d free, %d busy although the pod has ended: %s", r, want, got, listed, busy.Usable, busy.Why)
	}
	if out := outOfService(s.resource); out != "" {
		return device.Refuse(device.NotEnoughDevices, nil, "%s: %d wanted, %d of %d free%s", r, want, got, listed, out)
	}
	if n := s.resource.WithheldCount(); n > 0 {
		return device.Refuse(device.NotEnoughDevices, nil, "%s: %d wanted, %d of %d free, %d withheld while pods use %d devices under IDs that are no longer listed",
			r, want, got, listed, n, s.resource.Unlisted())
	}
	return device.Refuse(device.NotEnoughDevices, nil, "%s: %d wanted, %d of %d free", r, want, got, listed)
}

// outOfService returns how many devices are out of service, such as ", 2 cordoned, 1 suspended until 2026-01-02T13:02:00Z"; empty: none is.
func outOfService(resource *ledger.Resource) (text string) {
	n, first := map[device.DeviceState]int{}, map[device.DeviceState]time.Time{}
	for c := range resource.OutOfService {
		s := c.State()
		n[s]++
		first[s] = loops.Earliest(first[s], c.Until)
	}
	for _, s := range []device.DeviceState{device.StateCordoned, device.StateSuspended, device.StateRefused} {
		if n[s] == 0 {
			continue
		}
		text += fmt.Sprintf(", %d %s", n[s], s)
		switch until := first[s].UTC().Format(time.RFC3339); {
		case first[s].IsZero(): // an operator, or health.command, ends it
		case n[s] == 1:
			text += " until " + until
		default:
			text += ", the first until " + until
		}
	}
	return text
}

// unselected returns why there are too few of the devices that a container may have.
func (s *draft) unselected(l request, got int) *device.Refusal {
	return device.Refuse(device.NoSuchDevice, nil, "%s: container %s wants %d of the %d listed devices that the pod's annotation %s selects, and %d of these are free",
		l.name, l.container.Name, l.n, l.only.Common(bitset.Set{}), device.DevicesAnnotation, got)
}

// free returns the number of devices that are left.
func (s *draft) free() int { return s.resource.FreeCount() - s.chosen }

// reusableFor returns the devices of init containers that a container of this kind may have.
func (s *draft) reusableFor(kind device.Kind) []device.ID {
	hand := slices.Clone(s.reusable)
	if kind == device.Init {
		hand = append(hand, s.running...) // later containers may have their devices from this one
		slices.Sort(hand)
		hand = slices.Compact(hand)
	}
	return slices.DeleteFunc(hand, func(id device.ID) bool {
		_, runs := slices.BinarySearch(s.running, id)
		return !s.resource.Listing().IsUsable(id) || runs && kind != device.Init
	})
}

// assign records that a container of this kind has these devices, ascending.
func (s *draft) assign(kind device.Kind, ids []device.ID) {
	if kind == device.Init {
		s.reusable = append(s.reusable, ids...)
		slices.Sort(s.reusable)
		s.reusable = slices.Compact(s.reusable)
		return
	}
	s.reusable = slices.DeleteFunc(s.reusable, func(id device.ID) bool {
		_, kept := slices.BinarySearch(ids, id)
		return kept
	})
}

// candidates returns the positions of the devices from which a limited request may be served.
func (s *draft) candidates(l request) bitset.Mutable {
	if l.among == nil {
		return s.left.And(l.only)
	}
	from := bitset.New(len(s.resource.Listing().Devices()))
	for _, id := range l.among {
		i, _ := s.resource.Listing().At(id) // it is listed
		from.Add(i)
	}
	return from
}

// pick chooses a request's devices, those near the nodes first, and returns the reasons. Where the plugin's preference may
// matter and has not been asked for, pick also returns the PreferenceRequest, if wanted is set.
func (s *draft) pick(l request, set nodes, said Preferences, wanted bool, work *int) ([]device.ID, device.Why, *PreferenceRequest) {
	ls := s.resource.Listing()
	t := picker{draft: s, request: l, from: s.left, more: l.rest(), ids: slices.Clone(l.certain), mayAsk: wanted}
	if l.limited() {
		t.open = s.candidates(l)
		t.from = t.open.Set
	}
	if l.stamped {
		t.why.Stamped = len(l.certain)
	} else {
		t.why.Kept = len(l.certain)
	}
	if t.more == 0 {
		return t.ids, t.why, nil
	}
	if l.among != nil {
		t.why.Kept = l.n
	} else {
		t.why.Avoided = s.avoided
	}
	if ordered(s.resource) {
		t.why.Order = string(ls.Ordering().Order)
	}
	if len(ls.Places()) > 0 {
		t.why.Near = set
	}
	total := s.free()
	if l.limited() {
		total = t.from.Common(bitset.Set{})
	}
	near, n := s.near(l, set)
	var ask *PreferenceRequest
	if t.more < n {
		ask = t.applyPreference(said, near)
		if len(set) > 1 {
			l.certain = t.ids
			if fewer, found := newSearch([]need{s.need(l, needAll).within(set)}, work).fewest(); found {
				closest, _ := s.near(l, fewer)
				t.take(closest)
			}
		}
		t.take(near)
	} else {
		if n > 0 {
			t.take(near)
		}
		if t.more > 0 && t.more < total-n {
			ask = t.applyPreference(said, bitset.Set{})
		}
		if set != nil {
			t.take(ls.Placed())
		}
		t.take(bitset.Set{})
	}
	slices.Sort(t.ids)
	return t.ids, t.why, ask
}

// near returns the devices at any of the nodes, and how many of them are candidates of a request.
func (s *draft) near(l request, set nodes) (devices bitset.Set, n int) {
	ls := s.resource.Listing()
	if len(set) == 0 || len(ls.Places()) == 0 {
		return bitset.Set{}, 0
	}
	all := bitset.New(len(ls.Devices()))
	for i, nodes := range ls.Places() {
		if slices.ContainsFunc(nodes, func(n int) bool { return slices.Contains(set, n) }) {
			all.Join(ls.Here(i))
			n += s.resource.FreeAt(i) - s.used[i]
		}
	}
	if l.limited() {
		n = s.candidates(l).Common(all.Set)
	}
	return all.Set, n
}

// A needMode selects how a request becomes a need for NUMA nodes.
type needMode int

const (
	needAll       needMode = iota // all devices still to choose
	needPlaced                    // as many of these as have a place
	needIfAllFree                 // all requested devices, out of all listed ones
	needIfUsable                  // all requested devices, out of those that would be free if no pod had any
)

// needs turns each of a container's requests into a need.
func needs(lines []request, on drafts, as needMode) []need {
	return lists.Map(lines, func(l request) need { return on[l.name].need(l, as) })
}

// need turns a request into a need. A resource without places has an empty need.
func (s *draft) need(l request, as needMode) need {
	ls := s.resource.Listing()
	if len(ls.Places()) == 0 {
		return need{}
	}
	n := need{want: max(0, l.rest()), places: make([]place, len(ls.Places()))}
	if o := ls.Ordering(); o.Grouped() && o.Group == nil {
		n.order = o.Order
	}
	for i, nodes := range ls.Places() {
		n.places[i] = place{nodes, s.resource.FreeAt(i) - s.used[i]}
	}
	if as == needIfAllFree || as == needIfUsable {
		n.want = l.n
		may := l.only
		if as == needIfUsable {
			may = ls.Usable().And(l.only).Set
		}
		for i := range n.places {
			n.places[i].count = ls.Here(i).Common(may)
		}
		return n
	}
	if l.limited() {
		from := s.candidates(l)
		for i := range n.places {
			n.places[i].count = from.Common(ls.Here(i))
		}
	}
	for _, id := range l.certain {
		if i, listed := ls.At(id); listed && ls.Place(i) >= 0 {
			n.must = append(n.must, ls.Places()[ls.Place(i)])
		}
	}
	if as == needPlaced {
		placed := 0
		for _, p := range n.places {
			placed += p.count
		}
		n.want = min(n.want, placed)
	}
	return n
}

// within returns the part of a need that lies at the nodes.
func (n need) within(set nodes) need {
	in := func(all []int) []int {
		return slices.DeleteFunc(slices.Clone(all), func(n int) bool { return !slices.Contains(set, n) })
	}
	less := need{want: n.want, order: n.order}
	for _, p := range n.places {
		if nodes := in(p.nodes); len(nodes) > 0 && p.count > 0 {
			less.places = append(less.places, place{nodes, p.count})
		}
	}
	for _, nodes := range n.must {
		if nodes = in(nodes); len(nodes) > 0 {
			less.must = append(less.must, nodes)
		}
	}
	return less
}

// A picker chooses the devices of one request.
type picker struct {
	*draft
	request
	from bitset.Set     // devices that can still be picked
	open bitset.Mutable // from, if the request is limited; otherwise zero, and from is the draft's left
	ids  []device.ID    // picked so far, certain devices included
	more int            // number of devices still to pick

	mayAsk bool // the caller wants a PreferenceRequest
	why    device.Why
}

// take picks candidates in mask until there are enough, in the order that the resource has. Then come devices that other containers of
// the pod name, and last devices that the plugin has recently refused, the least often refused ones first.
func (t *picker) take(mask bitset.Set) {
	var refused, candidates, others []int
	inOrder, anyRefused := ordered(t.resource), t.resource.AnyRefused()
	for i := t.from.Next(0, mask); i >= 0 && t.more > 0; i = t.from.Next(i+1, mask) {
		switch {
		case anyRefused && t.refusals(i) > 0:
			refused = append(refused, i)
		case t.others.Has(i):
			others = append(others, i)
		case inOrder:
			candidates = append(candidates, i)
		default:
			t.pick(i)
		}
	}
	for _, class := range [][]int{candidates, others} {
		for _, i := range sorted(t.resource, class, t.more, t.ids) {
			t.pick(i)
		}
	}
	slices.SortStableFunc(refused, func(i, j int) int { return t.refusals(i) - t.refusals(j) })
	for _, i := range refused[:min(t.more, len(refused))] {
		t.pick(i)
	}
}

// refusals returns how often the plugin has recently refused a device.
func (t *picker) refusals(i int) int { return t.resource.TimesRefused(t.id(i)) }

// id returns the ID of the device at a position.
func (t *picker) id(i int) device.ID { return t.resource.Listing().Devices()[i].ID }

func (t *picker) pick(i int) {
	t.ids = append(t.ids, t.id(i))
	t.more--
	if t.open.IsZero() {
		t.choose(i)
		t.from = t.left
		return
	}
	t.open.Remove(i)
	if t.among == nil { // otherwise it is from init containers, and not free
		t.choose(i)
	}
}

// applyPreference picks the plugin's preferred devices among the candidates in mask, or returns the PreferenceRequest to ask.
func (t *picker) applyPreference(said Preferences, mask bitset.Set) *PreferenceRequest {
	if !t.resource.Offer().Prefers || t.among != nil || said == nil {
		return nil
	}
	answer, answered := said[PreferenceKey{t.container.Name, t.name}]
	switch {
	case !answered && !t.mayAsk:
		return nil
	case !answered:
		q := &PreferenceRequest{Container: t.container, Resource: t.name, Size: t.n, Must: slices.Sorted(slices.Values(t.ids))}
		q.Available = slices.Clone(t.ids)
		for i := t.from.Next(0, mask); i >= 0; i = t.from.Next(i+1, mask) {
			q.Available = append(q.Available, t.id(i))
		}
		slices.Sort(q.Available)
		return q
	}
	for _, id := range answer {
		if i, listed := t.resource.Listing().At(id); t.more > 0 && listed && t.from.Has(i) && (mask.IsZero() || mask.Has(i)) {
			t.pick(i)
			t.why.Preferred++
		}
	}
	return nil
}
