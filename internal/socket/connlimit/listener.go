package connlimit

import (
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A Listener hands over another listener's connections as its Limiter allows.
type Listener struct {
	net.Listener
	limiter *Limiter
	start   sync.Once
	closed  chan struct{}
	changed *sync.Cond // of limiter.mu: ready or failed has changed
	ready   []*Conn    // for Accept; they count as served
	failed  error      // what Accept returns from now on
}

const (
	firstPause = 5 * time.Millisecond // after Accept failed, as in net/http
	lastPause  = time.Second
)

// Listener returns a Listener over l. It starts with the first Accept.
func (m *Limiter) Listener(l net.Listener) *Listener {
	return &Listener{Listener: l, limiter: m, closed: make(chan struct{}), changed: sync.NewCond(&m.mu)}
}

// Accept returns the next connection whose turn has come. Its type is *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	l.start.Do(func() { go l.receive() }) // it ends when the listener is closed
	l.limiter.mu.Lock()
	defer l.limiter.mu.Unlock()
	for len(l.ready) == 0 && l.failed == nil {
		l.changed.Wait()
	}
	if l.failed != nil {
		return nil, l.failed
	}
	conn := l.ready[0]
	l.ready[0] = nil
	l.ready = l.ready[1:]
	return conn, nil
}

// Close closes the listener and all connections that have not been handed over.
func (l *Listener) Close() error {
	err := l.Listener.Close()
	l.fail(net.ErrClosed)
	return err
}

// fail ends Accept, once.
func (l *Listener) fail(err error) {
	l.limiter.mu.Lock()
	if l.failed != nil {
		l.limiter.mu.Unlock()
		return
	}
	l.failed = err
	close(l.closed)
	ready, waiting := l.ready, l.limiter.leaveLocked(l)
	l.ready = nil
	l.changed.Broadcast()
	l.limiter.mu.Unlock()
	for _, conn := range ready {
		conn.Close()
	}
	for _, conn := range waiting {
		conn.Conn.Close()
	}
}

// receive accepts connections until the listener is closed or fails. It waits out a shortage of descriptors.
func (l *Listener) receive() {
	pause := firstPause
	for {
		conn, err := l.Listener.Accept()
		switch {
		case err == nil:
			pause = firstPause
			l.limiter.take(l, conn)
		case passing(err):
			select {
			case <-l.closed:
				return
			case <-time.After(pause):
				pause = min(2*pause, lastPause)
			}
		default:
			l.fail(err)
			return
		}
	}
}

// passing reports whether Accept may succeed later.
func passing(err error) bool {
	later := []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR}
	return slices.ContainsFunc(later, func(e syscall.Errno) bool { return errors.Is(err, e) })
}

// A Conn is a connection that counts until it is closed.
type Conn struct {
	net.Conn
	client   string
	listener *Listener
	release  func()
}

// Client returns the name of the client, as the Limiter counts it.
func (c *Conn) Client() string { return c.client }

// NetConn returns the connection itself.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// Close closes the connection, so that another one can be served.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}
