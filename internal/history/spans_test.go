package history

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

// Without a disk that takes anything memory does not grow either.
func TestWhatIsNotWrittenIsBoundedToo(t *testing.T) {
	t.Parallel()
	known := device.Span{Number: 7, Pod: device.Pod{UID: "known"}, Container: "main", Resource: "a.com/x", IDs: []device.ID{"0"}, From: time.Unix(1, 0)}
	s := newSpans([]device.Span{known})
	now := time.Now()
	with := &device.PodAllocation{Pod: device.Pod{UID: "p"}, Assignments: []device.Assignment{{
		Container: device.Container{Pod: "p", Name: "main"}, Shares: []device.Share{{Resource: "a.com/x", IDs: []device.ID{"1"}}},
	}}}
	without := &device.PodAllocation{Pod: with.Pod}
	s.show(&device.PodAllocation{Pod: known.Pod}, now, false)
	for range MaxEnded + 1000 {
		s.show(with, now, false) // all at once, as far as this clock goes
		s.show(without, now, false)
		s.trim(now)
	}
	save, forget := s.due()
	if len(save) != MaxEnded+1 || len(forget) != 1 || forget[0].Number != known.Number {
		t.Errorf("%d must be saved and %v forgotten", len(save), forget)
	}
	if len(s.open) != 0 || len(s.ended) != MaxEnded {
		t.Errorf("%d are open, %d have ended", len(s.open), len(s.ended))
	}
	s.written(save, len(forget))
	if save, forget := s.due(); len(save)+len(forget)+len(s.inside) > 0 {
		t.Errorf("after they are written %d are due, and %d to be forgotten", len(save), len(forget))
	}
}

// Of two open spans of one part, as a downgrade with the upgrade after it leaves them, the earlier ends when the later begins.
func TestTwoOpenSpansOfOnePart(t *testing.T) {
	t.Parallel()
	at := func(minute int) device.Span {
		return device.Span{Number: uint64(minute), Pod: device.Pod{UID: "p"}, Container: "main", Resource: "a.com/x", IDs: []device.ID{"0"}, From: time.Unix(int64(60*minute), 0)}
	}
	for _, known := range [][]device.Span{{at(1), at(2)}, {at(2), at(1)}} {
		s := newSpans(known)
		save, _ := s.due()
		if len(save) != 1 || save[0].Number != 1 || !save[0].Until.Equal(at(2).From) || !save[0].UntilApprox {
			t.Errorf("due are %+v", save)
		}
		if open := s.open["p"]; len(open) != 1 || open[part{"main", "a.com/x"}].Number != 2 {
			t.Errorf("open are %+v", open)
		}
	}
}

// A clock that is put back neither loses a span nor turns one round.
func TestTheClockIsPutBack(t *testing.T) {
	t.Parallel()
	s := newSpans(nil)
	now := time.Now()
	with := &device.PodAllocation{Pod: device.Pod{UID: "p"}, Assignments: []device.Assignment{{
		Container: device.Container{Pod: "p", Name: "main"}, Shares: []device.Share{{Resource: "a.com/x", IDs: []device.ID{"1"}}},
	}}}
	for i := range 3 {
		s.show(with, now.Add(-time.Duration(i)*time.Hour), false)
		s.show(&device.PodAllocation{Pod: with.Pod}, now.Add(-time.Duration(i+1)*time.Hour), false)
	}
	save, _ := s.due()
	for i, span := range save {
		if span.Until.Before(span.From) || i > 0 && span.Number <= save[i-1].Number {
			t.Errorf("%+v", span)
		}
	}
	if len(save) != 3 || !s.ended[0].Until.Before(s.ended[2].Until) {
		t.Errorf("%v", s.ended)
	}
}

// What ends while its beginning is being written is written afterwards.
func TestAnEndDuringAWrite(t *testing.T) {
	t.Parallel()
	s := newSpans(nil)
	now := time.Now()
	with := &device.PodAllocation{Pod: device.Pod{UID: "p"}, Assignments: []device.Assignment{{
		Container: device.Container{Pod: "p", Name: "main"}, Shares: []device.Share{{Resource: "a.com/x", IDs: []device.ID{"1"}}},
	}}}
	s.show(with, now, false)
	save, _ := s.due()
	s.show(&device.PodAllocation{Pod: with.Pod}, now.Add(time.Second), false)
	s.written(save, 0)
	after, _ := s.due()
	if len(save) != 1 || !save[0].Until.IsZero() || len(after) != 1 || after[0].Until.IsZero() || after[0].Number != save[0].Number {
		t.Errorf("%+v, then %+v", save, after)
	}
	// Once its beginning is in the history file, it has to go from there, too.
	s.trim(now.Add(2 * MaxAge))
	if save, forget := s.due(); len(save) != 1 || len(forget) != 1 {
		t.Errorf("%+v and %+v", save, forget)
	}
}

// Store that can be read only after the first write tell of that, too: it counts once.
func TestKeysThatAreKnown(t *testing.T) {
	t.Parallel()
	s := newSpans(nil)
	at := time.Now().Round(0)
	key := func(n int) device.SpanKey {
		return device.SpanKey{Until: at.Add(time.Duration(n/2) * time.Second), Number: uint64(n), Bytes: 10}
	}
	s.add([]device.SpanKey{key(4), key(5)})
	s.add([]device.SpanKey{key(0), key(1), key(2), key(3), key(4), key(5), key(6)})
	for i, k := range s.ended {
		if k != key(i) {
			t.Errorf("%d: %+v", i, k)
		}
	}
	if len(s.ended) != 7 || s.bytes != 70 || s.last != 6 {
		t.Errorf("%d keys of %d bytes, the highest %d", len(s.ended), s.bytes, s.last)
	}
}
