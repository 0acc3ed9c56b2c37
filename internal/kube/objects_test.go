package kube

import (
	"fmt"
	"testing"
)

func TestObjects_ManyComeAndGo_LeaveNothing(t *testing.T) {
	t.Parallel()
	var o Objects[string]
	for i := range uint64(1000) {
		name, number := fmt.Sprint("o", i), 10*i+1
		switch i % 3 {
		case 0: // made and deleted by another client
			o.Seen(name, number, "")
		case 1: // made by this one, which the watch repeats
			o.Answered(name, number, "")
			o.Seen(name, number, "")
		default: // and one that is missing before the watch has come as far
			o.Answered(name, number, "")
			o.Missing(name)
			o.Seen(name, number, "")
		}
		o.Deleted(name, number+1)
	}
	if len(o.all)+len(o.missing) > 0 {
		t.Errorf("%d objects and %d missing ones are remembered", len(o.all), len(o.missing))
	}
}

func TestObjects_WatchAndAnswersCross_NewestCounts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events func(*Objects[string])
		want   string // empty: it is not there
	}{
		"the watch is behind an answer": {func(o *Objects[string]) { o.Answered("a", 5, "new"); o.Seen("a", 4, "old") }, "new"},
		"an answer is behind the watch": {func(o *Objects[string]) { o.Seen("a", 5, "new"); o.Answered("a", 4, "old") }, "new"},
		"an answer is behind a deletion": {func(o *Objects[string]) {
			o.Seen("a", 4, "old")
			o.Deleted("a", 6)
			o.Answered("a", 5, "old")
		}, ""},
		"an answer is behind a list without it": {func(o *Objects[string]) {
			o.Seen("a", 4, "old")
			o.Replace(6)
			o.Answered("a", 5, "ghost")
		}, ""},
		"an answer is behind a bookmark": {func(o *Objects[string]) { o.Passed(6); o.Answered("a", 5, "ghost") }, ""},
		"the watch repeats a missing object": {func(o *Objects[string]) {
			o.Seen("a", 4, "old")
			o.Answered("a", 6, "old")
			o.Missing("a")
			o.Seen("a", 5, "ghost")
			o.Seen("a", 6, "ghost")
		}, ""},
		"a missing object is made again": {func(o *Objects[string]) {
			o.Answered("a", 6, "old")
			o.Missing("a")
			o.Seen("a", 6, "ghost")
			o.Deleted("a", 7)
			o.Seen("a", 8, "new")
		}, "new"},
		"a deletion is behind an answer":       {func(o *Objects[string]) { o.Answered("a", 6, "new"); o.Deleted("a", 5) }, "new"},
		"a list is believed, also an old one":  {func(o *Objects[string]) { o.Answered("a", 60, "x"); o.Replace(5); o.Listed("a", 3, "old") }, "old"},
		"versions that cannot be compared":     {func(o *Objects[string]) { o.Seen("a", 0, "x"); o.Seen("a", 0, "y") }, "y"},
		"after a deletion that has no version": {func(o *Objects[string]) { o.Seen("a", 5, "x"); o.Deleted("a", 0) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var o Objects[string]
			c.events(&o)
			if got, there := o.Get("a"); got != c.want || there != (c.want != "") {
				t.Errorf("it is %q, there: %v; want %q", got, there, c.want)
			}
		})
	}
}
