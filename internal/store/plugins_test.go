package store_test

import (
	"bytes"
	"errors"
	"log/slog"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/quick"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// What is written can be read, whatever a plugin has made of its devices.
func TestPlugin_AnyDevices_AreReadBack(t *testing.T) {
	t.Parallel()
	same := func(d device.Device) bool {
		if len(d.NUMA) == 0 {
			d.NUMA = nil
		}
		back, err := store.Roundtrip(d)
		return err == nil && reflect.DeepEqual(back, d)
	}
	if err := quick.Check(same, nil); err != nil {
		t.Error(err)
	}
	if d := (device.Device{NUMA: []int{0, 4294967295, -1, math.MaxInt, math.MinInt}}); !same(d) {
		t.Errorf("%v does not come back", d.NUMA)
	}
}

// A device without a date is stored as it was before devices had one.
func TestDeviceWithoutDateIsStoredAsBefore(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		device device.Device
		want   []byte
	}{
		{device.Device{}, []byte{0}},
		{device.Device{Healthy: true}, []byte{1}},
		{device.Device{Healthy: true, NUMA: []int{0, 300}}, []byte{1, 0, 0xac, 2}},
	} {
		if got := store.EncodeDevice(test.device); !bytes.Equal(got, test.want) {
			t.Errorf("%+v is stored as % x, want % x", test.device, got, test.want)
		}
	}
}

// A plugin's record that cannot be read is left out and named in the log; the others are there, and it can be written
// again.
func TestUnreadablePluginIsLeftOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	records := []device.PluginRecord{
		{Resource: "a.com/bad-device", Endpoint: "d.sock", Reported: true, Devices: []device.Device{{ID: "1", Healthy: true}}},
		{Resource: "a.com/bad-record", Endpoint: "r.sock", Reported: true},
		{Resource: "a.com/good", Endpoint: "g.sock", Reported: true, Devices: []device.Device{{ID: "1", Healthy: true}}},
	}
	s := open(t, dir)
	for _, r := range records {
		if err := s.SavePlugin(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		s.Spoil("\x01\x80", "plugins", "a.com/bad-device", "devices", "1"),
		s.Spoil("{", "plugins", "a.com/bad-record", "record"),
		s.Close(),
	); err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer
	s, err := store.Open(store.Config{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got, err := s.Plugins()
	if err != nil || !reflect.DeepEqual(got, records[2:]) {
		t.Errorf("Plugins() = %+v, %v; want %+v", got, err, records[2:])
	}
	for _, name := range []string{"resource=a.com/bad-device", "resource=a.com/bad-record"} {
		if strings.Count(log.String(), name) != 1 {
			t.Errorf("the log does not name %s:\n%s", name, log.String())
		}
	}
	for _, r := range records[:2] {
		if err := s.SavePlugin(r); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Plugins(); err != nil || !reflect.DeepEqual(got, records) {
		t.Errorf("Plugins() = %+v, %v; want %+v", got, err, records)
	}
}

// The error for a record that bbolt rejects quotes the start of the ID only.
func TestLongIDIsQuotedInShort(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	err := s.SavePlugin(device.PluginRecord{Resource: "a.com/x", Devices: []device.Device{{ID: device.ID(strings.Repeat("x", 40_000))}}})
	if err == nil || len(err.Error()) > 500 || s.Check() == nil {
		t.Errorf("%.600v", err)
	}
}

// The quotas of plugins whose pods are not known come back, and a record without one, as of an older version, has none.
func TestPlugin_Quota_IsReadBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	records := []device.PluginRecord{
		{Resource: "a.com/new", Endpoint: "a.sock", Quota: device.Quota{Pod: "pod 1", Account: "ns/sa"}, Account: "ns/sa",
			Reserve: []device.ReservePlugin{{Endpoint: "b.sock", Quota: device.Quota{Pod: "pod 2"}}}},
		{Resource: "a.com/old", Endpoint: "c.sock"},
	}
	s := open(t, dir)
	for _, r := range records {
		if err := s.SavePlugin(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(s.Spoil(`{"endpoint":"c.sock","reported":false}`, "plugins", "a.com/old", "record"), s.Close()); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if got, err := s.Plugins(); err != nil || !reflect.DeepEqual(got, records) {
		t.Errorf("Plugins() = %+v, %v; want %+v", got, err, records)
	}
}
