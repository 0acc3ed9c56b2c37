package store_test

import (
	"log/slog"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

type places = map[device.ID]int

func TestPlaces_SavedAndForgotten_AreRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	save := func(r device.ResourceName, of places) {
		t.Helper()
		if err := s.SavePlaces(r, of); err != nil {
			t.Fatal(err)
		}
	}
	read := func(want map[device.ResourceName]places) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := store.Read(dir, slog.New(slog.DiscardHandler))
		if err != nil || !reflect.DeepEqual(got.Places, want) {
			t.Errorf("%+v, %v, want %+v", got.Places, err, want)
		}
		s = open(t, dir)
	}
	read(nil)
	save("a.com/gpu", places{"64": 1, "128": 2, "0": 0})
	save("b.com/nic", places{"x": 1})
	read(map[device.ResourceName]places{"a.com/gpu": {"64": 1, "128": 2}, "b.com/nic": {"x": 1}})
	save("a.com/gpu", places{"128": 12, "129": 3, "64": 0})
	read(map[device.ResourceName]places{"a.com/gpu": {"128": 12, "129": 3}, "b.com/nic": {"x": 1}})
	if err := s.ForgetResource("b.com/nic"); err != nil {
		t.Fatal(err)
	}
	read(map[device.ResourceName]places{"a.com/gpu": {"128": 12, "129": 3}})
	save("a.com/gpu", nil)
	read(nil)
}

// An unreadable record affects no other.
func TestPlaces_Unreadable_IsLeftOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	if err := s.SavePlaces("a.com/gpu", places{"0": -1, "1": 1}); err != nil { // no place is negative
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	got, _, err := store.ReadFile(filepath.Join(dir, "state.db"), slog.New(slog.DiscardHandler))
	if want := (map[device.ResourceName]places{"a.com/gpu": {"1": 1}}); err != nil || !reflect.DeepEqual(got.Places, want) {
		t.Errorf("%+v, %v", got.Places, err)
	}
}
