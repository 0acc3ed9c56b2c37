package podresources

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/loops"
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

	clientWatches = 16 // watches at once; each may keep one response

	connectionStreams = 32          // requests at once on one connection
	connectionIdle    = time.Minute // without a request or a watch; then the connection is closed, and gRPC clients dial again
)

// connections are the limits of connections. A connection beyond them waits until another one is closed.
var connections = connlimit.Limits{Served: 1024, ServedPerClient: 64, Waiting: 256, WaitingPerClient: 16}

// errBusy is the kubelet's error, which clients and people know.
var errBusy = status.Error(codes.ResourceExhausted, "rejected by rate limit")

var errWatches = status.Errorf(codes.ResourceExhausted, "the client has %d watches already; end one first", clientWatches)

// A client is a pod or another process that is connected.
type client struct {
	name  string // connlimit's
	rate  *rate.Limiter
	finds *rate.Limiter
	turn  chan struct{} // has a value while an answer for the client is built

	watches     atomic.Int32
	connections map[*connection]bool // guarded by clients.mu, as is unread
	unread      int                  // bytes of its answers that have not been sent
}

// clients are the connected clients.
type clients struct {
	building chan struct{} // has a value while an answer is built
	log      *slog.Logger
	drops    *rate.Sometimes // limits the lines about clients that read nothing

	mu     locks.Mutex[locks.Leaf]
	all    map[string]*client // by connlimit's name
	unread int                // bytes of all answers that have not been sent
	less   chan struct{}      // closed when unread is less; nil: nothing waits for that
}

func newClients(log *slog.Logger) *clients {
	return &clients{building: make(chan struct{}, 1), log: log, drops: loops.Seldom(), all: map[string]*client{}}
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

// identify returns a new connection of a client.
func (cs *clients) identify(conn net.Conn) (net.Conn, *connection, error) {
	limited, ok := conn.(*connlimit.Conn)
	if !ok {
		return nil, nil, errors.New("the connection was not accepted by a listener of PodResources")
	}
	c := cs.connect(conn, limited.Client())
	return c, c, nil
}

func (cs *clients) connect(conn net.Conn, name string) *connection {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c := cs.all[name]
	if c == nil {
		// A process that dials for each request stays one client: it is removed only when its rate is unused.
		maps.DeleteFunc(cs.all, func(_ string, c *client) bool { return len(c.connections) == 0 && c.rate.Tokens() >= clientBurst })
		c = &client{name: name, rate: rate.NewLimiter(clientRate, clientBurst), finds: rate.NewLimiter(findRate, findBurst), turn: make(chan struct{}, 1), connections: map[*connection]bool{}}
		cs.all[name] = c
	}
	one := &connection{Conn: conn, client: c, of: cs, answers: map[*answer]bool{}}
	c.connections[one] = true
	return one
}

// A connection belongs to its client until it is closed.
type connection struct {
	net.Conn
	client *client
	of     *clients

	answers map[*answer]bool // not sent yet; guarded by clients.mu
}

func (c *connection) Close() error {
	c.of.closed(c)
	return c.Conn.Close()
}

// closed forgets a connection with its answers.
func (cs *clients) closed(c *connection) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(c.client.connections, c)
	for a := range c.answers {
		cs.forgetLocked(a)
	}
}

// A call is one request of a client.
type call struct {
	conn   *connection
	giveUp func() // the client's turn; nil: the call has not had it
}

type callKey struct{}

func callOf(ctx context.Context) *call { return ctx.Value(callKey{}).(*call) }

// limit applies the client's limits to a request, counts the request, and encodes its answer.
func (s *Server) limit(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (encoded any, err error) {
	defer func() { s.metrics.count(info.FullMethod, status.Code(err)) }()
	c := &call{conn: peercreds.Of[*connection](ctx)}
	if err := c.conn.client.wait(ctx); err != nil {
		return nil, err
	}
	if err := s.clients.awaitReader(ctx, c.conn.client); err != nil {
		return nil, err
	}
	defer func() {
		if c.giveUp != nil {
			c.giveUp()
		}
	}()
	message, err := handle(context.WithValue(ctx, callKey{}, c), request)
	if err != nil {
		return nil, err
	}
	data, err := proto.Marshal(message.(proto.Message))
	if err != nil {
		return nil, status.Errorf(codes.Internal, "encoding the answer: %v", err)
	}
	return s.clients.answer(c.conn, data, s.readLimit), nil
}

// limitStream applies the client's limits to a watch, and counts it.
func (s *Server) limitStream(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer func() { s.metrics.count(info.FullMethod, status.Code(err)) }()
	c := peercreds.Of[*connection](stream.Context()).client
	if err := c.wait(stream.Context()); err != nil {
		return err
	}
	defer c.watches.Add(-1)
	if c.watches.Add(1) > clientWatches {
		return errWatches
	}
	return handle(server, stream)
}
