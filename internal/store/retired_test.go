package store_test

import (
	"log/slog"
	"reflect"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// Of a resource that is forgotten nothing is left but a note, and then not even that. The sum of the file is right all along.
func TestForgetResource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	read := func() store.State {
		t.Helper()
		b, err := store.Read(dir, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	do := func(what func(*store.Store) error) {
		t.Helper()
		s, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := what(s); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	plugin := func(r device.ResourceName) device.PluginRecord {
		return device.PluginRecord{Resource: r, Endpoint: "x.sock", Reported: true, Devices: []device.Device{{ID: "0", Healthy: true}, {ID: "1", NUMA: []int{1}}}}
	}
	cordon := func(r device.ResourceName) device.Cordon {
		return device.Cordon{Resource: r, ID: "1", Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	}
	do(func(s *store.Store) error { return s.ForgetResource("never.com/heard-of") }) // on the Node, from another component
	do(func(s *store.Store) error { return s.SavePlugin(plugin("a.com/gpu")) })
	do(func(s *store.Store) error { return s.SavePlugin(plugin("b.com/nic")) })
	do(func(s *store.Store) error {
		return s.SaveCordons([]device.Cordon{cordon("a.com/gpu"), cordon("b.com/nic")}, nil)
	})
	do(func(s *store.Store) error { return s.ForgetResource("a.com/gpu") })
	b := read()
	if want := []device.PluginRecord{plugin("b.com/nic")}; !reflect.DeepEqual(b.Plugins, want) {
		t.Errorf("plugins %v", b.Plugins)
	}
	if want := []device.Cordon{cordon("b.com/nic")}; !reflect.DeepEqual(b.Cordons, want) {
		t.Errorf("cordons %v", b.Cordons)
	}
	if want := []device.ResourceName{"a.com/gpu", "never.com/heard-of"}; !reflect.DeepEqual(b.Retired, want) {
		t.Errorf("retired %v", b.Retired)
	}
	do(func(s *store.Store) error { return s.ForgetResource("d.com/back") })
	do(func(s *store.Store) error { return s.SavePlugin(plugin("d.com/back")) }) // it is no longer to be taken off the Node
	do(func(s *store.Store) error { return s.DropRetired([]device.ResourceName{"a.com/gpu", "c.com/x"}) })
	if b := read(); !reflect.DeepEqual(b.Retired, []device.ResourceName{"never.com/heard-of"}) {
		t.Errorf("retired %v", b.Retired)
	}
}
