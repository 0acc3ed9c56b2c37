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
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

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

// newRegistrationServer returns the server of a Registry, whose connections and calls are bounded.
func newRegistrationServer(r *Registry) *registrationServer {
	calls := newTurns(maxRegistering, maxRegisteringOf)
	s := &registrationServer{
		Server: grpc.NewServer(
			grpc.MaxRecvMsgSize(maxRegisterBytes),
			grpc.ConnectionTimeout(r.registerTimeout),
			grpc.WaitForHandlers(true),
			grpc.Creds(peercreds.New(identifyCaller)),
			grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
				done, err := calls.take(ctx, peercreds.Of[caller](ctx).client)
				if err != nil {
					return nil, status.FromContextError(err).Err()
				}
				defer done()
				return handle(ctx, request)
			}),
			grpc.MaxConcurrentStreams(connectionStreams),
			grpc.MaxHeaderListSize(maxHeaderBytes),
			grpc.ReadBufferSize(callerBuffer),
			grpc.WriteBufferSize(callerBuffer),
			grpc.KeepaliveParams(keepalive.ServerParameters{
				MaxConnectionIdle: callerIdle, MaxConnectionAge: callerAge, MaxConnectionAgeGrace: callerGrace,
			}),
		),
		limiter: connlimit.New(callerLimits, clientOf),
	}
	pluginapi.RegisterRegistrationServer(s, &server{registry: r})
	return s
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

// turns bounds what is done at once, in all and for each client. What is beyond the bounds waits in line; a client has at most as many in the common line
// as it may have turns.
type turns struct {
	all  *semaphore.Weighted
	each int64

	mu      locks.Mutex[locks.Leaf]
	clients map[string]*clientTurns
}

// A clientTurns counts one client's turns.
type clientTurns struct {
	own   *semaphore.Weighted
	users int // that have a turn or wait
}

func newTurns(all, each int64) *turns {
	return &turns{all: semaphore.NewWeighted(all), each: each, clients: map[string]*clientTurns{}}
}

// take waits for a client's turn, which ends when done is called.
func (t *turns) take(ctx context.Context, client string) (done func(), err error) {
	mine := t.enter(client)
	if err := mine.Acquire(ctx, 1); err != nil {
		t.leave(client)
		return nil, err
	}
	if err := t.all.Acquire(ctx, 1); err != nil {
		mine.Release(1)
		t.leave(client)
		return nil, err
	}
	return func() {
		t.all.Release(1)
		mine.Release(1)
		t.leave(client)
	}, nil
}

func (t *turns) enter(client string) *semaphore.Weighted {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.clients[client]
	if c == nil {
		c = &clientTurns{own: semaphore.NewWeighted(t.each)}
		t.clients[client] = c
	}
	c.users++
	return c.own
}

func (t *turns) leave(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.clients[client]; c.users > 1 {
		c.users--
	} else {
		delete(t.clients, client)
	}
}
