package registry

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	saveInterval = time.Second     // between two batches, so that a flapping device does not wear out the disk
	saveRetry    = 5 * time.Second // after a save has failed
)

// A saver writes changed records to the Store in the background. It reads a record when it writes it, so several changes need one
// save.
type saver struct {
	store Store
	log   *slog.Logger
	fetch func(device.ResourceName) (device.PluginRecord, bool)
	wake  chan struct{}

	commitMu locks.Mutex[locks.CommitPlugins] // held while the Store writes

	mu    locks.Mutex[locks.Leaf] // guards the fields below
	dirty map[device.ResourceName]bool
	saved map[device.ResourceName]device.PluginRecord
}

func newSaver(m Store, log *slog.Logger, fetch func(device.ResourceName) (device.PluginRecord, bool)) *saver {
	return &saver{
		store: m, log: log, fetch: fetch,
		wake:  make(chan struct{}, 1),
		dirty: make(map[device.ResourceName]bool),
		saved: make(map[device.ResourceName]device.PluginRecord),
	}
}

// remember records that k is saved.
func (s *saver) remember(k device.PluginRecord) { s.saved[k.Resource] = k }

// note marks the resource's record as possibly changed.
func (s *saver) note(resource device.ResourceName) {
	s.mu.Lock()
	s.dirty[resource] = true
	s.mu.Unlock()
	loops.Signal(s.wake)
}

func (s *saver) forget(resource device.ResourceName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.dirty, resource)
	delete(s.saved, resource)
}

// run saves noted records until ctx ends, and then the rest.
func (s *saver) run(ctx context.Context) {
	failing := false
	for {
		select {
		case <-ctx.Done():
			s.saveAll(&failing)
			return
		case <-s.wake:
		}
		pause := saveInterval
		if !s.saveAll(&failing) {
			pause = saveRetry
			loops.Signal(s.wake) // failed records are still noted
		}
		loops.Sleep(ctx, pause)
	}
}

// saveAll saves each noted record that differs from the one saved before, and reports whether all saves succeeded.
func (s *saver) saveAll(failing *bool) bool {
	s.mu.Lock()
	names := s.dirty
	s.dirty = make(map[device.ResourceName]bool)
	s.mu.Unlock()

	var failed error
	for name := range names {
		if err := s.save(name); err != nil {
			failed = err
			s.mu.Lock()
			s.dirty[name] = true
			s.mu.Unlock()
		}
	}
	switch {
	case failed != nil && !*failing:
		s.log.Error("cannot record plugins; retrying", "err", failed)
	case failed == nil && *failing:
		s.log.Info("plugins recorded again")
	}
	*failing = failed != nil
	return failed == nil
}

func (s *saver) save(name device.ResourceName) error {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	record, ok := s.fetch(name)
	if !ok {
		return nil // forgotten meanwhile
	}
	s.mu.Lock()
	last, known := s.saved[name]
	s.mu.Unlock()
	if known && sameRecord(last, record) {
		return nil
	}
	if err := s.store.SavePlugin(record); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved[name] = record
	return nil
}

func sameRecord(a, b device.PluginRecord) bool {
	return a.Endpoint == b.Endpoint && a.Pod == b.Pod && a.Quota == b.Quota && a.Account == b.Account && a.Reported == b.Reported && a.Away.Equal(b.Away) && a.Lost == b.Lost && a.Newest == b.Newest &&
		slices.Equal(a.Reserve, b.Reserve) && device.SameList(a.Devices, b.Devices)
}
