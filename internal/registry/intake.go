package registry

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"google.golang.org/grpc/stats"

	"github.com/devmgrd/devmgrd/internal/locks"
)

const (
	// freeIntake is what a session may read, in bytes, until it has a whole message: the list of some two thousand devices. For more it needs a turn.
	freeIntake = 128 << 10
	// intakeWindow is what a plugin may send before devmgrd reads on. It is less than freeIntake: no turn begins while devmgrd does not read.
	intakeWindow = 64 << 10
	// intakeTurns is how many sessions have a turn at once, of different clients.
	intakeTurns = 2
	// intakeTime is how long a message may take from the session's turn on.
	intakeTime = 20 * time.Second
)

// An intake is a session's connection, which is read only as far as may lie in memory before a message is whole: a plugin may begin a long
// message and never end it. Without a turn the connection waits, and so does its plugin.
//
// It is also the connection's stats.Handler: gRPC tells it of each whole message, and of the end of each call. A call's answer counts as a
// message, so that each lets a list that is under way grow by freeIntake.
type intake struct {
	net.Conn
	turns  *turns
	client string
	limit  time.Duration
	ctx    context.Context // ends with the connection
	end    context.CancelFunc
	frames frames // of Read's goroutine

	mu   locks.Mutex[locks.Leaf]
	read int    // bytes of messages since the last whole one
	done func() // ends its turn; nil: it has none
}

func newIntake(conn net.Conn, turns *turns, client string, limit time.Duration) *intake {
	ctx, end := context.WithCancel(context.Background())
	return &intake{Conn: conn, turns: turns, client: client, limit: limit, ctx: ctx, end: end}
}

// NetConn returns the connection itself.
func (i *intake) NetConn() net.Conn { return i.Conn }

// Read is called by gRPC's goroutine of the connection alone.
func (i *intake) Read(p []byte) (int, error) {
	if i.needsTurn() {
		done, err := i.turns.take(i.ctx, i.client)
		if err != nil {
			return 0, err
		}
		i.begin(done)
	}
	n, err := i.Conn.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("a message of the plugin is not whole after %s", i.limit)
	}
	part := i.frames.data(p[:n])
	i.mu.Lock()
	defer i.mu.Unlock()
	i.read += part
	return n, err
}

func (i *intake) needsTurn() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.read > freeIntake && i.done == nil
}

// begin begins a turn, unless a message has become whole meanwhile, or the connection has ended.
func (i *intake) begin(done func()) {
	i.mu.Lock()
	began := i.read > freeIntake && i.ctx.Err() == nil
	if began {
		i.done = done
		_ = i.SetReadDeadline(time.Now().Add(i.limit))
	}
	i.mu.Unlock()
	if !began {
		done()
	}
}

// whole notes that gRPC has handed on a message, or that none will come.
func (i *intake) whole() {
	i.mu.Lock()
	done := i.done
	i.read, i.done = 0, nil
	if done != nil {
		_ = i.SetReadDeadline(time.Time{})
	}
	i.mu.Unlock()
	if done != nil {
		done()
	}
}

// Close may be called more than once.
func (i *intake) Close() error {
	i.end()
	err := i.Conn.Close()
	i.whole()
	return err
}

func (i *intake) HandleRPC(_ context.Context, s stats.RPCStats) {
	switch s.(type) {
	case *stats.InPayload, *stats.End:
		i.whole()
	}
}

func (i *intake) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (i *intake) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (i *intake) HandleConn(context.Context, stats.ConnStats)                       {}

// frames counts what is read of messages: an HTTP/2 connection also has headers, which have a limit of their own, and pings (RFC 9113, section 4.1).
type frames struct {
	header [9]byte
	has    int // bytes of the header
	left   int // bytes of the frame
}

// data returns how many bytes of the next part of the connection are payload of DATA frames.
func (f *frames) data(part []byte) (n int) {
	for len(part) > 0 {
		if f.has < len(f.header) {
			read := copy(f.header[f.has:], part)
			f.has, part = f.has+read, part[read:]
			f.left = int(f.header[0])<<16 | int(f.header[1])<<8 | int(f.header[2])
		} else {
			read := min(f.left, len(part))
			f.left, part = f.left-read, part[read:]
			if f.header[3] == 0 {
				n += read
			}
		}
		if f.has == len(f.header) && f.left == 0 {
			f.has = 0
		}
	}
	return n
}
