package store_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

var thirdOfJanuary = time.Date(2026, 1, 3, 0, 0, 0, 123456789, time.UTC)

// span began number hours after midnight, and ended so long after that; 0: it is open.
func span(number int, lasted time.Duration) device.Span {
	s := device.Span{
		Number: uint64(number), Pod: device.Pod{UID: device.PodUID(fmt.Sprintf("%036d", number)), Namespace: "default", Name: "pod"}, Container: "main",
		Resource: "vendor.com/dev", IDs: []device.ID{"dev-1", "dev-2"}, From: thirdOfJanuary.Add(time.Duration(number) * time.Hour), FromApprox: lasted == 0,
	}
	if lasted > 0 {
		s.Until, s.UntilApprox = s.From.Add(lasted), true
	}
	return s
}

func keyOf(s device.Span) device.SpanKey { return device.SpanKey{Until: s.Until, Number: s.Number} }

// openHistory opens the history in a directory, and the state file with it. closed closes both.
func openHistory(t testing.TB, dir string) (h *store.History, open []device.Span, closed func()) {
	t.Helper()
	s, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h, open = store.OpenHistory(s)
	closed = sync.OnceFunc(func() {
		t.Helper()
		if err := errors.Join(h.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(closed)
	return h, open, closed
}

// Spans survive, are ended in their places, and go: the file as a whole is as it was written all the time.
func TestHistory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _, closed := openHistory(t, dir)
	expect := func(since time.Time, want ...device.Span) {
		t.Helper()
		got, err := s.Spans(since)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("Spans(%v) = %v, %v; want %v", since, got, err, want)
		}
		data, err := os.ReadFile(filepath.Join(dir, "history.db"))
		if err != nil || store.JudgeHistory(data) != nil {
			t.Errorf("the file: %v, %v", err, store.JudgeHistory(data))
		}
	}
	expect(time.Time{})
	if keys, err := s.HistoryKeys(); len(keys) > 0 || err != nil {
		t.Errorf("a new history has %v, %v", keys, err)
	}
	long, short, still := span(1, 9*time.Hour), span(2, time.Hour), span(3, 0)
	began := span(1, 0)
	if err := s.SaveHistory([]device.Span{still, began}, nil); err != nil {
		t.Fatal(err)
	}
	expect(time.Time{}, began, still)
	if err := s.SaveHistory([]device.Span{long, short}, nil); err != nil { // one was open there, the other never
		t.Fatal(err)
	}
	closed()
	s, _, closed = openHistory(t, dir)
	expect(time.Time{}, short, long, still)
	expect(short.Until, short, long, still)
	expect(short.Until.Add(1), long, still)
	expect(long.Until.Add(1), still)
	keys, err := s.HistoryKeys()
	if err != nil || len(keys) != 2 || keys[0].Bytes < 100 || !keys[0].Until.Equal(short.Until) || keys[1].Number != long.Number {
		t.Errorf("%v, %v", keys, err)
	}
	if err := s.SaveHistory([]device.Span{span(4, time.Hour)}, []device.SpanKey{keys[0], keyOf(span(4, time.Hour)), keyOf(span(5, time.Hour))}); err != nil {
		t.Fatal(err)
	}
	closed()
	s, open, closed := openHistory(t, dir)
	expect(time.Time{}, long, still)
	if again, err := s.OpenSpans(); err != nil || !reflect.DeepEqual(open, []device.Span{still}) || !reflect.DeepEqual(again, open) {
		t.Errorf("open are %v, and %v, %v", open, again, err)
	}
	closed()
	if past, err := store.ReadHistoryFile(filepath.Join(dir, "history.db"), slog.New(slog.DiscardHandler)); err != nil || past.Version != 1 ||
		!reflect.DeepEqual(past.Spans, []device.Span{long, still}) {
		t.Errorf("LookHistory() = %v, %v", past, err)
	}
}

// A clock that is not set yet is no harm.
func TestHistoryBefore1970(t *testing.T) {
	t.Parallel()
	s, _, _ := openHistory(t, t.TempDir())
	early := span(1, time.Hour)
	early.From, early.Until = time.Unix(-5, 0).UTC(), time.Unix(-1, 0).UTC()
	if err := s.SaveHistory([]device.Span{early, span(2, time.Hour)}, nil); err != nil {
		t.Fatal(err)
	}
	keys, err := s.HistoryKeys()
	if err != nil || len(keys) != 2 || keys[0].Number != 1 {
		t.Fatalf("%v, %v", keys, err)
	}
	if err := s.SaveHistory(nil, keys[:1]); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Spans(time.Time{}); err != nil || !reflect.DeepEqual(got, []device.Span{span(2, time.Hour)}) {
		t.Errorf("%v, %v", got, err)
	}
}

// What cannot be read is left out, with a word; all else counts.
func TestUnreadableSpanIsLeftOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _, closed := openHistory(t, dir)
	if err := errors.Join(
		s.SaveHistory([]device.Span{span(1, time.Hour), span(2, 0)}, nil),
		s.Spoil("{", "ended", "\x7fsixteen bytes.."),
		s.Spoil("{}", "ended", "\x7fshort"),
		s.Spoil("[]", "open", "\x7fopen"),
	); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Spans(time.Time{}); err != nil || !reflect.DeepEqual(got, []device.Span{span(1, time.Hour), span(2, 0)}) {
		t.Errorf("%v, %v", got, err)
	}
	if keys, err := s.HistoryKeys(); err != nil || len(keys) != 2 { // one can go with time, though it cannot be read
		t.Errorf("%v, %v", keys, err)
	}
	closed()
	state, _, log, _ := recover(t, dir)
	h, open := store.OpenHistory(state)
	defer h.Close()
	if !reflect.DeepEqual(open, []device.Span{span(2, 0)}) || strings.Count(log.String(), "ignoring unreadable history record") != 1 {
		t.Errorf("%v, with\n%s", open, log)
	}
}

