package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/backoff"
	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	firstPause  = 100 * time.Millisecond // before dialling back
	lastPause   = 5 * time.Second        // the pause doubles up to this
	unseenPause = time.Minute            // at rest, where no watch sees the socket come back
	refusePause = 2 * time.Minute        // where the plugin itself has ended ListAndWatch, and has never listed
	holdTime    = 5 * time.Second        // for the watcher to find a remembered plugin
	courtesy    = 300 * time.Millisecond // from a socket's creation on, for the plugin to register
)

// A registration is one registration: one plugin's claim to serve one resource, for as long as no other takes its place.
// It follows the plugin's stream and dials back when that ends. The registry hears only the resource's current link.
type registration struct {
	id       uint64 // in order of arrival
	resource device.ResourceName
	home     home
	endpoint string // see endpoint.go; empty: the plugin has none any longer, and the link is not run
	path     string // of the endpoint
	lack     string // why there is no endpoint

	registry *Registry
	log      *slog.Logger
	wake     chan struct{}      // size one: the socket file was recreated
	cancel   context.CancelFunc // ends Run; guarded by Registry.mu
}

// where describes the plugin's socket in messages.
func (l *registration) where() string {
	if l.endpoint == "" {
		return cmp.Or(l.lack, "it has to register again")
	}
	return l.endpoint
}

// Why a resource that is known has no socket.
const (
	evicted   = "its socket is another resource's now"
	withdrawn = "its registration socket was removed"
	podGone   = "its pod is gone"
)

// newRegistration returns a registration that does nothing before it is started.
func newRegistration(r *Registry, id uint64, resource device.ResourceName, h home, endpoint string) *registration {
	l := &registration{
		id: id, resource: resource, home: h, endpoint: endpoint, path: h.locate(endpoint),
		registry: r,
		log:      r.log.With("resource", resource, "endpoint", endpoint),
		wake:     make(chan struct{}, 1),
		cancel:   func() {},
	}
	if h.pod.Known() {
		l.log = l.log.With("pod", h.pod.String())
	}
	if h.pod.ServiceAccount != "" {
		l.log = l.log.With("service_account", h.pod.ServiceAccount)
	}
	return l
}

// Run lives on the session, and then on one after the other that it opens itself, until ctx ends.
// Without a session it begins by dialling, as for a plugin that the store remembers.
func (l *registration) Run(ctx context.Context, on *session) {
	defer func() {
		if on != nil {
			on.close() // ctx had ended before Run began: the next registration was that quick
		}
	}()
	if on == nil {
		l.hold(ctx)
	}
	pause := backoff.Backoff{First: firstPause, Last: l.registry.lastPause}
	listed := on == nil // at some time; a remembered plugin has
	for ctx.Err() == nil {
		var err error
		if on == nil {
			if on, err = l.dial(ctx); on != nil {
				l.registry.connected(l, on)
			}
		}
		if on != nil {
			began := time.Now()
			var any bool
			any, err = l.runOnce(ctx, on)
			listed = listed || any
			on = nil
			if time.Since(began) > lastPause {
				pause.Reset() // that was a life, not another failed try
			}
			if l.registry.ended(l) {
				l.log.Warn("plugin disconnected; allocation paused",
					"err", err, "grace", l.registry.cfg.GracePeriod)
			}
		}

		l.registry.unreached(l, err)
		barred := new(barredError)
		l.wait(ctx, err, &pause, !listed && errors.As(err, new(*endError)) || errors.As(err, new(*budgetError)) ||
			errors.As(err, &barred) && barred.lasting)
	}
}

// An endError reports that the plugin ended ListAndWatch, in contrast to a broken connection.
type endError struct{ cause error }

func (e *endError) Error() string {
	if e.cause == nil {
		return "the plugin has ended its stream"
	}
	return fmt.Sprintf("list of devices: %v", e.cause)
}

func (e *endError) Unwrap() error { return e.cause }

// hold delays the first dial of a recorded plugin that the watcher had found, as its endpoint shows. The watcher will find
// the plugin again, which would otherwise have two streams, one after the other.
func (l *registration) hold(ctx context.Context) {
	d := l.registry.directoryOf(l.home)
	if d == nil || d.home.registry == "" || !filepath.IsAbs(l.endpoint) {
		return
	}
	select {
	case <-ctx.Done():
	case <-d.called:
	case <-time.After(holdTime):
	}
}

