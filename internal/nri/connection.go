package nri

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks"
	"github.com/devmgrd/devmgrd/internal/socket"
)

// Config is what New needs. Optional: Pods, Redirect, Rules, Claims, Kubelets.
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
	Rules     Rules      // nil: a plugin may grant anything
	Claims    ClaimFiles // nil: no claims are served
	Kubelets  Kubelets   // nil: no kubelet has assigned devices before devmgrd
	Presence  *Presence  // kept up to date
	Log       *slog.Logger
	Metrics   prometheus.Registerer
}

// Kubelets returns what the kubelet's device manager has assigned, as it remembers it.
type Kubelets func() *device.Kubelets

// A Connection keeps devmgrd connected to the runtime.
type Connection struct {
	Config
	metrics       *metrics
	connected     atomic.Bool
	features      atomic.Pointer[features] // of the runtime; nil: it has not connected yet
	first         sync.Once
	synced        chan struct{} // closed when the runtime has listed all containers for the first time
	hostChecks    *hostchecks.Checks
	allowances    allowances
	grants        *Grants
	hooks         hooks
	limit         time.Duration // startLimit
	listLimit     time.Duration
	notRedirected notRedirected
	stuck         atomic.Pointer[string] // why the runtime does not list its containers; nil: it does, or the reason is not known
}

const (
	pluginName = "devmgrd"

	// startLimit bounds one attempt to connect, for a runtime that hangs (starting.go).
	startLimit = 15 * time.Second

	// listLimit is how long the runtime may take to begin its list before devmgrd reports it. It waits for all container operations
	// first, and some take as long as a pod's grace period.
	listLimit = time.Minute
)

// New returns a Connection. It starts nothing: see Run.
func New(c Config) *Connection {
	for name, missing := range map[string]bool{
		"Socket": c.Socket == "", "Index": c.Index == "", "Allocator": c.Allocator == nil, "Runtime": c.Runtime == nil,
		"Notifier": c.Notifier == nil, "Dirs": c.Dirs == nil, "Presence": c.Presence == nil, "Log": c.Log == nil, "Metrics": c.Metrics == nil,
	} {
		if missing {
			panic("nri.New: Config." + name + " is missing")
		}
	}
	host := hostchecks.New(c.Log)
	n := &Connection{Config: c, synced: make(chan struct{}), hostChecks: host, grants: &Grants{c.Rules, host.ForHook}, limit: startLimit, listLimit: listLimit}
	n.metrics = newMetrics(c.Metrics, n.connected.Load, n.notRedirected.count)
	return n
}

// Check reports whether the runtime is connected, for /readyz.
func (n *Connection) Check() error {
	if !n.connected.Load() {
		if why := n.stuck.Load(); why != nil {
			return fmt.Errorf("not connected to container runtime at %s: %s", n.Socket, *why)
		}
		return fmt.Errorf("not connected to container runtime at %s", n.Socket)
	}
	return nil
}

// Hung fails when a hook hangs, for the watchdog. Containers have been refused by then, or started without their devices, since the
// runtime does not wait for a late plugin; only a restart of devmgrd helps.
func (n *Connection) Hung() error { return n.hooks.check() }

// Synced is closed when the runtime has listed all its containers for the first time.
func (n *Connection) Synced() <-chan struct{} { return n.synced }

// NotRedirected returns the running containers that were created without devmgrd and have the kubelet's plugin directory.
func (n *Connection) NotRedirected() []device.PodContainer { return n.notRedirected.list() }

// Limits returns what the release of the runtime that connected last keeps devmgrd from doing.
func (n *Connection) Limits() []device.Limit {
	if can := n.features.Load(); can != nil {
		return can.limits()
	}
	return nil
}

// Run keeps the connection until ctx ends, and replaces it whenever it is lost.
func (n *Connection) Run(ctx context.Context) error {
	failures, warned := newFailures(), false
	for {
		connected, err := n.runOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if connected {
			failures.ordinary.Reset()
			warned = false
		}
		if !warned {
			n.Log.Warn("cannot connect to container runtime; retrying", "socket", n.Socket, "err", err)
			warned = true
		}
		if cause, isNew := failures.add(err); cause != "" {
			n.explain(cause, isNew)
		} else if failures.unlisted == 0 {
			n.stuck.Store(nil)
		}
		failures.pause().Wait(ctx)
		if ctx.Err() != nil {
			return nil
		}
	}
}

