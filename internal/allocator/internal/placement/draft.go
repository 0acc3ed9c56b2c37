package placement

import (
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// A draft is one resource during one plan: the devices that the plan has used, and those that init containers hand on.
type draft struct {
	pool     *Resource
	left     bitset      // free and not chosen
	ownsLeft bool        // left is not shared with the pool or another draft
	chosen   int         // number of devices chosen or avoided
	avoided  int         // number of devices avoided
	used     map[int]int // number of chosen devices at each place
	reusable []device.ID // ascending
	running  []device.ID // devices of the pod's containers that only their stamps name; ascending
}

// exclude removes devices from the draft.
func (s *draft) exclude(devices map[device.ID]refusal) {
	before := s.chosen
	s.claim(slices.Collect(maps.Keys(devices)))
	s.avoided += s.chosen - before
}

// claim takes devices out of the draft that no later container may choose.
func (s *draft) claim(ids []device.ID) {
	for _, id := range ids {
		i, listed := s.pool.listing.at[id]
		if !listed || !s.left.has(i) {
			continue
		}
		if !s.ownsLeft {
			s.left, s.ownsLeft = slices.Clone(s.left), true
		}
		s.left.remove(i)
		s.chosen++
		if at := s.pool.listing.place(i); at >= 0 {
			s.used[at]++
		}
	}
}

type drafts map[device.ResourceName]*draft

func (ss drafts) clone() drafts {
	all := make(drafts, len(ss))
	for r, s := range ss {
		s.ownsLeft = false
		c := *s
		c.used, c.reusable = maps.Clone(s.used), slices.Clone(s.reusable)
		all[r] = &c
	}
	return all
}

func (s *draft) shortage(r device.ResourceName, want, got int) *device.Refusal {
	listed, sick := len(s.pool.listing.devices), s.pool.unhealthy()
	if sick > 0 && got+sick >= want {
		return device.Refuse(device.DeviceUnhealthy, nil, "%s: %d wanted, %d of %d free and healthy, %d free but unhealthy", r, want, got, listed, sick)
	}
	if _, _, n, why := s.pool.busy(); n > 0 && got+n >= want {
		return device.Refuse(device.DeviceBusy, nil, "%s: %d wanted, %d of %d free, %d busy although the pod has ended: %s", r, want, got, listed, n, why)
	}
	if out := s.pool.outText(); out != "" {
		return device.Refuse(device.NotEnoughDevices, nil, "%s: %d wanted, %d of %d free%s", r, want, got, listed, out)
	}
	if n := s.pool.WithheldCount(); n > 0 {
		return device.Refuse(device.NotEnoughDevices, nil, "%s: %d wanted, %d of %d free, %d withheld while pods use %d devices under IDs that are no longer listed",
			r, want, got, listed, n, s.pool.unlisted)
	}
	return device.Refuse(device.NotEnoughDevices, nil, "%s: %d wanted, %d of %d free", r, want, got, listed)
}

// unselected returns why there are too few of the devices that a container may have.
func (s *draft) unselected(l request, got int) *device.Refusal {
	return device.Refuse(device.NoSuchDevice, nil, "%s: container %s wants %d of the %d listed devices that the pod's annotation %s selects, and %d of these are free",
		l.resource, l.container.Name, l.n, l.only.common(nil), device.DevicesAnnotation, got)
}

// free returns the number of devices that are left.
func (s *draft) free() int { return s.pool.freeCount - s.chosen }

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
		return !s.pool.listing.has(id) || runs && kind != device.Init
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

// candidates returns the positions of the devices from which a request may be served.
func (s *draft) candidates(l request) bitset {
	if l.among == nil && l.only != nil {
		return s.left.and(l.only)
	}
	if l.among == nil {
		return s.left
	}
	from := newBitset(len(s.pool.listing.devices))
	for _, id := range l.among {
		from.add(s.pool.listing.at[id])
	}
	return from
}

// pick chooses a request's devices, those near the nodes first, and returns the reasons. Where the plugin's preference may
// matter and has not been asked for, pick also returns the PreferenceRequest, if wanted is set.
func (s *draft) pick(l request, set nodes, said Preferences, wanted bool, work *int) ([]device.ID, device.Why, *PreferenceRequest) {
	t := picker{draft: s, request: l, from: s.candidates(l), more: l.rest(), ids: slices.Clone(l.certain), mayAsk: wanted}
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
	if o := s.pool.listing.ordering; o.ordered() {
		t.why.Order = string(o.Order)
	}
	if len(s.pool.listing.places) > 0 {
		t.why.Near = set
	}
	total := s.free()
	if l.among != nil || l.only != nil {
		total = t.from.common(nil)
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
			ask = t.applyPreference(said, nil)
		}
		if set != nil {
			t.take(s.pool.listing.placed)
		}
		t.take(nil)
	}
	slices.Sort(t.ids)
	return t.ids, t.why, ask
}