// wait returns when it is time to dial back after err. Where only a new socket can help it waits for that alone, so that a
// plugin that has gone forever costs nothing. A plugin that registered and then refused to list its devices is called rarely:
// the kubelet does not call it a second time.
func (l *registration) wait(ctx context.Context, err error, pause *backoff.Backoff, refused bool) {
	var clock <-chan time.Time
	d := pause.Next()
	if refused {
		d = l.registry.refusePause
	}
	tried := pause.Longest()
	rests := l.rests(err, tried)
	unseen := rests && l.unseen()
	switch {
	case !rests, unseen && !tried:
		l.log.Debug("redialling plugin", "err", err, "wait", d)
		clock = time.After(d)
	case unseen:
		l.log.Debug("redialling plugin seldom", "err", err, "wait", unseenPause)
		clock = time.After(unseenPause)
	default:
		l.log.Debug("waiting for plugin's new socket", "err", err)
	}
	select {
	case <-ctx.Done():
	case <-clock:
	case <-l.wake:
		// Most plugins that recreate their socket register a moment later. Dialling them before that would open
		// two streams. Some plugins' abandoned stream keeps reading from the same channel as the next one, and
		// would consume the next device's failure.
		pause.Reset()
		select {
		case <-ctx.Done():
		case <-time.After(courtesy):
		}
	}
}

// rests reports whether dialling is useless until the socket's file is recreated, which the watch sees, or the plugin
// registers: the file is missing, is no plugin's socket, or has no listener. A listener may appear without an event,
// since a socket's file exists before its owner listens. So a missing listener counts only when the plugin is lost and
// has been dialled until the pause is the longest.
func (l *registration) rests(err error, tried bool) bool {
	if hopeless := new(socketError); errors.As(err, &hopeless) || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return tried && errors.Is(err, syscall.ECONNREFUSED) && l.registry.lost(l)
}

// unseen reports whether the socket may come and go without an event: it is in no watched directory, or its name is a
// link.
func (l *registration) unseen() bool {
	if !l.home.watched(l.path) {
		return true
	}
	info, err := l.home.stat(l.path)
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

// dial opens a session with one try.
func (l *registration) dial(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, l.registry.registerTimeout)
	defer cancel()
	if err := l.registry.allowed(ctx, l); err != nil {
		return nil, err
	}
	s, err := connect(ctx, &l.home, l.endpoint, l.registry.cfg.MaxMessageBytes)
	if err != nil {
		return nil, err
	}
	if err := s.ask(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// runOnce follows one ListAndWatch from its opening to its end, and closes the session. It returns whether the plugin listed its
// devices, and why the stream ended.
func (l *registration) runOnce(ctx context.Context, on *session) (listed bool, err error) {
	defer on.close()
	codec := newListCodec()
	stream, err := on.client.ListAndWatch(ctx, &pluginapi.Empty{}, grpc.ForceCodecV2(codec))
	if err != nil {
		return false, err
	}
	list := lister{deviceList: l.registry.deviceList(l.resource), most: l.registry.cfg.MaxDevices}
	var told faults
	for {
		message, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return listed, new(endError)
		case err != nil:
			return listed, l.listError(err)
		case codec.unchanged:
			continue
		}
		if n, limit := len(message.Devices), l.registry.cfg.MaxDevices; n > limit {
			return listed, fmt.Errorf("the plugin lists %d devices, and plugins.maxDevices allows %d", n, limit)
		}
		before := list.devices
		found := list.take(message.Devices, time.Now())
		if !device.SameList(before, list.devices) {
			if err := l.registry.afford(l, list.deviceList); err != nil {
				return listed, err
			}
		}
		if found != told && found != (faults{}) {
			l.log.Warn("plugin's device list has faults", "duplicates", found.doubles, "duplicate", clip(found.double),
				"empty_ids", found.empty, "long_ids", found.long, "invalid_numa", found.nowhere)
		}
		told = found
		listed = true
		if l.registry.listed(l, on, list.deviceList) {
			l.log.Info("plugin serving", "devices", len(list.devices))
		}
	}
}

// listError explains the end of a stream with err.
func (l *registration) listError(err error) error {
	if status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "received message larger than max") {
		return fmt.Errorf("the plugin's list is longer than the %d bytes that plugins.maxMessageBytes allows; raise it: %w",
			l.registry.cfg.MaxMessageBytes, err)
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.Canceled, codes.DeadlineExceeded: // what gRPC says of a connection
		return fmt.Errorf("list of devices: %w", err)
	}
	return &endError{err}
}

// nudge makes a waiting registration dial at once.
func (l *registration) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
