package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/devmgrd/devmgrd/internal/device"
)

// doorLimit bounds the time for which systemd, and with it the kubelet, waits for the connection to the runtime.
const doorLimit = 20 * time.Second

// tellSystemd reports readiness to systemd when the runtime has connected, so that the kubelet starts its pods after that.
// Without a connection it reports readiness after doorLimit, since the rest of the node need not wait longer. From then on it
// feeds the watchdog while the allocator answers and no hook hangs: a daemon that hangs would hold up the whole node.
// Without systemd it does nothing.
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
			ask() // if this call hangs, the watchdog starves and systemd restarts devmgrd
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
