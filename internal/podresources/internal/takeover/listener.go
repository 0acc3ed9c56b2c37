package takeover

import (
	"errors"
	"net"

	"github.com/devmgrd/devmgrd/internal/locks"
)

// A listener accepts from devmgrd's socket, and from the next one when Run has bound the socket again because its directory was
// removed. Its server need not know.
type listener struct {
	addr string

	mu     locks.Mutex[locks.Leaf] // guards now and closed; never held across Accept
	now    *net.UnixListener
	closed bool
}

// replace accepts from l from now on. Accepted connections stay open.
func (t *listener) replace(l *net.UnixListener) error {
	t.mu.Lock()
	old := t.now
	if t.closed {
		old = l
	} else {
		t.now = l
	}
	t.mu.Unlock()
	if old != nil {
		old.Close()
	}
	if old == l {
		return net.ErrClosed
	}
	return nil
}

func (t *listener) current() *net.UnixListener {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// Accept waits for the next connection.
func (t *listener) Accept() (net.Conn, error) {
	for {
		l := t.current()
		conn, err := l.Accept()
		if err != nil && errors.Is(err, net.ErrClosed) && l != t.current() {
			continue
		}
		return conn, err
	}
}

// Close ends Accept. Run removes the names.
func (t *listener) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return t.now.Close()
}

// Addr returns the path at which clients dial.
func (t *listener) Addr() net.Addr { return &net.UnixAddr{Name: t.addr, Net: "unix"} }
