package store_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

func action(minute int) device.Action {
	login := uint32(1000)
	return device.Action{
		At: thirdOfJanuary.Add(time.Duration(minute) * time.Minute), Verb: "cordon", Subject: []string{fmt.Sprintf("vendor.com/gpu/GPU-%d", minute)}, More: 2,
		Reason: "Xid 79", Err: "no such device", Operator: device.Operator{UID: 0, Login: &login, PID: 4242, Name: "devmgrd"},
	}
}

func TestActions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h, _, closed := openHistory(t, dir)
	expect := func(since time.Time, want ...device.Action) {
		t.Helper()
		got, err := h.Actions(since)
		if err != nil {
			t.Fatal(err)
		}
		if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("actions since %s: %+v, want %+v", since, got, want)
		}
	}
	save := func(a device.Action) {
		t.Helper()
		if err := h.SaveActions(a); err != nil {
			t.Fatal(err)
		}
	}
	expect(time.Time{})
	first, second, third := action(1), action(2), action(3)
	twin := second // of the same moment
	twin.Operator.Login, twin.Err = nil, ""
	save(second)
	if err := h.SaveActions(first, twin, third); err != nil { // in one commit
		t.Fatal(err)
	}
	if err := h.SaveHistory([]device.Span{span(1, time.Hour)}, nil); err != nil {
		t.Fatal(err)
	}
	expect(time.Time{}, first, second, twin, third)
	expect(second.At, second, twin, third)
	expect(third.At.Add(1))

	// They survive, and the file is sound.
	closed()
	if past, err := store.ReadHistoryFile(filepath.Join(dir, store.HistoryName), slog.New(slog.DiscardHandler)); err != nil || len(past.Spans) != 1 || len(past.Actions) != 4 {
		t.Errorf("%+v, %v", past, err)
	}
	h, _, _ = openHistory(t, dir)
	expect(time.Time{}, first, second, twin, third)

	// The oldest ones make room: by number, by bytes, by age.
	h.LimitActions(4, 1<<20, 24*time.Hour)
	save(action(4))
	expect(time.Time{}, second, twin, third, action(4))
	big := action(5)
	big.Reason = fmt.Sprintf("%0900d", 5)
	h.LimitActions(4, 500+len(big.Reason), 24*time.Hour)
	save(big)
	if got, _ := h.Actions(time.Time{}); len(got) == 0 || len(got) > 3 || !reflect.DeepEqual(got[len(got)-1], big) {
		t.Errorf("%d actions are left, want 1 to 3 with the newest", len(got))
	}
	save(action(60 * 30))
	expect(time.Time{}, action(60*30))
}
