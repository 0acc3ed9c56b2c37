package store_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// Reading leaves everything as it is, and wants the state file for itself.
func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := store.Read(dir, slog.New(slog.DiscardHandler)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a state file: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it has made %v (%v)", left, err)
	}
	s := open(t, dir)
	want := store.State{Pods: []device.PodRecord{pod("a")}, Plugins: []device.PluginRecord{{Resource: "a.com/x", Endpoint: "x.sock"}}}
	if err := s.SaveAll(want.Pods, want.Plugins); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Read(dir, slog.New(slog.DiscardHandler)); !errors.As(err, new(*store.LockedError)) {
		t.Errorf("while they are in use: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := store.Read(dir, slog.New(slog.DiscardHandler)); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read: %+v (%v)", got, err)
		}
	}
	if after, err := os.ReadFile(filepath.Join(dir, "state.db")); err != nil || string(after) != string(before) {
		t.Errorf("the file has changed (%v)", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state.db"), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Read(dir, slog.New(slog.DiscardHandler)); !errors.As(err, new(*store.DamagedError)) {
		t.Errorf("damaged: %v", err)
	}
}