// near returns the devices at any of the nodes, and how many of them are candidates of a request.
func (s *draft) near(l request, set nodes) (devices bitset, n int) {
	ls := s.pool.listing
	if len(set) == 0 || len(ls.places) == 0 {
		return nil, 0
	}
	devices = newBitset(len(ls.devices))
	for i, nodes := range ls.places {
		if slices.ContainsFunc(nodes, func(n int) bool { return slices.Contains(set, n) }) {
			devices.join(ls.here[i])
			n += s.pool.freeAt[i] - s.used[i]
		}
	}
	if l.among != nil || l.only != nil {
		n = s.candidates(l).common(devices)
	}
	return devices, n
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
	return lists.Map(lines, func(l request) need { return on[l.resource].need(l, as) })
}

// need turns a request into a need. A resource without places has an empty need.
func (s *draft) need(l request, as needMode) need {
	ls := s.pool.listing
	if len(ls.places) == 0 {
		return need{}
	}
	n := need{want: max(0, l.rest()), places: make([]place, len(ls.places)), order: ls.ordering.nodes()}
	for i, nodes := range ls.places {
		n.places[i] = place{nodes, s.pool.freeAt[i] - s.used[i]}
	}
	if l.among != nil || l.only != nil {
		from := s.candidates(l)
		for i := range n.places {
			n.places[i].count = from.common(ls.here[i])
		}
	}
	if as == needIfAllFree {
		n.want = l.n
		for i := range n.places {
			n.places[i].count = ls.here[i].common(l.only)
		}
		return n
	}
	if as == needIfUsable {
		n.want = l.n
		may := ls.usable.and(l.only)
		for i := range n.places {
			n.places[i].count = ls.here[i].common(may)
		}
		return n
	}
	for _, id := range l.certain {
		if i, listed := ls.at[id]; listed && ls.place(i) >= 0 {
			n.must = append(n.must, ls.places[ls.place(i)])
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
	from bitset      // devices that can still be picked
	ids  []device.ID // picked so far, certain devices included
	more int         // number of devices still to pick

	mayAsk bool // the caller wants a PreferenceRequest
	why    device.Why
}

// take picks candidates in mask until there are enough, in the order that the resource has. Then come devices that other containers of
// the pod name, and last devices that the plugin has recently refused, the least often refused ones first.
func (t *picker) take(mask bitset) {
	var refused, candidates, others []int
	ordered := t.pool.listing.ordering.ordered()
	for i := t.from.next(0, mask); i >= 0 && t.more > 0; i = t.from.next(i+1, mask) {
		switch {
		case len(t.pool.refused) > 0 && t.refusals(i) > 0:
			refused = append(refused, i)
		case t.others != nil && t.others.has(i):
			others = append(others, i)
		case ordered:
			candidates = append(candidates, i)
		default:
			t.pick(i)
		}
	}
	for _, class := range [][]int{candidates, others} {
		for _, i := range t.pool.sorted(class, t.more, t.ids) {
			t.pick(i)
		}
	}
	slices.SortStableFunc(refused, func(i, j int) int { return t.refusals(i) - t.refusals(j) })
	for _, i := range refused[:min(t.more, len(refused))] {
		t.pick(i)
	}
}

// refusals returns how often the plugin has recently refused a device.
func (t *picker) refusals(i int) int { return t.pool.refused[t.pool.listing.devices[i].ID].times }

func (t *picker) pick(i int) {
	t.ids = append(t.ids, t.pool.listing.devices[i].ID)
	t.more--
	if t.among != nil {
		t.from.remove(i)
		return
	}
	if !t.ownsLeft {
		t.left, t.ownsLeft = slices.Clone(t.left), true
	}
	t.left.remove(i)
	if t.only == nil {
		t.from = t.left
	} else {
		t.from.remove(i)
	}
	t.chosen++
	if at := t.pool.listing.place(i); at >= 0 {
		t.used[at]++
	}
}

// applyPreference picks the plugin's preferred devices among the candidates in mask, or returns the PreferenceRequest to ask.
func (t *picker) applyPreference(said Preferences, mask bitset) *PreferenceRequest {
	if !t.pool.offer.Prefers || t.among != nil || said == nil {
		return nil
	}
	answer, answered := said[PreferenceKey{t.container.Name, t.resource}]
	switch {
	case !answered && !t.mayAsk:
		return nil
	case !answered:
		q := &PreferenceRequest{Container: t.container, Resource: t.resource, Size: t.n, Must: slices.Sorted(slices.Values(t.ids))}
		q.Available = slices.Clone(t.ids)
		for i := t.from.next(0, mask); i >= 0; i = t.from.next(i+1, mask) {
			q.Available = append(q.Available, t.pool.listing.devices[i].ID)
		}
		slices.Sort(q.Available)
		return q
	}
	for _, id := range answer {
		if i, listed := t.pool.listing.at[id]; t.more > 0 && listed && t.from.has(i) && (mask == nil || mask.has(i)) {
			t.pick(i)
			t.why.Preferred++
		}
	}
	return nil
}
