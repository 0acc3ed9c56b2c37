package registry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/status"
	watcherapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops"
)

const (
	infoTimeout    = 5 * time.Second // of GetInfo; the kubelet's limit is one second, which is short while a machine boots
	notifyTimeout  = 5 * time.Second
	firstCallPause = 500 * time.Millisecond // before the next try
	lastCallPause  = 2 * time.Minute        // the pause doubles up to this
)

// A watchedSocket is a socket in the registry directory, on which a plugin waits to be called. It calls the plugin again only if the
// registration failed, or was replaced by one that is gone: the registration itself follows the plugin's stream.
type watchedSocket struct {
	registry *Registry
	location *location
	log      *slog.Logger
	warnings *rate.Limiter // the directory's, as is the next
	retries  *rate.Limiter
	path     string
	file     fs.FileInfo
	id       uint64        // of the first registration that comes of it
	wake     chan struct{} // size one: another candidate has gone
	deaf     atomic.Bool   // no plugin answered the last call
	cancel   context.CancelFunc
	done     chan struct{} // closed when Run has returned
}

// Run calls the plugin until it is registered. It withdraws the plugin when ctx ends: the socket is gone. It calls first when the
// first call has ended.
func (c *watchedSocket) Run(ctx context.Context, first func()) {
	pause := loops.Backoff{First: c.registry.callPause, Last: lastCallPause}
	var fault string
	var mine *registration
	for ctx.Err() == nil {
		l, err := c.call(ctx)
		first()
		other := new(typeError)
		switch {
		case err == nil:
			mine, fault = l, ""
			pause.Reset()
			c.wait(ctx, nil, mine)
		case ctx.Err() != nil:
		case errors.As(err, &other):
			c.log.Log(ctx, c.loud(), "ignoring socket of another plugin type", "err", err)
			<-ctx.Done()
		default:
			level := slog.LevelDebug
			if err.Error() != fault { // loud once
				fault, level = err.Error(), c.loud()
			}
			d := pause.Next()
			c.log.Log(ctx, level, "cannot register waiting plugin; retrying", "err", err, "wait", d)
			c.wait(ctx, time.After(d), mine)
			if !c.deaf.Load() { // else it costs little
				_ = c.retries.Wait(ctx) // fails with ctx only
			}
		}
	}
	if mine != nil {
		c.registry.withdraw(mine)
	}
}

// loud returns the level of a line that should be seen, unless the directory's plugins cause too many of them.
func (c *watchedSocket) loud() slog.Level {
	if c.warnings.Allow() {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// wait waits for a reason to call again: the plugin was refused, or was replaced by one that has been withdrawn.
func (c *watchedSocket) wait(ctx context.Context, clock <-chan time.Time, mine *registration) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-clock:
			return
		case <-c.wake:
			if mine == nil || c.registry.orphaned(mine.resource) {
				return
			}
		}
	}
}

// call registers the plugin, or notifies it of the failure.
func (c *watchedSocket) call(ctx context.Context) (*registration, error) {
	dialling, cancel := context.WithTimeout(ctx, c.registry.registerTimeout)
	defer cancel()
	on, err := c.registry.connect(dialling, c.location, c.path)
	c.deaf.Store(err != nil)
	if err != nil {
		return nil, err
	}
	defer on.close()
	plugin := watcherapi.NewRegistrationClient(on.conn)
	l, err := c.take(ctx, plugin)
	if err != nil {
		_ = notify(ctx, plugin, &watcherapi.RegistrationStatus{Error: err.Error()}) // it may never have listened
		return nil, err
	}
	return l, nil
}

// take asks the plugin for its identity, notifies it of the registration, and puts it in place. The kubelet notifies it last, and
// removes it again if the call fails. devmgrd notifies first: a plugin that does not answer replaces no other plugin.
func (c *watchedSocket) take(ctx context.Context, plugin watcherapi.RegistrationClient) (*registration, error) {
	r := c.registry
	id := c.id
	c.id = 0
	if id == 0 {
		id = r.nextNumber()
	}
	asking, cancel := context.WithTimeout(ctx, c.registry.infoTimeout)
	defer cancel()
	info, err := plugin.GetInfo(asking, &watcherapi.InfoRequest{})
	if err != nil {
		return nil, failed("GetInfo", err)
	}
	resource, path, err := c.location.checkInfo(info, c.path)
	if err != nil {
		return nil, err
	}
	looking, cancel := context.WithTimeout(ctx, r.registerTimeout)
	defer cancel()
	endpoint, err := c.location.spell(looking, r.hostChecks, path)
	if err != nil {
		return nil, fmt.Errorf("the plugin's socket: %w", err)
	}
	l := newRegistration(r, id, resource, r.named(ctx, *c.location, resource), endpoint)
	on, err := r.connectBack(ctx, l)
	if err != nil {
		return nil, err
	}
	if err := notify(ctx, plugin, &watcherapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		on.close()
		return nil, err
	}
	return l, r.install(l, on)
}

func notify(ctx context.Context, plugin watcherapi.RegistrationClient, s *watcherapi.RegistrationStatus) error {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	if _, err := plugin.NotifyRegistrationStatus(ctx, s); err != nil {
		return failed("NotifyRegistrationStatus", err)
	}
	return nil
}

// failed returns the error of a call.
func failed(call string, err error) error {
	return fmt.Errorf("%s: %s (%s)", call, device.ClipTo(status.Convert(err).Message(), maxError), status.Code(err))
}

// nudge calls the plugin again if it is not registered. It reports false and does nothing if no plugin answered the last call.
func (c *watchedSocket) nudge() bool {
	if c.deaf.Load() {
		return false
	}
	loops.Signal(c.wake)
	return true
}
