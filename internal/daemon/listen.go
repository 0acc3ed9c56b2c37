package daemon

import (
	"context"
	"net"
	"strings"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/socket"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
)

// webLimits bounds the connections of metrics.listen, so that a local user who opens many leaves enough to Prometheus and to the
// kubelet's probes.
var webLimits = connlimit.Limits{Served: 256, ServedPerClient: 32, Waiting: 256, WaitingPerClient: 32}

// webListener returns a function that opens the listener for metrics.listen, and can be called again after a failure.
func webListener(at string) func() (net.Listener, error) {
	client := connlimit.TCPClient
	listen := func() (net.Listener, error) { return plainTCP().Listen(context.Background(), "tcp", at) }
	if path, unix := strings.CutPrefix(at, config.UnixPrefix); unix {
		client = connlimit.UnixClient
		listen = func() (net.Listener, error) { return socket.ListenPath(path, 0o660) }
	}
	limiter := connlimit.New(webLimits, client)
	return func() (net.Listener, error) {
		l, err := listen()
		if err != nil {
			return nil, err
		}
		return limiter.Listener(l), nil
	}
}

// plainTCP listens without Multipath TCP, which Go prefers: before Linux 6.4 its connections have the kernel's label in SELinux, from
// which devmgrd may not read.
func plainTCP() *net.ListenConfig {
	c := &net.ListenConfig{}
	c.SetMultipathTCP(false)
	return c
}
