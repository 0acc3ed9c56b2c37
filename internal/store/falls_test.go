package store_test

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

func TestFalls_SavedAndForgotten_AreRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rec := func(r device.ResourceName, id device.ID) device.Falls {
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		return device.Falls{Resource: r, ID: id, Falls: []time.Time{at, at.Add(time.Second)}, Until: at.Add(time.Hour), Spell: time.Hour}
	}
	a, b, c := rec("a.com/gpu", "0"), rec("a.com/gpu", "1"), rec("b.com/nic", "0")
	s := open(t, dir)
	if err := s.SaveFalls([]device.Falls{a, b, c}, nil); err != nil {
		t.Fatal(err)
	}
	b.Until = b.Until.Add(time.Hour)
	if err := s.SaveFalls([]device.Falls{b}, []device.Falls{a, {Resource: "never.com/seen", ID: "0"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	read := func(want ...device.Falls) {
		t.Helper()
		got, err := store.Read(dir, slog.New(slog.DiscardHandler))
		if err != nil || !reflect.DeepEqual(got.Falls, want) {
			t.Errorf("%+v, %v, want %+v", got.Falls, err, want)
		}
	}
	read(b, c)
	s = open(t, dir)
	if err := s.ForgetResource("b.com/nic"); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	read(b)
}

// An unreadable record affects no other.
func TestFalls_Unreadable_IsLeftOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.SaveFalls([]device.Falls{{Resource: "a.com/gpu", ID: "0"}, {Resource: "a.com/gpu", ID: "1", Falls: []time.Time{time.Unix(1, 0).UTC()}}}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := store.Read(dir, slog.New(slog.DiscardHandler))
	if err != nil || len(got.Falls) != 1 || got.Falls[0].ID != "1" { // the other has no fall
		t.Errorf("%+v, %v", got.Falls, err)
	}
}
