package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/devmgrd/devmgrd/internal/device"
)

// doorLimit is how long systemd, and with it the kubelet, is kept waiting for the connection to the runtime.
const doorLimit = 20 * time.Second

// tellSystemd says that the daemon is ready when it has met the runtime: pods that the kubelet starts after that find it
// at its door. If the runtime is not to be had for long it says so all the same, for nothing else has to wait for it. Then
// it says that the daemon is alive for as long as it is: alive means that the allocator answers and that no hook hangs, since
// a daemon with either would hold up the whole node. Without systemd it does nothing.
func tellSystemd(ctx context.Context, runtime <-chan struct{}, ask func() map[device.ResourceName]int, hung func() error, log *slog.Logger) error {
	tell := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			log.Warn("cannot notify systemd", "state", state, "err", err)
		}
	}
	select {
	case <-runtime:
	case <-time.After(doorLimit):
		log.Warn("reporting ready without the container runtime", "waited", doorLimit)
	case <-ctx.Done():
		return nil
	}
	tell(daemon.SdNotifyReady)
	defer tell(daemon.SdNotifyStopping)
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("ignoring invalid watchdog interval", "err", err)
	}
	if interval == 0 {
		<-ctx.Done()
		return nil
	}
	beat := time.NewTicker(interval / 3)
	defer beat.Stop()
	told := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			ask() // if this hangs so does the beat, and systemd starts us again
			err := hung()
			if err == nil {
				tell(daemon.SdNotifyWatchdog)
			} else if !told {
				log.Error("devmgrd hangs; watchdog will restart it", "err", err)
			}
			told = err != nil
		}
	}
}
