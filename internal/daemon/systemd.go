package daemon

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	systemd "github.com/coreos/go-systemd/v22/daemon"

	"github.com/devmgrd/devmgrd/internal/device"
)

// doorLimit bounds the time for which systemd, and with it the kubelet, waits for the connection to the runtime.
const doorLimit = 20 * time.Second

// tellSystemd reports readiness to systemd when the runtime has listed its containers, so that the kubelet starts its pods after that.
// Without a connection it reports readiness after doorLimit, since the rest of the node need not wait longer. From then on it
// feeds the watchdog while the allocator answers and no hook hangs: a daemon that hangs would hold up the whole node.
// Without systemd it does nothing.
func tellSystemd(ctx context.Context, runtime <-chan struct{}, ask func() map[device.ResourceName]int, hung func() error, log *slog.Logger) error {
	tell := func(state string) {
		if _, err := systemd.SdNotify(false, state); err != nil {
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
	tell(systemd.SdNotifyReady)
	defer tell(systemd.SdNotifyStopping)
	interval, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("ignoring invalid watchdog interval", "err", err)
	}
	if interval == 0 {
		<-ctx.Done()
		return nil
	}
	beat := time.NewTicker(interval / 3)
	defer beat.Stop()
	logged := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			ask() // if this call hangs, the watchdog starves and systemd restarts devmgrd
			err := hung()
			if err == nil {
				tell(systemd.SdNotifyWatchdog)
			} else if !logged {
				log.Error("devmgrd hangs; watchdog will restart it", "err", err)
			}
			logged = err != nil
		}
	}
}

// socketFromSystemd returns the registration socket if systemd has created it (devmgrd.socket). The socket outlives a restart of
// devmgrd: plugins that watch it see no change, and a plugin that registers meanwhile waits. A socket at another path is ignored:
// plugins look for it next to their own.
func socketFromSystemd(socketDir string, log *slog.Logger) net.Listener {
	all, err := activation.Listeners()
	if err != nil {
		log.Warn("ignoring sockets passed by systemd", "err", err)
	}
	path := filepath.Join(socketDir, "kubelet.sock")
	var registration net.Listener
	for _, l := range all {
		switch {
		case l == nil: // none that listens
		case registration == nil && l.Addr().Network() == "unix" && l.Addr().String() == path:
			l.(*net.UnixListener).SetUnlinkOnClose(false) // it is systemd's
			registration = l
		default:
			log.Warn("ignoring unexpected socket passed by systemd",
				"socket", l.Addr().String(), "want", path)
			l.Close()
		}
	}
	return registration
}
