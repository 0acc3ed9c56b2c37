package daemon

import (
	"log/slog"
	"net"
	"path/filepath"

	"github.com/coreos/go-systemd/v22/activation"
)

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
