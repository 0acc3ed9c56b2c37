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
	"strings"
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
		Resource: "vendor.com/dev", IDs: []device.ID{"dev-1", "dev-2"}, From: thirdOfJanuary.Add(time.Duration(number) * time.Hour), FromLate: lasted == 0,
	}
	if lasted > 0 {
		s.Until, s.UntilLate = s.From.Add(lasted), true
	}
	return s
}

func keyOf(s device.Span) device.SpanKey { return device.SpanKey{Until: s.Until, Number: s.Number} }

// Spans survive, are ended in their places, and go: the file as a whole is as it was written all the time.
func TestHistory(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	expect := func(since time.Time, want ...device.Span) {
		t.Helper()
		got, err := s.History(since)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("History(%v) = %v, %v; want %v", since, got, err, want)
		}
		data, err := os.ReadFile(filepath.Join(dir, "state.db"))
		if err != nil || store.Judge(data) != nil {
			t.Errorf("the file: %v, %v", err, store.Judge(data))
		}
	}
	expect(time.Time{})
	if keys, err := s.HistoryKeys(); len(keys) > 0 || err != nil {
		t.Errorf("new books have %v, %v", keys, err)
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
	s = reopen(t, s, dir)
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
	s = reopen(t, s, dir)
	expect(time.Time{}, long, still)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// Those that are open come with the books.
	if b, err := store.Read(dir, slog.New(slog.DiscardHandler)); err != nil || !reflect.DeepEqual(b.Spans, []device.Span{still}) {
		t.Errorf("Read() = %v, %v", b.Spans, err)
	}
}

// A clock that is not set yet is no harm.
func TestHistoryBefore1970(t *testing.T) {
	s := open(t, t.TempDir())
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
	if got, err := s.History(time.Time{}); err != nil || !reflect.DeepEqual(got, []device.Span{span(2, time.Hour)}) {
		t.Errorf("%v, %v", got, err)
	}
}

// What cannot be read is left out, with a word; all else counts.
func TestUnreadableSpanIsLeftOut(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if err := errors.Join(
		s.SaveHistory([]device.Span{span(1, time.Hour), span(2, 0)}, nil),
		s.Spoil("{", "history", "ended", "\x7fsixteen bytes.."),
		s.Spoil("{}", "history", "ended", "\x7fshort"),
		s.Spoil("[]", "history", "open", "\x7fopen"),
	); err != nil {
		t.Fatal(err)
	}
	if got, err := s.History(time.Time{}); err != nil || !reflect.DeepEqual(got, []device.Span{span(1, time.Hour), span(2, 0)}) {
		t.Errorf("%v, %v", got, err)
	}
	if keys, err := s.HistoryKeys(); err != nil || len(keys) != 2 { // one can go with time, though it cannot be read
		t.Errorf("%v, %v", keys, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, has, log, _ := recover(t, dir)
	if !reflect.DeepEqual(has.Spans, []device.Span{span(2, 0)}) || strings.Count(log.String(), "cannot be read, and is left out") != 1 {
		t.Errorf("%v, with\n%s", has.Spans, log)
	}
}

// A bit that flips in the history is found as any is.
func TestFlippedBitsInTheHistory(t *testing.T) {
	dir := t.TempDir()
	want, _ := some(t, dir)
	s := open(t, dir)
	var all []device.Span
	for i := range 60 {
		all = append(all, span(i+1, time.Hour))
	}
	want.Spans = []device.Span{span(100, 0), span(101, 0)}
	if err := errors.Join(s.SaveHistory(append(all, want.Spans...), nil), s.SaveHistory(nil, []device.SpanKey{keyOf(all[0])}), s.Close()); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, "state.db"))
	if err != nil || store.Judge(good) != nil {
		t.Fatal(err, store.Judge(good))
	}
	pages := 0
	dice := rand.New(rand.NewPCG(5, 6))
	for page := 0; page < len(good); page += 4096 {
		if !bytes.Contains(good[page:page+4096], []byte(`"untilLate"`)) && !bytes.Contains(good[page:page+4096], []byte(`"fromLate"`)) {
			continue
		}
		pages++
		for i := range 80 {
			at := i
			if i >= 24 {
				at = dice.IntN(4096)
			}
			data := bytes.Clone(good)
			data[page+at] ^= 1 << dice.IntN(8)
			if reads(t, data, want); t.Failed() {
				t.Fatalf("byte %d of page %d", at, page/4096)
			}
		}
	}
	if pages < 4 {
		t.Errorf("only %d pages have spans", pages)
	}
}

// However the history changes, the sum is that of all records.
func TestTheSumIsKeptOfTheHistory(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
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
		data, err := os.ReadFile(filepath.Join(dir, "state.db"))
		if err == nil {
			err = store.Judge(data)
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
			s := open(b, dir)
			for from := 0; from < n; from += 10 {
				var all []device.Span
				for i := range 10 {
					all = append(all, span(from+i, time.Hour))
				}
				if err := s.SaveHistory(all, nil); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(dir, "state.db"))
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				s, has, err := store.Recover(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
				if err != nil || len(has.Pods) != 1000 {
					b.Fatal(len(has.Pods), err)
				}
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(info.Size())/(1<<20), "MiB")
		})
	}
}

// BenchmarkHistory measures a full history's keys, its reading, and one commit to it that forgets as many as it saves.
func BenchmarkHistory(b *testing.B) {
	s := open(b, b.TempDir())
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
			if all, err := s.History(time.Time{}); err != nil || len(all) < n {
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
