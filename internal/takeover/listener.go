package takeover

import (
	"errors"
	"net"
	"sync"
)

// A listener accepts from our socket, which is bound again if its directory was removed: a server that was given it
// once need not know.
type listener struct {
	addr string

	mu     sync.Mutex // guards what follows; never held across Accept
	now    *net.UnixListener
	closed bool
}

// replace accepts from l from now on. Connections that have been accepted live on.
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

// Close ends Accept. The names are Run's to remove.
func (t *listener) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return t.now.Close()
}

// Addr returns the path where clients find it.
func (t *listener) Addr() net.Addr { return &net.UnixAddr{Name: t.addr, Net: "unix"} }
