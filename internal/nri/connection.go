package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/backoff"
	"github.com/devmgrd/devmgrd/internal/device"
)

// Config is what New needs; all of it but Pods and Redirect.
type Config struct {
	Socket    string        // where the runtime listens
	Index     string        // two digits: devmgrd's order among the NRI plugins
	MaxWait   time.Duration // how long a hook waits for an allocation in flight
	Allocator Allocator
	Runtime   Runtime
	Pods      Pods // nil: there is no API server, and every pod says itself what it asks for
	Notifier  Notifier
	Redirect  *Redirect // nil: off
	Dirs      Directories
	Rules     Rules // nil: a plugin may grant anything
	Log       *slog.Logger
	Metrics   prometheus.Registerer
}

// A Connection keeps devmgrd connected to the runtime.
type Connection struct {
	config        Config
	metrics       *metrics
	connected     atomic.Bool
	first         sync.Once
	synced        chan struct{} // closed when the runtime has listed all containers for the first time
	hostChecks    hostChecks
	hooks         hooks
	limit         time.Duration // startLimit
	notRedirected notRedirected
	stuck         atomic.Pointer[string] // why no connection lasts until the runtime has listed all containers; nil: not known
}

const (
	pluginName = "devmgrd"

	// startLimit bounds one attempt to connect. The stub waits for its configuration without a limit of its own, so a
	// runtime that dies or hangs at that moment would hold it for ever.
	startLimit = 15 * time.Second

	// Pauses between attempts. They stay short: containers that are made while we are away wait or, where nothing keeps
	// them, start without their devices, and an attempt costs microseconds while no process listens.
	firstPause = 50 * time.Millisecond
	lastPause  = 500 * time.Millisecond

	// lastStuckPause is the longest pause while the runtime cannot list its containers. Each attempt has it encode all of them several
	// times, under the lock that every container operation needs.
	lastStuckPause = 5 * time.Second
)

// New returns a Connection. It starts nothing: see Run.
func New(c Config) *Connection {
	for name, missing := range map[string]bool{
		"Socket": c.Socket == "", "Index": c.Index == "", "Allocator": c.Allocator == nil, "Runtime": c.Runtime == nil,
		"Notifier": c.Notifier == nil, "Dirs": c.Dirs == nil, "Log": c.Log == nil, "Metrics": c.Metrics == nil,
	} {
		if missing {
			panic("nri.New: Config." + name + " is missing")
		}
	}
	n := &Connection{config: c, synced: make(chan struct{}), hostChecks: hostChecks{log: c.Log}, limit: startLimit}
	n.metrics = newMetrics(c.Metrics, n.connected.Load, n.notRedirected.count)
	return n
}

// Check reports whether the runtime is connected, for /readyz.
func (n *Connection) Check() error {
	if !n.connected.Load() {
		if why := n.stuck.Load(); why != nil {
			return fmt.Errorf("not connected to container runtime at %s: %s", n.config.Socket, *why)
		}
		return fmt.Errorf("not connected to container runtime at %s", n.config.Socket)
	}
	return nil
}

// Hung reports whether a hook hangs, for the watchdog: what the state file says does not tell that. Devices are refused or lost by
// then, for the runtime does not wait, and a new process is the way out.
func (n *Connection) Hung() error { return n.hooks.check() }

// Synced is closed when the runtime has connected for the first time and has listed all its containers.
func (n *Connection) Synced() <-chan struct{} { return n.synced }

// NotRedirected returns the running containers that were created without devmgrd and have the kubelet's plugin directory, as far as
// the runtime has reported them.
func (n *Connection) NotRedirected() []device.PodContainer { return n.notRedirected.list() }

