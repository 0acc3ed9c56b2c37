package history_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/history"
)

// slowStore is a store whose writes wait for permission.
type slowStore struct {
	writes chan error
	saved  []device.Action
}

func (s *slowStore) SaveActions(all ...device.Action) error {
	err := <-s.writes
	if err == nil {
		s.saved = append(s.saved, all...)
	}
	return err
}

func TestJournal_SlowDisk_CallersDoNotWaitAndNothingGrows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		disk := &slowStore{writes: make(chan error)}
		j := history.NewJournal(disk, slog.New(slog.NewTextHandler(&log, nil)))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		ended := make(chan struct{})
		go func() { defer close(ended); _ = j.Run(ctx) }()

		j.Record(device.Action{Verb: device.VerbSuspend, Subject: []string{"vendor.example/gpu/1"}, Reason: "why"})
		synctest.Wait() // its write hangs
		for range 5000 {
			j.Record(device.Action{Verb: device.VerbResume})
		}
		disk.writes <- nil
		synctest.Wait()
		if len(disk.saved) != 1 || !disk.saved[0].Own || disk.saved[0].At.IsZero() || disk.saved[0].Verb != device.VerbSuspend {
			t.Errorf("saved: %+v", disk.saved)
		}
		disk.writes <- errors.New("the disk is full") // all of the others are one write
		synctest.Wait()
		j.Record(device.Action{Verb: device.VerbResume})
		stop() // a clean stop writes the rest
		close(disk.writes)
		<-ended
		if n := len(disk.saved); n != 2 {
			t.Errorf("%d actions are saved", n)
		}
		if n := strings.Count(log.String(), "the disk is full"); n != 1024 || !strings.Contains(log.String(), "too many at once\" count=3976") {
			t.Errorf("%d actions are logged that could not be written:\n%s", n, log.String())
		}
	})
}
