package podresources

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers the codec below codec
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// gRPC keeps an answer until the client has read it, or has closed the connection. Answers are as large as plugins' lists, so:
//
//   - One answer is built at a time, and one of a client. A request first waits until its client has read most of its former answers.
//   - A connection whose client reads no part of an answer for readLimit is closed.
//   - Where the answers of all clients are too many for longer than roomLimit, the client with most of them loses connections.
const (
	maxUnread         = 128 << 20   // bytes of all clients: no further answer is built
	maxUnreadOfClient = 16 << 20    // of one client
	roomLimit         = time.Second // how long an answer waits for room among those of all clients
	answerPart        = 64 << 10    // what a client has to read within readLimit
)

// An answer is encoded, and has not been sent in full.
type answer struct {
	data []byte
	conn *connection
	slow *time.Timer // closes the connection

	// guarded by clients.mu
	parts int // that have not been sent
	limit time.Duration
}

// turn waits until the call may build its answer. The turn ends with the call.
func (s *Server) turn(ctx context.Context) error {
	call := callOf(ctx)
	c, cs := call.conn.client, s.clients
	if err := enter(ctx, c.turn); err != nil {
		return err
	}
	call.giveUp = func() { <-c.turn }
	if err := cs.awaitReader(ctx, c); err != nil {
		return err
	}
	if err := enter(ctx, cs.building); err != nil {
		return err
	}
	call.giveUp = func() { <-cs.building; <-c.turn }
	return cs.makeRoom(ctx)
}

// enter puts a value into a channel of size one.
func enter(ctx context.Context, to chan struct{}) error {
	select {
	case to <- struct{}{}:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// awaitReader waits until the client has read most of its answers.
func (cs *clients) awaitReader(ctx context.Context, c *client) error {
	return cs.await(ctx, func() bool { return c.unread < maxUnreadOfClient })
}

// makeRoom waits until all clients have read most of their answers. When it has waited too long it closes connections of the clients with
// the most.
func (cs *clients) makeRoom(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, roomLimit)
	defer cancel()
	for {
		err := cs.await(short, func() bool { return cs.unread < maxUnread })
		if err == nil || ctx.Err() != nil {
			return err
		}
		if c := cs.greediest(); c != nil {
			cs.drop(c)
		}
	}
}

// drop closes a connection whose client does not read.
func (cs *clients) drop(c *connection) {
	cs.drops.Do(func() {
		cs.log.Warn("PodResources client not reading; connection closed", "client", c.client.name)
	})
	c.Close()
}

// await waits until ready, which holds the lock, returns true.
func (cs *clients) await(ctx context.Context, ready func() bool) error {
	for {
		less, done := cs.check(ready)
		if done {
			return nil
		}
		select {
		case <-less:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func (cs *clients) check(ready func() bool) (less <-chan struct{}, done bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if ready() {
		return nil, true
	}
	if cs.less == nil {
		cs.less = make(chan struct{})
	}
	return cs.less, false
}

// greediest returns the connection with the most unread bytes, of the client with the most. nil: there are no answers.
func (cs *clients) greediest() (worst *connection) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var of *client
	for _, c := range cs.all {
		if c.unread > 0 && (of == nil || c.unread > of.unread) {
			of = c
		}
	}
	if of == nil {
		return nil
	}
	most := 0
	for c := range of.connections {
		if n := c.unread(); n > most {
			worst, most = c, n
		}
	}
	return worst
}

func (c *connection) unread() (n int) {
	for a := range c.answers {
		n += len(a.data)
	}
	return n
}

// answer counts an encoded answer until it is sent, or its connection is closed.
func (cs *clients) answer(conn *connection, data []byte, limit time.Duration) *answer {
	a := &answer{data: data, conn: conn, limit: limit}
	for part := range slices.Chunk(data, answerPart) {
		if !mem.IsBelowBufferPoolingThreshold(len(part)) { // else gRPC does not report that it is sent
			a.parts++
		}
	}
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if a.parts == 0 || !conn.client.connections[conn] {
		return a
	}
	conn.answers[a] = true
	conn.client.unread += len(data)
	cs.unread += len(data)
	a.slow = time.AfterFunc(limit, func() { cs.drop(conn) })
	return a
}

// sent counts a part of an answer that has been sent, or dropped.
func (cs *clients) sent(a *answer) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !a.conn.answers[a] {
		return
	}
	a.parts--
	if a.parts > 0 {
		a.slow.Reset(a.limit)
		return
	}
	cs.forgetLocked(a)
}

// forgetLocked forgets an answer.
func (cs *clients) forgetLocked(a *answer) {
	delete(a.conn.answers, a)
	a.slow.Stop()
	a.conn.client.unread -= len(a.data)
	cs.unread -= len(a.data)
	if cs.less != nil {
		close(cs.less)
		cs.less = nil
	}
}

// Put is part of mem.BufferPool: gRPC has sent or dropped a part of the answer.
func (a *answer) Put(*[]byte) { a.conn.of.sent(a) }

// Get is part of mem.BufferPool. gRPC calls it for no part of an answer.
func (*answer) Get(length int) *[]byte {
	b := make([]byte, length)
	return &b
}

// A codec sends answers in parts, and other messages as gRPC does.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal is part of encoding.CodecV2.
func (c codec) Marshal(message any) (all mem.BufferSlice, err error) {
	a, is := message.(*answer)
	if !is {
		return c.CodecV2.Marshal(message)
	}
	for part := range slices.Chunk(a.data, answerPart) {
		all = append(all, mem.NewBuffer(&part, a))
	}
	return all, nil
}
