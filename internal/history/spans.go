package history

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/lists"
)

// spans are the open spans, and the unwritten state of open and ended ones.
type spans struct {
	open   map[device.PodUID]map[part]device.Span
	fresh  map[uint64]device.Span // different from the history file
	inside map[uint64]bool        // open in the history file
	ended  []device.SpanKey       // all remembered ones, ordered by end
	bytes  int                    // of ended
	gone   []device.SpanKey       // in the history file, and due for removal
	last   uint64                 // the highest number
}

// A part is one container's devices of one resource; each part has its own span.
type part struct {
	container string
	resource  device.ResourceName
}

func newSpans(known []device.Span) spans {
	s := spans{open: map[device.PodUID]map[part]device.Span{}, fresh: map[uint64]device.Span{}, inside: map[uint64]bool{}}
	s.adopt(known)
	return s
}

// adopt adds the history file's open spans, and reports whether some were new. Of two spans of one part the earlier ends when
// the later begins: the history file was unreadable at the start.
func (s *spans) adopt(open []device.Span) (some bool) {
	for _, k := range open {
		if s.inside[k.Number] {
			continue
		}
		some, s.inside[k.Number], s.last = true, true, max(s.last, k.Number)
		mine, p := lists.Inner(s.open, k.Pod.UID), part{k.Container, k.Resource}
		other, twice := mine[p]
		if twice && other.From.Before(k.From) {
			k, other = other, k
		}
		if twice {
			s.end(k, other.From, true)
			k = other
		}
		mine[p] = k
	}
	return some
}

// show updates the spans of one pod to its allocation. late: the pod may have had the allocation for longer than since at.
func (s *spans) show(h *device.PodAllocation, at time.Time, late bool) {
	at = at.Round(0).UTC() // the history file keeps no monotonic clock
	holds := map[part][]device.ID{}
	for c, share := range device.Shares(h.Assignments) {
		holds[part{c.Name, share.Resource}] = share.IDs
	}
	mine := lists.Inner(s.open, h.Pod.UID)
	for p, span := range mine {
		if ids, has := holds[p]; has && slices.Equal(ids, span.IDs) {
			delete(holds, p) // unchanged
			continue
		}
		delete(mine, p)
		s.end(span, at, late)
	}
	// Ordered, so that numbering is deterministic.
	for _, p := range slices.SortedFunc(maps.Keys(holds), func(a, b part) int {
		return cmp.Or(cmp.Compare(a.container, b.container), cmp.Compare(a.resource, b.resource))
	}) {
		// Also above those from before a restart, which may not have been read yet.
		s.last = max(s.last+1, uint64(max(at.UnixNano(), 0)))
		span := device.Span{Number: s.last, Pod: h.Pod, Container: p.container, Resource: p.resource, IDs: holds[p], From: at, FromApprox: late}
		mine[p], s.fresh[span.Number] = span, span
	}
	if len(mine) == 0 {
		delete(s.open, h.Pod.UID)
	}
}

// replace updates the spans to these pods' allocations, and ends the spans of other pods.
func (s *spans) replace(pods []device.PodStatus, at time.Time) {
	there := map[device.PodUID]bool{}
	// A snapshot has no order, but numbering needs one.
	for _, h := range slices.SortedFunc(slices.Values(pods), func(a, b device.PodStatus) int {
		return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name))
	}) {
		there[h.Pod.UID] = true
		s.show(h.PodAllocation, at, true)
	}
	for uid := range s.open {
		if !there[uid] {
			s.show(&device.PodAllocation{Pod: device.Pod{UID: uid}}, at, true)
		}
	}
}

func (s *spans) end(span device.Span, at time.Time, late bool) {
	if at.Before(span.From) {
		at = span.From // the clock has been put back
	}
	span.Until, span.UntilApprox = at, late
	s.fresh[span.Number] = span
	s.add([]device.SpanKey{{Until: span.Until, Number: span.Number, Bytes: size(span)}})
}

// size returns the approximate size of a span in the history file.
func size(span device.Span) int {
	n := 256 + len(span.Pod.Namespace) + len(span.Pod.Name) + len(span.Container) + len(span.Resource)
	for _, id := range span.IDs {
		n += len(id) + 3
	}
	return n
}

// add inserts keys in order, mostly at the end, unless they are already present.
func (s *spans) add(keys []device.SpanKey) {
	order := func(a, b device.SpanKey) int {
		return cmp.Or(a.Until.Compare(b.Until), cmp.Compare(a.Number, b.Number))
	}
	for _, k := range keys {
		at, found := slices.BinarySearchFunc(s.ended, k, order)
		if found {
			continue
		}
		s.ended = slices.Insert(s.ended, at, k)
		s.bytes += k.Bytes
		s.last = max(s.last, k.Number)
	}
}

// trim drops the oldest spans that are too many or too old.
func (s *spans) trim(now time.Time) {
	n := 0
	for _, k := range s.ended {
		if len(s.ended)-n <= MaxEnded && s.bytes <= maxBytes && now.Sub(k.Until) <= MaxAge {
			break
		}
		n++
		s.bytes -= k.Bytes
		if _, fresh := s.fresh[k.Number]; fresh && !s.inside[k.Number] {
			delete(s.fresh, k.Number) // never written
		} else {
			s.gone = append(s.gone, k)
		}
	}
	s.ended = slices.Delete(s.ended, 0, n)
}

// due returns the spans to write, and the keys to remove.
func (s *spans) due() ([]device.Span, []device.SpanKey) {
	save := lists.Map(slices.Sorted(maps.Keys(s.fresh)), func(number uint64) device.Span { return s.fresh[number] })
	return save, slices.Clone(s.gone)
}

// written records that these spans have been written, and that the first forgotten keys of gone have been removed.
func (s *spans) written(save []device.Span, forgotten int) {
	for _, span := range save {
		if span.Until.IsZero() {
			s.inside[span.Number] = true
		} else {
			delete(s.inside, span.Number)
		}
		if s.fresh[span.Number].Until.Equal(span.Until) {
			delete(s.fresh, span.Number)
		}
	}
	s.gone = slices.Delete(s.gone, 0, forgotten)
}

// unwritten returns the spans that had not ended by then and that differ from the history file.
func (s *spans) unwritten(since time.Time) []device.Span {
	ended := func(span device.Span) bool { return !span.Until.IsZero() && span.Until.Before(since) }
	return slices.DeleteFunc(slices.Collect(maps.Values(s.fresh)), ended)
}
