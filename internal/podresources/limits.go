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
	"google.golang.org/grpc/status"

	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/socket/connlimit"
	"github.com/devmgrd/devmgrd/internal/socket/peercreds"
)

// Limits of one client. A client is a pod, or a process outside of pods: by its process ID, by its pidfd outside the daemon's PID
// namespace, and where the kernel shows neither, by its connection. The kubelet has one limit for all of its clients together, 100
// requests a second and 10 at once, and refuses the rest. devmgrd delays the requests of a client that sends too many.
const (
	clientRate  = 100         // requests a second
	clientBurst = 100         // requests at once
	longestWait = time.Second // a request that would be delayed longer is refused

	findRate  = 2 // reads from the API server a second
	findBurst = 8

	connectionStreams = 100         // requests at once on one connection
	connectionIdle    = time.Minute // without a request or a watch; then the connection is closed, and gRPC clients dial again
)

// connections are the limits of connections. A connection beyond them waits until another one is closed.
var connections = connlimit.Limits{Served: 1024, ServedPerClient: 64, Waiting: 256, WaitingPerClient: 16}

// errBusy is the kubelet's error, which clients and people know.
var errBusy = status.Error(codes.ResourceExhausted, "rejected by rate limit")

// A client is a pod or another process that is connected.
type client struct {
	rate        *rate.Limiter
	finds       *rate.Limiter
	connections int
}

// clients are the connected clients.
type clients struct {
	mu  locks.Mutex[locks.Leaf]
	all map[string]*client // by connlimit's name
}

// wait delays a request as the client's rate demands.
func (c *client) wait(ctx context.Context) error {
	r := c.rate.Reserve()
	delay := r.Delay()
	if delay == 0 {
		return nil
	}
	if delay > longestWait {
		r.Cancel()
		return errBusy
	}
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		r.Cancel()
		return status.FromContextError(ctx.Err()).Err()
	}
}

// identify returns the client of a new connection.
func (cs *clients) identify(conn net.Conn) (net.Conn, *client, error) {
	limited, ok := conn.(*connlimit.Conn)
	if !ok {
		return nil, nil, errors.New("the connection was not accepted by a listener of PodResources")
	}
	name := limited.Client()
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.all[name]
	if c == nil {
		// A process that dials for each request stays one client: it is removed only when its rate is unused.
		maps.DeleteFunc(cs.all, func(_ string, c *client) bool { return c.connections == 0 && c.rate.Tokens() >= clientBurst })
		c = &client{rate: rate.NewLimiter(clientRate, clientBurst), finds: rate.NewLimiter(findRate, findBurst)}
		if cs.all == nil {
			cs.all = map[string]*client{}
		}
		cs.all[name] = c
	}
	c.connections++
	return &counted{Conn: conn, closed: sync.OnceFunc(func() { cs.closed(c) })}, c, nil
}

func (cs *clients) closed(c *client) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c.connections--
}

// counted is a connection that calls closed when it is closed.
type counted struct {
	net.Conn
	closed func()
}

func (c *counted) Close() error {
	c.closed()
	return c.Conn.Close()
}

// limit applies the client's rate to a request, and counts the request.
func (s *Server) limit(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	defer func() { s.metrics.count(info.FullMethod, status.Code(err)) }()
	if err := peercreds.Of[*client](ctx).wait(ctx); err != nil {
		return nil, err
	}
	return handle(ctx, request)
}

// limitStream does the same for streams.
func (s *Server) limitStream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer func() { s.metrics.count(info.FullMethod, status.Code(err)) }()
	if err := peercreds.Of[*client](stream.Context()).wait(stream.Context()); err != nil {
		return err
	}
	return handle(server, stream)
}
