package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/backoff"
	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	firstPause = 100 * time.Millisecond // before dialling back
	lastPause  = 5 * time.Second        // the pause doubles up to this
	aliasPause = time.Minute            // at rest, where the watch cannot see what the socket's name leads to
	courtesy   = 300 * time.Millisecond // from a socket's creation on, for the plugin to register by itself
)

// A link is one registration: one plugin's claim to serve one resource, for as long as no other takes its place.
// It follows the plugin's stream and dials back when that ends. The registry hears only the resource's current link.
type link struct {
	id       uint64 // in order of arrival
	resource device.ResourceName
	endpoint string // the socket's name in the socket directory; empty: it has none any more, and the link is not run

	registry *Registry
	log      *slog.Logger
	wake     chan struct{}      // size one: the socket file was made anew
	cancel   context.CancelFunc // ends Run; guarded by Registry.mu
}

// where names the plugin's socket for people.
func (l *link) where() string {
	if l.endpoint == "" {
		return "its socket is another resource's now"
	}
	return l.endpoint
}

// newLink makes a link that does nothing before it is started.
func newLink(r *Registry, id uint64, resource device.ResourceName, endpoint string) *link {
	return &link{
		id: id, resource: resource, endpoint: endpoint,
		registry: r,
		log:      r.log.With("resource", resource, "endpoint", endpoint),
		wake:     make(chan struct{}, 1),
		cancel:   func() {},
	}
}

// Run lives on the session, and then on one after the other that it opens itself, until ctx ends.
// Without a session it begins by dialling, as for a plugin that the store remembers.
func (l *link) Run(ctx context.Context, on *session) {
	pause := backoff.Backoff{First: firstPause, Last: l.registry.lastPause}
	for ctx.Err() == nil {
		var err error
		if on == nil {
			on, err = l.dial(ctx)
		}
		if on != nil {
			began := time.Now()
			err = l.runOnce(ctx, on)
			on = nil
			if time.Since(began) > lastPause {
				pause.Reset() // that was a life, not another failed try
			}
			if l.registry.ended(l) {
				l.log.Warn("plugin is away: nothing new is allocated from it until it is back",
					"err", err, "grace", l.registry.cfg.GracePeriod)
			}
		}

		l.wait(ctx, err, &pause)
	}
}

// wait returns when it is time to dial back after err. Where only news can help it waits for that alone, so that a
// plugin which has gone for good costs nothing.
func (l *link) wait(ctx context.Context, err error, pause *backoff.Backoff) {
	var clock <-chan time.Time
	d := pause.Next()
	switch rests := l.rests(err, pause.Longest()); {
	case !rests:
		l.log.Debug("dialling back", "err", err, "wait", d)
		clock = time.After(d)
	case l.alias():
		l.log.Debug("dialling back now and then", "err", err, "wait", aliasPause)
		clock = time.After(aliasPause)
	default:
		l.log.Debug("waiting for the plugin's socket to be made anew", "err", err)
	}
	select {
	case <-ctx.Done():
	case <-clock:
	case <-l.wake:
		// Most plugins that make their socket anew register a moment later. To dial them before that would open
		// two streams, and plugins whose abandoned stream keeps reading from the same channel as the next one
		// would tell it, not us, of the next device that fails.
		pause.Reset()
		select {
		case <-ctx.Done():
		case <-time.After(courtesy):
		}
	}
}

// rests tells whether dialling is no use until the socket's file is made anew, which the watch sees, or the plugin
// registers: there is no file, it is no plugin's socket, or nobody listens on it. The last may pass without a sign,
// since a socket's file is there before its owner listens; so it counts when the plugin is lost and has been dialled
// for as long as the pauses grow.
func (l *link) rests(err error, tried bool) bool {
	if hopeless := new(socketError); errors.As(err, &hopeless) || errors.Is(err, fs.ErrNotExist) {
		return true
	}
	return tried && errors.Is(err, syscall.ECONNREFUSED) && l.registry.lost(l)
}

// alias tells whether the socket's name is a link: what that leads to may come and go without a sign.
func (l *link) alias() bool {
	info, err := os.Lstat(filepath.Join(l.registry.cfg.SocketDir, l.endpoint))
	return err == nil && info.Mode().Type() == fs.ModeSymlink
}

// dial opens a session with one try.
func (l *link) dial(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, l.registry.registerTimeout)
	defer cancel()
	s, err := connect(ctx, l.registry.cfg.SocketDir, l.endpoint, l.registry.cfg.MaxMessageBytes)
	if err != nil {
		return nil, err
	}
	if err := s.ask(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// runOnce is one honest life: it follows one ListAndWatch from its opening to its end, says why that was, and closes
// the session.
func (l *link) runOnce(ctx context.Context, on *session) error {
	defer on.close()
	codec := newListCodec()
	stream, err := on.client.ListAndWatch(ctx, &pluginapi.Empty{}, grpc.ForceCodecV2(codec))
	if err != nil {
		return err
	}
	list := lister{devices: l.registry.devices(l.resource)}
	var told faults
	for {
		message, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the plugin has ended its stream")
		case err != nil:
			return fmt.Errorf("list of devices: %w", err)
		case codec.unchanged:
			continue
		}
		if n, limit := len(message.Devices), l.registry.cfg.MaxDevices; n > limit {
			return fmt.Errorf("the plugin lists %d devices, and plugins.maxDevices allows %d", n, limit)
		}
		found := list.take(message.Devices)
		if found != told && found != (faults{}) {
			l.log.Warn("plugin's list has faults: of devices with the same ID the last one counts; those without ID, "+
				"or with one that is too long, do not, nor do NUMA nodes that cannot be",
				"doubles", found.doubles, "double", clip(found.double), "withoutID", found.empty,
				"longID", found.long, "impossibleNUMA", found.nowhere)
		}
		told = found
		if l.registry.listed(l, on, list.devices) {
			l.log.Info("plugin is serving", "devices", len(list.devices))
		}
	}
}

// nudge makes a waiting link dial at once.
func (l *link) nudge() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}
