package store_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// Cordons survive, next to all else, and are read back with their words.
func TestCordons(t *testing.T) {
	dir := t.TempDir()
	open := func() *store.Store {
		t.Helper()
		s, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	one := device.Cordon{Resource: "a.com/gpu", ID: "1", Reason: "fan", Since: since}
	two := device.Cordon{Resource: "b.com/nic", ID: "1", Since: since}
	s := open()
	if got, err := s.Cordons(); len(got) > 0 || err != nil {
		t.Errorf("a new state file has %v, %v", got, err)
	}
	if err := s.SaveCordons([]device.Cordon{two, one}, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	if got, err := s.Cordons(); err != nil || !reflect.DeepEqual(got, []device.Cordon{one, two}) {
		t.Errorf("got %v, %v", got, err)
	}
	if err := s.SaveCordons(nil, []device.Cordon{{Resource: one.Resource, ID: one.ID}, {Resource: "c.com/x", ID: "9"}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The whole file is as it was written: its sum is right.
	b, err := store.Read(dir, slog.New(slog.DiscardHandler))
	if err != nil || !reflect.DeepEqual(b.Cordons, []device.Cordon{two}) {
		t.Errorf("got %v, %v", b.Cordons, err)
	}
	if _, err := store.Read(t.TempDir(), slog.New(slog.DiscardHandler)); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}