// samePIDs reports whether a process has the PID namespace of this one.
func samePIDs(pid int32) bool {
	ours, err := os.Readlink("/proc/self/ns/pid")
	theirs, err2 := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	return err == nil && err2 == nil && ours == theirs
}

// explain stores why the runtime does not list its containers, and reports it when it is new.
func (n *Connection) explain(cause string, isNew bool) {
	n.stuck.Store(&cause)
	if isNew {
		n.Log.Error("container runtime does not list its containers", "socket", n.Socket, "err", cause)
		n.Notifier.NotSynchronized(cause)
	}
}

// runOnce opens one connection and keeps it until it is lost or ctx ends. Each connection needs a new stub, since a stub that has
// failed to start keeps its dead connection. The connection is closed in any case: a former stub must not become a second
// devmgrd when the runtime continues. NRI does not reject a second plugin of the same name, and two plugins that set the same entry
// fail every container.
func (n *Connection) runOnce(ctx context.Context) (connected bool, err error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", n.Socket)
	if err != nil {
		return false, err
	}
	hook := func(cdi.Hook, int32) {}
	if n.Claims != nil {
		hook = n.Claims.SetHook
	}
	var reports locks.Mutex[locks.RuntimeReports] // guards over, and makes the loss of the connection the last report of it
	over := false                                 // a list that is handled longer than the connection lasts counts for nothing
	defer func() {
		conn.Close()
		reports.Lock()
		defer reports.Unlock()
		over = true
		n.connected.Store(false)
		hook(cdi.Away, 0)
		n.Runtime.RuntimeLost()
	}()
	runtime, err := socket.Peer(conn)
	if err != nil {
		return false, err
	}
	n.Presence.runtime.Store(runtime > 0)
	lost := make(chan struct{})
	var once sync.Once
	var synced atomic.Bool
	far := &progress{}
	p := &plugin{Connection: n, ifConnected: func(report func()) {
		reports.Lock()
		defer reports.Unlock()
		if over {
			return
		}
		report()
		synced.Store(true)
		n.connected.Store(true)
		n.stuck.Store(nil)
		if runtime > 0 && samePIDs(runtime) {
			hook(cdi.Visible, runtime)
		} else {
			hook(cdi.Hidden, runtime)
		}
		n.first.Do(func() { close(n.synced) })
	}}
	limited, cancel := context.WithTimeoutCause(ctx, n.limit, fmt.Errorf("the runtime has not configured devmgrd within %s", n.limit))
	defer cancel()
	s, err := stub.New(p, append(newStarting(conn).options(limited),
		stub.WithPluginName(pluginName), stub.WithPluginIdx(n.Index),
		stub.WithOnClose(func() { once.Do(func() { close(lost) }) }), stub.WithLogger(logger{n.Log}),
		stub.WithTTRPCOptions(nil, []ttrpc.ServerOpt{ttrpc.WithChainUnaryServerInterceptor(far.intercept)}),
		// With NRI 0.12.4 or later a request fails if devmgrd does not answer in time; older runtimes continue without devmgrd.
		// Both then drop the plugin. The option KeepConnected would prevent that, but a devmgrd that hangs would then fail every
		// operation on the node, also for pods without devices. Dropped once, it fails nothing more, and the runtime's own
		// validator keeps containers that ask for devices waiting.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true}))...)
	if err != nil {
		return false, err
	}
	if err := s.Start(ctx); err != nil {
		return false, err
	}
	configured, late := time.Now(), time.After(n.listLimit)
	for {
		select {
		case <-lost:
			return synced.Load(), far.end(time.Since(configured), s.RequestTimeout(), runtime)
		case <-late:
			if !synced.Load() {
				n.explain(fmt.Sprintf("the runtime has accepted devmgrd, but has not listed its containers within %s: it waits until all container operations in progress end, "+
					"such as the stop of a pod with a long grace period, and starts no other; if it waits for longer than that, restart the runtime", n.listLimit), true)
			}
		case <-ctx.Done():
			s.Stop()
			return synced.Load(), ctx.Err()
		}
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
	if strings.HasPrefix(format, "failed to infer runtime NRI version") { // of CRI-O, whose version has no v; nothing depends on it
		l.Debugf(ctx, format, args...)
		return
	}
	l.log.WarnContext(ctx, fmt.Sprintf(format, args...))
}
func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.log.ErrorContext(ctx, fmt.Sprintf(format, args...))
}
