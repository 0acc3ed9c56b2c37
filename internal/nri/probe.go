package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
)

// A Greeting is how the runtime introduces itself to an NRI plugin.
type Greeting struct {
	Runtime, Version string
	RequestTimeout   time.Duration // of each answer; 0: not reported
	// CDI: it injects CDI devices. Rules: it supports rules of the devices cgroup. Args: it replaces command lines.
	// Validates: it has validators.
	CDI, Rules, Args, Validates bool
}

// Probe connects to a runtime as devmgrd does, and leaves after the runtime's greeting: it subscribes to no event and gets no list.
// The runtime logs that a plugin named devmgrd-check has not started.
func Probe(ctx context.Context, socket string) (Greeting, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return Greeting{}, err
	}
	defer conn.Close()
	p := &probe{}
	s, err := stub.New(p, append(newStarting(conn).options(ctx), stub.WithPluginName("devmgrd-check"), stub.WithPluginIdx("99"),
		stub.WithOnClose(func() {}), stub.WithLogger(logger{slog.New(slog.DiscardHandler)}))...)
	if err != nil {
		return Greeting{}, err
	}
	err = s.Start(ctx)
	who := p.greeted.Load()
	switch { // with a greeting the error is ours
	case who == nil && ctx.Err() != nil:
		return Greeting{}, fmt.Errorf("it accepts the connection and does not answer: %w", ctx.Err())
	case who == nil:
		return Greeting{}, err
	}
	can := featuresOf(who.name, who.version)
	return Greeting{
		Runtime: who.name, Version: who.version, RequestTimeout: s.RequestTimeout(),
		CDI: can.cdi, Rules: can.rules, Args: can.args, Validates: can.validates,
	}, nil
}

// errProbed ends the registration; it is in the runtime's log.
var errProbed = errors.New("devmgrd check disconnects after its probe; this is not a failure")

// A probe is a plugin that refuses its configuration.
type probe struct{ greeted atomic.Pointer[runtimeName] }

type runtimeName struct{ name, version string }

// Configure records the greeting, and refuses.
func (p *probe) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	p.greeted.Store(&runtimeName{runtime, version})
	return 0, errProbed
}

// RemovePodSandbox is never called, but the stub requires a handler.
func (p *probe) RemovePodSandbox(context.Context, *api.PodSandbox) error { return nil }
