package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	firstPause  = 100 * time.Millisecond // before dialling back
	lastPause   = 5 * time.Second        // the pause doubles up to this
	absentPause = time.Minute            // while there is no socket file: its creation wakes the link
	courtesy    = 300 * time.Millisecond // from that creation on, for the plugin to register by itself
)

// A link is one registration: one plugin's claim to serve one resource, for as long as no other takes its place.
// It follows the plugin's stream and dials back when that ends. The registry hears only the resource's current link.
type link struct {
	id       uint64 // in order of arrival
	resource device.ResourceName
	endpoint string // the socket's name in the socket directory

	registry *Registry
	log      *slog.Logger
	wake     chan struct{}      // size one: the socket file was made anew
	cancel   context.CancelFunc // ends Run; guarded by Registry.mu
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
	var pause backoff
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
				pause.reset() // that was a life, not another failed try
			}
			if l.registry.ended(l) {
				l.log.Warn("plugin is away: nothing new is allocated from it until it is back",
					"err", err, "grace", l.registry.cfg.GracePeriod)
			}
		}

		wait := pause.next()
		if errors.Is(err, fs.ErrNotExist) {
			wait = absentPause
		}
		l.log.Debug("dialling back", "err", err, "wait", wait)
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		case <-l.wake:
			// Most plugins that make their socket anew register a moment later. To dial them before that would open
			// two streams, and plugins whose abandoned stream keeps reading from the same channel as the next one
			// would tell it, not us, of the next device that fails.
			pause.reset()
			select {
			case <-ctx.Done():
			case <-time.After(courtesy):
			}
		}
	}
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
			l.log.Warn("plugin's list has faults: of devices with the same ID the last one counts, those without ID do not",
				"doubles", found.doubles, "double", found.double, "withoutID", found.empty)
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

// backoff gives pauses that double, each a little shorter than its turn so that many links do not march in step.
type backoff struct{ pause time.Duration }

func (b *backoff) next() time.Duration {
	b.pause = min(max(2*b.pause, firstPause), lastPause)
	return b.pause - rand.N(b.pause/4)
}

func (b *backoff) reset() { b.pause = 0 }
