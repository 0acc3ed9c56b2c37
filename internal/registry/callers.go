package registry

import (
	"context"
	"errors"
	"net"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
	"github.com/devmgrd/devmgrd/internal/socket/peercreds"
)

// callerLimits bounds the connections to kubelet.sock, in total and per client. Further connections wait in line: a plugin may
// register hundreds of resources at once, and a refused plugin may never try again.
var callerLimits = connlimit.Limits{Served: 1024, ServedPerClient: 256, Waiting: 1024, WaitingPerClient: 256}

const (
	connectionStreams = 8   // requests at once on one connection
	maxRegistering    = 256 // calls of Register at work
	maxRegisteringOf  = 32  // of one process

	// An idle connection is closed. gRPC's clients dial again when they need to.
	callerIdle = 10 * time.Second
	// A busy connection is closed too, after this time.
	callerAge   = time.Minute
	callerGrace = 15 * time.Second

	callerBuffer = 4 << 10 // a request is far smaller
)

// A registrationServer is the gRPC server of kubelet.sock, with bounds on its connections.
type registrationServer struct {
	*grpc.Server
	limiter *connlimit.Limiter
}

// newRegistrationServer returns a server whose connections and calls are bounded.
func newRegistrationServer(options ...grpc.ServerOption) *registrationServer {
	calls := &callLimiter{all: semaphore.NewWeighted(maxRegistering), clients: map[string]*clientCalls{}}
	return &registrationServer{
		Server: grpc.NewServer(append(options,
			grpc.Creds(peercreds.New(identifyCaller)),
			grpc.UnaryInterceptor(calls.wait),
			grpc.MaxConcurrentStreams(connectionStreams),
			grpc.ReadBufferSize(callerBuffer),
			grpc.WriteBufferSize(callerBuffer),
			grpc.KeepaliveParams(keepalive.ServerParameters{
				MaxConnectionIdle: callerIdle, MaxConnectionAge: callerAge, MaxConnectionAgeGrace: callerGrace,
			}),
		)...),
		limiter: connlimit.New(callerLimits, clientOf),
	}
}

// Serve serves the connections of a listener in turn.
func (s *registrationServer) Serve(l net.Listener) error {
	return s.Server.Serve(s.limiter.Listener(l))
}

// A directoryListener is the listener of a directory's kubelet.sock.
type directoryListener struct {
	net.Listener
	directory *directory
}

// Accept returns the next connection, which knows the directory.
func (e directoryListener) Accept() (net.Conn, error) {
	conn, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &directoryConn{conn, e.directory}, nil
}

// A directoryConn is a connection to a directory's kubelet.sock.
type directoryConn struct {
	net.Conn
	directory *directory
}

// NetConn returns the connection itself.
func (g *directoryConn) NetConn() net.Conn { return g.Conn }

// clientOf names the client of a connection: a plugin pod as a whole, since its processes may fork, or another process.
func clientOf(conn net.Conn) (string, error) {
	if g, is := conn.(*directoryConn); is && g.directory.pod.Known() {
		return connlimit.PodClient(g.directory.pod.UID), nil
	}
	return connlimit.UnixClient(conn)
}

// A caller is the client of a call: its name, and the directory whose socket it has dialled.
type caller struct {
	client    string
	directory *directory
}

// identifyCaller returns the caller at the other end of a connection.
func identifyCaller(conn net.Conn) (net.Conn, caller, error) {
	if limited, ok := conn.(*connlimit.Conn); ok {
		if g, ok := limited.NetConn().(*directoryConn); ok {
			return conn, caller{limited.Client(), g.directory}, nil
		}
	}
	return nil, caller{}, errors.New("the connection was not accepted by kubelet.sock's listener")
}

// callLimiter bounds the calls at work. Calls beyond the bounds wait in line until their callers give up.
type callLimiter struct {
	all *semaphore.Weighted

	mu      locks.Mutex[locks.Leaf]
	clients map[string]*clientCalls
}

// A clientCalls counts one client's calls.
type clientCalls struct {
	own   *semaphore.Weighted
	calls int // at work or waiting
}

// wait waits for a call's turn.
func (t *callLimiter) wait(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	client := peercreds.Of[caller](ctx).client
	mine := t.enter(client)
	defer t.leave(client)
	if err := mine.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	defer mine.Release(1)
	if err := t.all.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	defer t.all.Release(1)
	return handle(ctx, request)
}

func (t *callLimiter) enter(client string) *semaphore.Weighted {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clients[client]
	if c == nil {
		c = &clientCalls{own: semaphore.NewWeighted(maxRegisteringOf)}
		t.clients[client] = c
	}
	c.calls++
	return c.own
}

func (t *callLimiter) leave(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.clients[client]; c.calls > 1 {
		c.calls--
	} else {
		delete(t.clients, client)
	}
}
