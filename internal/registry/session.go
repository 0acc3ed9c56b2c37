package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
)

const (
	maxAnswer      = 8 << 20  // bytes of an answer of Allocate or GetPreferredAllocation: more than device.MaxGrant, so that the error names the entry that is too long
	maxShortAnswer = 64 << 10 // of the other calls, but for ListAndWatch
)

// A session is one connection to a plugin. It is never re-dialled: when the connection breaks, the registration opens another
// session. So all calls through one session reach the same process.
type session struct {
	client   pluginapi.DevicePluginClient
	began    time.Time
	process  string       // that listens, as connlimit names it
	quota    device.Quota // in which that counts
	preStart bool         // of the plugin's options
	prefers  bool         // likewise

	conn *grpc.ClientConn
	raw  net.Conn
	turn chan struct{} // size one: held by the caller of the plugin
	over chan struct{} // closed with the session
	once sync.Once
}

// connect opens a session with the plugin at endpoint, in one try.
func (r *Registry) connect(ctx context.Context, loc *location, endpoint string) (*session, error) {
	raw, path, err := loc.dial(ctx, r.hostChecks, endpoint)
	if err != nil {
		return nil, err
	}
	process, err := connlimit.UnixClient(raw)
	if err != nil {
		raw.Close()
		return nil, err
	}
	in := newIntake(raw, r.intakes, process, r.intakeTime)
	var used atomic.Bool
	conn, err := grpc.NewClient("passthrough:///"+socketName,
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			if used.Swap(true) {
				return nil, errors.New("the connection to the plugin has ended")
			}
			return in, nil
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"), // servers in Rust and C++ refuse a socket's path as authority
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxShortAnswer)), grpc.WithMaxHeaderListSize(maxAnswerHeaders),
		// A window that grows would let a plugin send up to 16 MiB that nothing has read yet.
		grpc.WithStaticStreamWindowSize(intakeWindow), grpc.WithStaticConnWindowSize(intakeWindow), grpc.WithStatsHandler(in),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0), // a plugin that rests has no stream
	)
	if err != nil {
		in.Close()
		return nil, err
	}
	s := &session{
		began:   time.Now(),
		process: process,
		client:  pluginapi.NewDevicePluginClient(conn),
		conn:    conn, raw: in,
		turn: make(chan struct{}, 1),
		over: make(chan struct{}),
	}
	if err := s.ready(ctx); err != nil {
		s.close()
		return nil, fmt.Errorf("dial %s: %w", path, err)
	}
	return s, nil
}

// ready waits until the other side has answered as an HTTP/2 server.
func (s *session) ready(ctx context.Context) error {
	s.conn.Connect()
	begun := false
	for {
		state := s.conn.GetState()
		switch {
		case state == connectivity.Ready:
			return nil
		case state == connectivity.Connecting:
			begun = true
		case state == connectivity.TransientFailure, state == connectivity.Shutdown, begun:
			return errors.New("it does not answer as a gRPC server")
		}
		if !s.conn.WaitForStateChange(ctx, state) {
			return fmt.Errorf("it accepts connections but does not answer: %w", ctx.Err())
		}
	}
}

// ask fetches the plugin's options: the first call on each session, as plugins expect it.
func (s *session) ask(ctx context.Context) error {
	options, err := s.client.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	s.preStart, s.prefers = options.GetPreStartRequired(), options.GetGetPreferredAllocationAvailable()
	return nil
}

// close ends the session and all its calls. It may be called more than once.
func (s *session) close() {
	s.once.Do(func() {
		close(s.over)
		s.conn.Close()
		s.raw.Close() // gRPC may not have taken it over yet
	})
}
