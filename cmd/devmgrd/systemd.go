package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/devmgrd/devmgrd/internal/device"
)

// tellSystemd says that the daemon is ready, and then that it is alive for as long as it is: alive means that the books
// answer, since a daemon whose books hang would hold up the whole node. Without systemd it does nothing.
func tellSystemd(ctx context.Context, ask func() map[device.ResourceName]int, log *slog.Logger) error {
	tell := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			log.Warn("systemd cannot be told", "state", state, "err", err)
		}
	}
	tell(daemon.SdNotifyReady)
	defer tell(daemon.SdNotifyStopping)
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("the watchdog's interval cannot be read; it is not served", "err", err)
	}
	if interval == 0 {
		<-ctx.Done()
		return nil
	}
	beat := time.NewTicker(interval / 3)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			ask() // if this hangs so does the beat, and systemd starts us anew
			tell(daemon.SdNotifyWatchdog)
		}
	}
}
