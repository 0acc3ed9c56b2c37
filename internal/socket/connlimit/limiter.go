package connlimit

import (
	"net"
	"strconv"
	"sync"

	"github.com/devmgrd/devmgrd/internal/locks"
)

// Limits bounds connections. All of them are greater than 0.
type Limits struct {
	Served           int // connections that the server holds at once
	ServedPerClient  int // of one client
	Waiting          int // connections in line
	WaitingPerClient int // of one client
}

// An Identify function names the client of a connection. If the name is empty, each of the client's connections counts as another
// client. The connection is closed after an error.
type Identify func(net.Conn) (client string, err error)

// A Limiter counts the connections of one server, on all of its listeners.
type Limiter struct {
	limits   Limits
	identify Identify

	mu      locks.Mutex[locks.Leaf] // guards what follows, and the ready connections of its listeners
	clients map[string]*client
	served  int
	waiting int
	unnamed uint64 // clients without a name so far
}

// A client has served or waiting connections; others are not in the table.
type client struct {
	name   string
	served int
	line   []*Conn // oldest first
}

// New returns a Limiter without connections.
func New(limits Limits, identify Identify) *Limiter {
	if limits.Served <= 0 || limits.ServedPerClient <= 0 || limits.Waiting <= 0 || limits.WaitingPerClient <= 0 || identify == nil {
		panic("connlimit: every limit and Identify are required")
	}
	return &Limiter{limits: limits, identify: identify, clients: map[string]*client{}}
}

// take serves a connection that l has accepted, puts it in line, or closes it.
func (m *Limiter) take(l *Listener, raw net.Conn) {
	name, err := m.identify(raw)
	if err != nil {
		raw.Close()
		return
	}
	if refused := m.place(l, raw, name); refused != nil {
		refused.Close()
	}
}

// place serves a connection or puts it in line. It returns the connection to close: the new one, another one, or nil.
func (m *Limiter) place(l *Listener, raw net.Conn, name string) (refused net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if l.failed != nil {
		return raw
	}
	if name == "" {
		m.unnamed++
		name = "connection " + strconv.FormatUint(m.unnamed, 10)
	}
	c := m.clients[name]
	if c == nil {
		c = &client{name: name}
		m.clients[name] = c
	}
	conn := &Conn{Conn: raw, client: name, listener: l}
	conn.release = sync.OnceFunc(func() { m.release(c) })
	switch {
	case len(c.line) == 0 && c.served < m.limits.ServedPerClient && m.served < m.limits.Served:
		m.serveLocked(c, conn)
	case len(c.line) >= m.limits.WaitingPerClient:
		return raw
	default:
		c.line = append(c.line, conn)
		m.waiting++
		if m.waiting > m.limits.Waiting {
			return m.shortenLocked()
		}
	}
	return nil
}

// serveLocked hands a connection to its listener's Accept.
func (m *Limiter) serveLocked(c *client, conn *Conn) {
	c.served++
	m.served++
	conn.listener.ready = append(conn.listener.ready, conn)
	conn.listener.changed.Signal()
}

// shortenLocked removes the newest connection from the longest line, and returns it.
func (m *Limiter) shortenLocked() net.Conn {
	var longest *client
	for _, c := range m.clients {
		if longest == nil || len(c.line) > len(longest.line) {
			longest = c
		}
	}
	last := len(longest.line) - 1
	conn := longest.line[last]
	longest.line[last] = nil
	longest.line = longest.line[:last]
	m.waiting--
	m.forgetLocked(longest)
	return conn.Conn // it was never served: there is nothing to release
}

// forgetLocked drops a client without connections.
func (m *Limiter) forgetLocked(c *client) {
	if c.served == 0 && len(c.line) == 0 {
		delete(m.clients, c.name)
	}
}

// release serves waiting connections when a served connection of c has been closed.
func (m *Limiter) release(c *client) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c.served--
	m.served--
	m.advanceLocked()
	m.forgetLocked(c)
}

// advanceLocked serves waiting connections within the limits.
func (m *Limiter) advanceLocked() {
	for m.waiting > 0 && m.served < m.limits.Served {
		next := m.nextLocked()
		if next == nil {
			return
		}
		conn := next.line[0]
		next.line[0] = nil
		next.line = next.line[1:]
		m.waiting--
		m.serveLocked(next, conn)
	}
}

// nextLocked returns the waiting client with the fewest served connections; nil if all clients are at their limit.
func (m *Limiter) nextLocked() *client {
	var next *client
	for _, c := range m.clients {
		if len(c.line) > 0 && c.served < m.limits.ServedPerClient && (next == nil || c.served < next.served) {
			next = c
		}
	}
	return next
}

// leaveLocked removes the connections of an ending listener from the lines, and returns them.
func (m *Limiter) leaveLocked(l *Listener) (left []*Conn) {
	for _, c := range m.clients {
		kept := c.line[:0]
		for _, conn := range c.line {
			if conn.listener == l {
				left = append(left, conn)
			} else {
				kept = append(kept, conn)
			}
		}
		clear(c.line[len(kept):])
		c.line = kept
		m.forgetLocked(c)
	}
	m.waiting -= len(left)
	return left
}
