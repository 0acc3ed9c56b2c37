package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/connlimit"
	"github.com/devmgrd/devmgrd/internal/socket"
)

// webLimits bounds the connections of metrics.listen: a local user who opens all that it can has these, and leaves the others to
// Prometheus and to the kubelet's probes.
var webLimits = connlimit.Limits{Served: 256, ServedPerClient: 32, Waiting: 256, WaitingPerClient: 32}

// webListener returns what makes the listener for metrics.listen, again after each failure.
func webListener(at string) func() (net.Listener, error) {
	path, unix := strings.CutPrefix(at, config.UnixPrefix)
	if !unix {
		limiter := connlimit.New(webLimits, connlimit.TCPClient)
		return func() (net.Listener, error) {
			l, err := net.Listen("tcp", at)
			if err != nil {
				return nil, err
			}
			return limiter.Listener(l), nil
		}
	}
	limiter := connlimit.New(webLimits, connlimit.UnixClient)
	return func() (net.Listener, error) {
		l, err := socket.ListenPath(path, 0o660)
		if err != nil {
			return nil, err
		}
		return limiter.Listener(l), nil
	}
}

// tryWeb listens at metrics.listen for "devmgrd check", and leaves no socket behind.
func tryWeb(at string) (io.Closer, error) {
	path, unix := strings.CutPrefix(at, config.UnixPrefix)
	if !unix {
		return net.Listen("tcp", at)
	}
	if err := socket.VacantPath(path); err != nil {
		return nil, err
	}
	return os.Open(filepath.Dir(path))
}
