package store_test

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// Cordons survive, next to all else, and are read back with their words.
func TestCordons(t *testing.T) {
	t.Parallel()
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

// A cordon whose record is unreadable stays in force, and the log says so.
func TestCordons_Unreadable_StaysInForce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s, err := store.Open(store.Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Spoil("{", "cordons", "a.com/gpu", "1"); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Cordons(); err != nil || !reflect.DeepEqual(got, []device.Cordon{{Resource: "a.com/gpu", ID: "1"}}) {
		t.Errorf("got %v, %v", got, err)
	}
	if !strings.Contains(log.String(), "device stays cordoned") {
		t.Error(log.String())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// The cordons that the Node's annotation declares replace each other, and leave the others alone.
func TestDeclaredCordons(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	own := device.Cordon{Resource: "a.com/gpu", ID: "1", Reason: "fan", Since: since}
	declared := func(ids ...device.ID) (all []device.Cordon) {
		for _, id := range ids {
			all = append(all, device.Cordon{Resource: "a.com/gpu", ID: id, Since: since, Declared: true})
		}
		return all
	}
	for _, all := range [][]device.Cordon{declared("1", "2"), declared("3"), nil} {
		s, err := store.Open(store.Config{Dir: dir, Log: log})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.SaveCordons([]device.Cordon{own}, nil), s.SaveDeclaredCordons(all), s.Close()); err != nil {
			t.Fatal(err)
		}
		if b, err := store.Read(dir, log); err != nil || !reflect.DeepEqual(b.Cordons, append([]device.Cordon{own}, all...)) {
			t.Errorf("got %v, %v, want %v and %v", b.Cordons, err, own, all)
		}
	}
}
