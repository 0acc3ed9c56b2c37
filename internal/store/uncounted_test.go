package store_test

import (
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

func TestUncounted_SavedAndForgotten_IsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	read := func(want map[device.ResourceName]time.Time) {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := store.Read(dir, slog.New(slog.DiscardHandler))
		if err != nil || !maps.EqualFunc(got.Uncounted, want, time.Time.Equal) {
			t.Errorf("%v, %v, want %v", got.Uncounted, err, want)
		}
		s = open(t, dir)
	}
	save := func(now time.Time, resources ...device.ResourceName) {
		t.Helper()
		if err := s.SaveUncounted(resources, now); err != nil {
			t.Fatal(err)
		}
	}
	read(nil)
	claims := func(want bool) {
		t.Helper()
		if got, err := s.State(); err != nil || got.Claims != want {
			t.Errorf("claims: %t, %v, want %t", got.Claims, err, want)
		}
	}
	claims(false)
	if err := s.SaveClaims(); err != nil {
		t.Fatal(err)
	}
	first, second := time.Unix(1000, 1), time.Unix(2000, 0)
	save(first, "a.com/gpu", "b.com/nic")
	save(second, "b.com/nic")
	claims(true)
	read(map[device.ResourceName]time.Time{"a.com/gpu": first, "b.com/nic": second})
	if err := s.ForgetResource("a.com/gpu"); err != nil {
		t.Fatal(err)
	}
	read(map[device.ResourceName]time.Time{"b.com/nic": second})
}
