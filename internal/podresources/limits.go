package podresources

import (
	"context"
	"errors"
	"maps"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/connlimit"
)

// What one client may do. A client is a pod, or another process: by its ID, outside the daemon's PID namespace by its pidfd, and where
// the kernel shows neither each connection is a client of its own. The kubelet has one limit of 100 a second and 10 at once for all of its
// clients together, and refuses the rest; here a client that asks too often waits its turn.
const (
	clientRate  = 100         // requests a second
	clientBurst = 100         // at once
	longestTurn = time.Second // who would wait longer is refused

	findRate  = 2 // questions a second that the API server has to answer
	findBurst = 8

	connectionStreams = 100         // requests at once on one connection
	connectionIdle    = time.Minute // without a request or a watch; gRPC's clients dial again when they need to
)

// connections bounds those of all clients together, and of each. What is beyond waits until another one is closed.
var connections = connlimit.Limits{Served: 1024, ServedPerClient: 64, Waiting: 256, WaitingPerClient: 16}

// errBusy has the kubelet's words, which tests and people look for.
var errBusy = status.Error(codes.ResourceExhausted, "rejected by rate limit")

// A client is a pod or another process that is connected.
type client struct {
	pace        *rate.Limiter
	finds       *rate.Limiter
	connections int
}

// clients knows who is connected. It is the transport's credentials: the kernel says which process has dialled.
type clients struct {
	mu  sync.Mutex
	all map[string]*client // by the name that connlimit has for it
}

// turn waits until it is the caller's turn.
func (c *client) turn(ctx context.Context) error {
	r := c.pace.Reserve()
	wait := r.Delay()
	if wait == 0 {
		return nil
	}
	if wait > longestTurn {
		r.Cancel()
		return errBusy
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		r.Cancel()
		return status.FromContextError(ctx.Err()).Err()
	}
}

// clientOf gives who has sent a request.
func clientOf(ctx context.Context) *client {
	p, _ := peer.FromContext(ctx)
	return p.AuthInfo.(caller).client
}

// A caller is what a connection knows of its other end.
type caller struct {
	credentials.CommonAuthInfo
	*client
}

// AuthType is part of credentials.AuthInfo.
func (caller) AuthType() string { return "peer credentials" }

// ServerHandshake is part of credentials.TransportCredentials. Nothing is sent.
func (cs *clients) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	limited, ok := conn.(*connlimit.Conn)
	if !ok {
		return nil, nil, errors.New("the connection was not accepted by a listener of PodResources")
	}
	name := limited.Client()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.all[name]
	if c == nil {
		// Whoever dials again for each request is the same client still, until all is forgotten that it has asked.
		maps.DeleteFunc(cs.all, func(_ string, c *client) bool { return c.connections == 0 && c.pace.Tokens() >= clientBurst })
		c = &client{pace: rate.NewLimiter(clientRate, clientBurst), finds: rate.NewLimiter(findRate, findBurst)}
		if cs.all == nil {
			cs.all = map[string]*client{}
		}
		cs.all[name] = c
	}
	c.connections++
	return &counted{Conn: conn, left: sync.OnceFunc(func() { cs.leave(c) })},
		caller{credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}, c}, nil
}

func (cs *clients) leave(c *client) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.connections--
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	left func()
}

func (c *counted) Close() error {
	c.left()
	return c.Conn.Close()
}

// ClientHandshake is part of credentials.TransportCredentials, and of no use here.
func (*clients) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("only for servers")
}

// Info is part of credentials.TransportCredentials.
func (*clients) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix"}
}

// Clone is part of credentials.TransportCredentials: servers share it.
func (cs *clients) Clone() credentials.TransportCredentials { return cs }

// OverrideServerName is part of credentials.TransportCredentials.
func (*clients) OverrideServerName(string) error { return nil }

// limit has each request wait its turn, and counts it.
func (s *Server) limit(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	defer func() { s.metrics.count(info.FullMethod, status.Code(err)) }()
	if err := clientOf(ctx).turn(ctx); err != nil {
		return nil, err
	}
	return handle(ctx, request)
}

// limitStream does so with streams.
func (s *Server) limitStream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer func() { s.metrics.count(info.FullMethod, status.Code(err)) }()
	if err := clientOf(stream.Context()).turn(stream.Context()); err != nil {
		return err
	}
	return handle(server, stream)
}
