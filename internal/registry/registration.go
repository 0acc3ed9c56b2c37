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
	"sync"
	"syscall"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
)

const (
	firstPause  = 100 * time.Millisecond // before dialling back
	lastPause   = 5 * time.Second        // longest pause; it doubles up to this
	unseenPause = time.Minute            // where no watch reports a recreated socket
	refusePause = 2 * time.Minute        // after a refused list or plugin, or a first ListAndWatch that ended without a list
	holdTime    = 5 * time.Second        // for the watcher to find a remembered plugin
	growPause   = 10 * time.Second       // between two tries to make room for a plugin's new devices
	courtesy    = 300 * time.Millisecond // for the plugin to register after it has created its socket
)

// A registration is a plugin's claim to serve a resource, until another registration replaces it. It follows the plugin's
// ListAndWatch stream, and dials the plugin again when the stream ends. A registration that was replaced stays in reserve, if its plugin can be reached.
type registration struct {
	id       uint64 // in order of arrival
	resource device.ResourceName
	location location
	endpoint string // see endpoint.go; empty: the plugin has none any longer, and the registration does not run
	path     string // of the endpoint
	lack     string // why there is no endpoint

	registry *Registry
	log      *slog.Logger
	wake     chan struct{}      // size one: the socket file was recreated
	tried    chan struct{}      // closed when the plugin has listed its devices, or could not be reached
	after    <-chan struct{}    // of one in reserve from the state file: tried of the current one; nil: none
	attempt  func()             // closes tried
	cancel   context.CancelFunc // ends Run; guarded by Registry.mu, as is what follows

	caller string       // that has registered it in the common directory; empty: it was found there
	quota  device.Quota // see quota.go; zero: not known yet, or none

	// Of one in reserve (instances.go):
	session *session
	list    deviceList
	weight  int  // of list
	listed  bool // the present connection has listed devices; also of the current one
	redated bool // its list has had other dates since the plugin sent it: the next one gets them, too
	gone    bool // as of the last try no process listens at the socket; or it was dropped

	endStream context.CancelFunc // ends the present or the latest stream
	rest      context.Context    // it rests until this ends; nil: it does not rest
	resume    context.CancelFunc // ends rest

	outs *rate.Sometimes // limits the lines about devices that are left out
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
func newRegistration(r *Registry, id uint64, resource device.ResourceName, loc location, endpoint string) *registration {
	l := &registration{
		id: id, resource: resource, location: loc, endpoint: endpoint, path: loc.locate(endpoint),
		registry: r,
		log:      r.log.With("resource", resource, "endpoint", endpoint),
		wake:     make(chan struct{}, 1),
		tried:    make(chan struct{}),
		cancel:   func() {}, endStream: func() {},
		outs: loops.Seldom(),
	}
	l.attempt = sync.OnceFunc(func() { close(l.tried) })
	if loc.pod.Known() {
		l.quota = device.Quota{Pod: connlimit.PodClient(loc.pod.UID), Account: accountOf(loc.pod)}
		l.log = l.log.With("pod", loc.pod.String())
	}
	if loc.pod.ServiceAccount != "" {
		l.log = l.log.With("service_account", loc.pod.ServiceAccount)
	}
	return l
}

// Run follows the plugin until ctx ends: first through the session, if there is one, and then through sessions that it opens.
// Without a session it dials first, as for a plugin from the state file.
func (l *registration) Run(ctx context.Context, on *session) {
	defer l.attempt()
	defer func() {
		if on != nil {
			on.close() // ctx ended before Run began
		}
	}()
	if on == nil {
		l.hold(ctx)
	}
	pause := loops.Backoff{First: l.registry.firstPause, Last: l.registry.lastPause}
	listed := on == nil // a plugin from the state file has listed its devices before
	first := on == nil
	for ctx.Err() == nil {
		var err error
		if on == nil {
			on, err = l.dial(ctx)
			if on == nil && first {
				l.registry.absent(l, err)
			}
			first = false
		}
		if on != nil {
			began := time.Now()
			var any bool
			any, err = l.runOnce(ctx, on)
			listed = listed || any
			on = nil
			if time.Since(began) > lastPause {
				pause.Reset() // not a failed try
			}
			l.registry.ended(l, err)
		}

		l.registry.unreached(l, err)
		l.attempt()
		barred := new(barredError)
		l.wait(ctx, err, &pause, !listed && errors.As(err, new(*endError)) || errors.As(err, new(*budgetError)) || errors.As(err, new(*quotaError)) ||
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

// hold delays the first dial of a plugin from the state file. The watcher will find the socket that it had found again, and a second stream would end the
// first. One in reserve comes after the current one, so that the offer does not change twice.
func (l *registration) hold(ctx context.Context) {
	var called <-chan struct{}
	if d := l.registry.directoryOf(l.location); d != nil && d.location.registry != "" && filepath.IsAbs(l.endpoint) {
		called = d.called
	}
	late := time.After(l.registry.holdTime)
	for _, ready := range []<-chan struct{}{called, l.after} {
		if ready == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-ready:
		case <-late:
			return
		}
	}
}

// wait waits for the time of the next dial after err. If only a new socket can help, it waits for that alone, so that a plugin
// that is gone costs nothing. A plugin that registered and then refused to list its devices is dialled rarely: the kubelet does
// not dial it a second time.
func (l *registration) wait(ctx context.Context, err error, pause *loops.Backoff, refused bool) {
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
		// Most plugins that recreate their socket register a moment later. Dialling before that would open two streams, and in
		// some plugins the abandoned stream reads from the channel of the next one, and takes the next device's failure from it.
		pause.Reset()
		l.log.Debug("plugin's socket was recreated; it may register", "wait", l.registry.courtesy)
		loops.Sleep(ctx, l.registry.courtesy)
	}
}

// rests reports whether dialling is useless until the socket's file is recreated, or the plugin registers: the file is missing,
// is not a plugin's socket, or has no listener. A plugin may begin to listen without an event, so a missing listener counts only
// when the plugin is Lost and the pause between dials is the longest.
func (l *registration) rests(err error, tried bool) bool {
	if hopeless := new(socketError); errors.As(err, &hopeless) || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return tried && errors.Is(err, syscall.ECONNREFUSED) && l.registry.lost(l)
}

// nobodyListens reports whether the error of a dial says that no plugin listens at its socket, or that none may.
func nobodyListens(err error) bool {
	hopeless, barred := new(socketError), new(barredError)
	return errors.As(err, &hopeless) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) ||
		errors.As(err, &barred) && barred.lasting
}

// unseen reports whether the socket may be recreated without an event: it is in no watched directory, or its name is a link.
func (l *registration) unseen() bool {
	if !l.location.watched(l.path) {
		return true
	}
	info, err := l.location.stat(l.path)
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

// dial tries once to open a session, and records that the plugin is connected.
func (l *registration) dial(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, l.registry.registerTimeout)
	defer cancel()
	if err := l.registry.checkRules(ctx, l); err != nil {
		return nil, err
	}
	s, err := l.registry.connect(ctx, &l.location, l.endpoint)
	if err != nil {
		return nil, err
	}
	s.quota = l.registry.quotaOf(s.process)
	err = s.ask(ctx)
	if err == nil {
		err = l.registry.connected(l, s)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// runOnce follows the plugin's streams to the end of the session: one, and a further one each time that the plugin has rested. It returns whether the plugin
// has listed its devices, and why the last stream ended.
func (l *registration) runOnce(ctx context.Context, on *session) (listed bool, err error) {
	defer on.close()
	for {
		any, err := l.follow(ctx, on)
		listed = listed || any
		if !errors.Is(err, errRests) {
			return listed, err
		}
		l.attempt()
		l.log.Info("plugin rests in reserve; no room for its list")
		if err := l.registry.awaitTurn(ctx, l, on); err != nil {
			return listed, err
		}
	}
}

// follow follows one ListAndWatch stream to its end. It returns whether the plugin has listed its devices, and why the stream ended.
func (l *registration) follow(ctx context.Context, on *session) (listed bool, err error) {
	streaming, end := context.WithCancel(ctx)
	defer end()
	l.registry.streams(l, end)
	messages, err := l.messages(streaming, on)
	if err != nil {
		return false, err
	}
	defer messages.finish(end)
	list := lister{deviceList: l.registry.deviceList(l.resource), most: l.registry.cfg.MaxDevices}
	var logged faults
	var tried time.Time // to make room for devices that were left out
	for {
		message, err := messages.next()
		switch {
		case err != nil && l.registry.rests(l):
			return listed, errRests
		case errors.Is(err, io.EOF):
			return listed, new(endError)
		case err != nil:
			return listed, l.listError(err)
		}
		if n, limit := len(message.Devices), l.registry.cfg.MaxDevices; n > limit {
			return listed, fmt.Errorf("the plugin lists %d devices, and plugins.maxDevices allows %d", n, limit)
		}
		before, alone := list.deviceList, false
		found := list.take(message.Devices, time.Now())
		if !listed || !device.SameList(before.devices, list.devices) {
			if alone, err = l.affordMost(&list, before, listed, &tried); err != nil {
				if errors.Is(err, errRests) {
					l.registry.rest(l)
				}
				return listed, err
			}
			if !tried.IsZero() {
				if err := messages.repeat(message, l.registry.growPause); err != nil {
					return listed, err
				}
			}
		}
		if found != logged && found != (faults{}) {
			l.log.Warn("plugin's device list has faults", "duplicates", found.doubles, "duplicate", device.Clip(found.double),
				"empty_ids", found.empty, "long_ids", found.long, "invalid_numa", found.nowhere)
		}
		logged = found
		listed = true
		var back bool
		list.deviceList, back = l.registry.listed(l, on, list.deviceList, alone)
		l.attempt()
		if back {
			l.log.Log(ctx, l.registry.level(l, slog.LevelInfo), "plugin serving", "devices", len(list.devices))
		}
	}
}

// affordMost is Registry.afford, but leaves new devices out for which there is no room. tried is when there was none last; zero: none are left out.
func (l *registration) affordMost(list *lister, before deviceList, listed bool, tried *time.Time) (alone bool, err error) {
	if time.Since(*tried) >= l.registry.growPause {
		alone, err = l.registry.afford(l, list.deviceList)
		if !errors.As(err, new(*quotaError)) && !errors.As(err, new(*budgetError)) {
			*tried = time.Time{}
			return alone, err
		}
		*tried = time.Now()
	}
	out := list.leaveOut(before)
	if len(list.devices) == 0 && !listed {
		return false, err // nothing was accepted before
	}
	alone, other := l.registry.afford(l, list.deviceList)
	switch {
	case other != nil:
		return false, other
	case out == 0:
		*tried = time.Time{}
	case err != nil:
		l.registry.leftOut(l, out, err)
	}
	return alone, nil
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

// nudge ends the pause before the next dial.
func (l *registration) nudge() {
	loops.Signal(l.wake)
}