// A bit that flips in the history is found as any is, or means nothing; assignments do not depend on it.
func TestFlippedBitsInTheHistory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	state, _ := some(t, dir)
	h, _, closed := openHistory(t, dir)
	var all []device.Span
	for i := range 60 {
		all = append(all, span(i+1, time.Hour))
	}
	want := append(slices.Clone(all[1:]), span(100, 0), span(101, 0))
	if err := errors.Join(h.SaveHistory(append(all, want...), nil), h.SaveHistory(nil, []device.SpanKey{keyOf(all[0])})); err != nil {
		t.Fatal(err)
	}
	closed()
	path := filepath.Join(dir, "history.db")
	good, err := os.ReadFile(path)
	if err != nil || store.JudgeHistory(good) != nil {
		t.Fatal(err, store.JudgeHistory(good))
	}
	dice := random(t)
	for page := 0; page < len(good); page += 4096 {
		all := bytes.Clone(good) // with all flips that mean nothing
		damaged := bytes.Clone(good)
		for _, flip := range flips(dice) {
			at := flip[0]
			data := bytes.Clone(good)
			data[page+at] ^= 1 << flip[1]
			switch damage := store.JudgeHistory(data); {
			case damage == nil:
				all[page+at] ^= 1 << flip[1]
			case !errors.As(damage, new(*store.DamagedError)):
				t.Fatalf("byte %d of page %d is not taken for damage: %v", at, page/4096, damage)
			default:
				damaged = data // opening the file says the same of the others
			}
		}
		if err := store.JudgeHistory(all); err != nil {
			t.Fatalf("page %d: flips that mean nothing are damage together: %v", page/4096, err)
		}
		for _, data := range [][]byte{all, damaged} {
			damage := store.JudgeHistory(data)
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, has, _, metrics := recover(t, dir)
			if !reflect.DeepEqual(has, state) || damagedFiles(t, metrics) > 0 {
				t.Fatalf("bits of page %d have changed the state", page/4096)
			}
			h, _ := store.OpenHistory(s)
			got, err := h.Spans(time.Time{})
			if damage == nil && !reflect.DeepEqual(got, want) || damage != nil && len(got) > 0 || err != nil {
				t.Fatalf("page %d: %d spans, %v, and the damage is %v", page/4096, len(got), err, damage)
			}
			if err := errors.Join(h.SaveHistory([]device.Span{span(200, time.Hour)}, nil), h.Close(), s.Close()); err != nil {
				t.Fatal(err)
			}
			if now, err := os.ReadFile(path); err != nil || store.JudgeHistory(now) != nil {
				t.Fatalf("after a write: %v, %v", err, store.JudgeHistory(now))
			}
		}
	}
	aside, err := filepath.Glob(path + ".damaged-*")
	if err != nil || len(aside) == 0 {
		t.Errorf("set aside are %q, %v", aside, err)
	}
}