// Run keeps the connection until ctx ends, and replaces it whenever it is lost.
func (n *Connection) Run(ctx context.Context) error {
	pause, told := backoff.Backoff{First: firstPause, Last: lastPause}, false
	stuck, unlisted := backoff.Backoff{First: lastPause, Last: lastStuckPause}, 0
	for {
		connected, err := n.runOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if connected {
			pause.Reset()
			stuck.Reset()
			told = false
		}
		if !told {
			n.config.Log.Warn("cannot connect to container runtime; retrying", "socket", n.config.Socket, "err", err)
			told = true
		}
		if why := (*unlistedError)(nil); errors.As(err, &why) {
			unlisted++
			n.explain(why, unlisted)
		} else {
			unlisted = 0
			n.stuck.Store(nil)
		}
		if unlisted < maxUnlisted {
			pause.Wait(ctx)
		} else {
			stuck.Wait(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
	}
}

// explain keeps the cause of connections that end before the runtime has listed its containers, so many in a row, and reports it once.
func (n *Connection) explain(e *unlistedError, times int) {
	if times < maxUnlisted {
		return
	}
	why := e.cause()
	n.stuck.Store(&why)
	if times == maxUnlisted {
		n.config.Log.Error("container runtime cannot list its containers", "socket", n.config.Socket, "attempts", times, "pods", e.pods, "containers", e.containers, "err", why)
		n.config.Notifier.NotSynchronized(why)
	}
}

// runOnce makes one connection and keeps it until it is lost or ctx ends. Each needs a stub of its own: one that has
// failed to start keeps its dead connection. The connection is closed in any case: a stub that is left behind must not
// become a second plugin of ours when the runtime goes on. NRI has no uniqueness check, and two plugins that set the same
// thing fail every container.
func (n *Connection) runOnce(ctx context.Context) (connected bool, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", n.config.Socket)
	if err != nil {
		return false, err
	}
	defer func() {
		conn.Close()
		n.connected.Store(false)
		n.config.Runtime.RuntimeLost()
	}()
	lost := make(chan struct{})
	var once sync.Once
	var synced atomic.Bool
	far := &progress{}
	p := &plugin{
		allocator: n.config.Allocator, runtime: n.config.Runtime, pods: n.config.Pods, notifier: n.config.Notifier, redirect: n.config.Redirect, dirs: n.config.Dirs, rules: n.config.Rules,
		maxWait: n.config.MaxWait, log: n.config.Log, metrics: n.metrics, hostChecks: &n.hostChecks, hooks: &n.hooks, notRedirected: &n.notRedirected,
		synced: func() {
			synced.Store(true)
			n.connected.Store(true)
			n.stuck.Store(nil)
			n.first.Do(func() { close(n.synced) })
		},
	}
	s, err := stub.New(p,
		stub.WithPluginName(pluginName), stub.WithPluginIdx(n.config.Index), stub.WithConnection(conn),
		stub.WithOnClose(func() { once.Do(func() { close(lost) }) }), stub.WithLogger(logger{n.config.Log}),
		stub.WithTTRPCOptions(nil, []ttrpc.ServerOpt{ttrpc.WithUnaryServerInterceptor(far.intercept)}),
		// Runtimes with NRI 0.12.4 or later fail a request that we do not answer in time; older ones go on without us. Both
		// drop us then, which KeepConnected would prevent. But a devmgrd that hangs would fail everything that happens on
		// the node, pods without devices too, for as long as it hangs. So it is dropped, once, and what asks for devices
		// is kept waiting by the runtime's own validator.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}))
	if err != nil {
		return false, err
	}
	started := make(chan error, 1)
	go func() { started <- s.Start(ctx) }() // ends with Start, which may hang: then it is left behind
	select {
	case err := <-started:
		if err != nil {
			return false, err
		}
	case <-time.After(n.limit):
		return false, fmt.Errorf("the runtime has not taken us up within %s", n.limit)
	case <-ctx.Done():
		return false, ctx.Err()
	}
	configured := time.Now()
	select {
	case <-lost:
		return synced.Load(), far.end(time.Since(configured), s.RequestTimeout())
	case <-ctx.Done():
		s.Stop()
		return synced.Load(), ctx.Err()
	}
}

// logger passes the stub's messages to devmgrd's log, its info messages at level debug.
type logger struct{ log *slog.Logger }

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, fmt.Sprintf(format, args...))
}
func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, fmt.Sprintf(format, args...))
}
func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.log.WarnContext(ctx, fmt.Sprintf(format, args...))
}
func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.log.ErrorContext(ctx, fmt.Sprintf(format, args...))
}