// However the history changes, the sum is that of all records.
func TestSum_EachCommit_MatchesHistory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, _, _ := openHistory(t, dir)
	dice := rand.New(rand.NewPCG(7, 8))
	for i := range 200 {
		var save []device.Span
		var forget []device.SpanKey
		for range dice.IntN(4) {
			save = append(save, span(dice.IntN(50), time.Duration(dice.IntN(3))*time.Minute))
			forget = append(forget, keyOf(span(dice.IntN(50), time.Duration(1+dice.IntN(2))*time.Minute)))
		}
		if err := s.SaveHistory(save, forget); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "history.db"))
		if err == nil {
			err = store.JudgeHistory(data)
		}
		if err != nil {
			t.Fatalf("after step %d: %v", i, err)
		}
	}
}

// BenchmarkOpenWithHistory is BenchmarkOpen with as long a history as there can be: 10 000 spans, of pods that have two devices.
func BenchmarkOpenWithHistory(b *testing.B) {
	for _, n := range []int{0, 10_000} {
		b.Run(fmt.Sprint("spans=", n), func(b *testing.B) {
			dir := fullNode(b)
			s, _, closed := openHistory(b, dir)
			for from := 0; from < n; from += 10 {
				var all []device.Span
				for i := range 10 {
					all = append(all, span(from+i, time.Hour))
				}
				if err := s.SaveHistory(all, nil); err != nil {
					b.Fatal(err)
				}
			}
			closed()
			info, err := os.Stat(filepath.Join(dir, "history.db"))
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				s, has, err := store.Recover(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
				if err != nil || len(has.Pods) != 1000 {
					b.Fatal(len(has.Pods), err)
				}
				h, _ := store.OpenHistory(s)
				if err := errors.Join(h.Close(), s.Close()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(info.Size())/(1<<20), "MiB")
		})
	}
}

// BenchmarkHistory measures a full history's keys, its reading, and one commit to it that forgets as many as it saves.
func BenchmarkHistory(b *testing.B) {
	s, _, _ := openHistory(b, b.TempDir())
	const n = 10_000
	var all []device.Span
	for i := range n {
		all = append(all, span(i, time.Hour))
	}
	if err := s.SaveHistory(all, nil); err != nil {
		b.Fatal(err)
	}
	b.Run("keys", func(b *testing.B) {
		for b.Loop() {
			if keys, err := s.HistoryKeys(); err != nil || len(keys) < n {
				b.Fatal(len(keys), err)
			}
		}
	})
	b.Run("all", func(b *testing.B) {
		for b.Loop() {
			if all, err := s.Spans(time.Time{}); err != nil || len(all) < n {
				b.Fatal(len(all), err)
			}
		}
	})
	b.Run("save", func(b *testing.B) {
		i := n
		for b.Loop() {
			if err := s.SaveHistory([]device.Span{span(i, time.Hour)}, []device.SpanKey{keyOf(span(i-n, time.Hour))}); err != nil {
				b.Fatal(err)
			}
			i++
		}
	})
}
