package connlimit

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A harness is a listener on a real unix socket, whose clients say who they are in the name of their own socket.
type harness struct {
	t       *testing.T
	dir     string
	limiter *Limiter
	on      *Listener
	clients int
}

func newRig(t *testing.T, limits Limits) *harness {
	r := &harness{t: t, dir: t.TempDir()}
	r.limiter = New(limits, func(c net.Conn) (string, error) {
		name, _, _ := strings.Cut(filepath.Base(c.RemoteAddr().String()), "-")
		switch name {
		case "refused":
			return "", errors.New("refused")
		case "unknown":
			return "", nil
		}
		return name, nil
	})
	r.on = r.listen("s")
	return r
}

func (r *harness) listen(name string) *Listener {
	l, err := net.Listen("unix", filepath.Join(r.dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	on := r.limiter.Listener(l)
	r.t.Cleanup(func() { on.Close() })
	return on
}

// dial connects as a client, and waits until the listener has dealt with it: it serves, in line or closed.
func (r *harness) dial(client string) net.Conn {
	r.t.Helper()
	r.clients++
	before := r.seen()
	conn, err := net.DialUnix("unix", &net.UnixAddr{Name: filepath.Join(r.dir, fmt.Sprintf("%s-%d", client, r.clients)), Net: "unix"},
		&net.UnixAddr{Name: r.on.Addr().String(), Net: "unix"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	plugintest.Eventually(r.t, client+" is served, in line or closed", func() bool { return r.seen() > before || closed(conn) })
	return conn
}

func (r *harness) seen() int {
	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()
	return r.limiter.served + r.limiter.waiting
}

// closed reports whether the listener has closed a connection on which it never writes.
func closed(conn net.Conn) bool {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return true
	}
	end := false
	err = raw.Read(func(fd uintptr) bool { end = atEnd(int(fd)); return true })
	return end || err != nil
}

// accept returns the next connection, and wants it to be this client's.
func (r *harness) accept(want string) net.Conn {
	r.t.Helper()
	conn, err := r.on.Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	if got := conn.(*Conn).Client(); got != want {
		r.t.Fatalf("a connection of %s is served, want %s", got, want)
	}
	return conn
}

// has compares the counts of connections.
func (r *harness) has(served, waiting int) {
	r.t.Helper()
	r.limiter.mu.Lock()
	defer r.limiter.mu.Unlock()
	if r.limiter.served != served || r.limiter.waiting != waiting {
		r.t.Errorf("%d served and %d waiting, want %d and %d", r.limiter.served, r.limiter.waiting, served, waiting)
	}
}

// start has the listener accept: the first connection is served in any case.
func (r *harness) start() net.Conn {
	r.t.Helper()
	done := make(chan net.Conn)
	go func() { conn, _ := r.on.Accept(); done <- conn }()
	r.dial("first")
	return <-done
}

// A client that holds as many connections as it may waits, and other clients do not.
func TestLimiter_ClientAtItsLimit_OthersAreServed(t *testing.T) {
	r := newRig(t, Limits{Served: 10, ServedPerClient: 2, Waiting: 10, WaitingPerClient: 2})
	r.start().Close()
	for range 4 {
		r.dial("greedy")
	}
	if conn := r.dial("greedy"); !closed(conn) {
		t.Error("a connection beyond the line's limit stays open")
	}
	one, two := r.accept("greedy"), r.accept("greedy")
	r.has(2, 2)
	r.dial("modest")
	r.accept("modest")
	one.Close()
	r.accept("greedy")
	r.has(3, 1)
	one.Close() // twice is once
	r.has(3, 1)
	two.Close()
	r.accept("greedy")
	r.has(3, 0)
}

// Where the sum is reached, the client with the fewest connections comes first, whenever it has come.
func TestLimiter_SumReached_FewestComesFirst(t *testing.T) {
	r := newRig(t, Limits{Served: 3, ServedPerClient: 3, Waiting: 10, WaitingPerClient: 5})
	r.start().Close()
	for range 6 {
		r.dial("greedy")
	}
	first := r.accept("greedy")
	r.accept("greedy")
	r.accept("greedy")
	r.dial("modest")
	first.Close()
	r.accept("modest")
	r.has(3, 3)
}

// If the line is full, the limiter closes a connection of the client with the most places in it.
func TestLimiter_LineFull_LongestGivesWay(t *testing.T) {
	r := newRig(t, Limits{Served: 1, ServedPerClient: 1, Waiting: 3, WaitingPerClient: 3})
	holder := r.start()
	var greedy []net.Conn
	for range 3 {
		greedy = append(greedy, r.dial("greedy"))
	}
	modest := r.dialBeyond("modest", greedy[2])
	if closed(modest) || closed(greedy[0]) || closed(greedy[1]) || !closed(greedy[2]) {
		t.Error("want the newest of the greedy client's connections closed, and no other")
	}
	r.has(1, 3)
	holder.Close()
	r.has(1, 2)
}

// dialBeyond dials where another connection has to give way.
func (r *harness) dialBeyond(client string, loser net.Conn) net.Conn {
	r.t.Helper()
	conn, err := net.DialUnix("unix", &net.UnixAddr{Name: filepath.Join(r.dir, client+"-beyond"), Net: "unix"},
		&net.UnixAddr{Name: r.on.Addr().String(), Net: "unix"})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	plugintest.Eventually(r.t, "a waiting connection is closed", func() bool { return closed(loser) })
	return conn
}

// A client that the kernel does not show has each of its connections count alone.
func TestLimiter_UnknownClients_EachCountsAlone(t *testing.T) {
	r := newRig(t, Limits{Served: 3, ServedPerClient: 1, Waiting: 2, WaitingPerClient: 1})
	r.start().Close()
	for n := range 3 {
		r.dial("unknown")
		r.accept(fmt.Sprintf("connection %d", n+1))
	}
	r.dial("unknown")
	r.has(3, 1)
	if conn := r.dial("refused"); !closed(conn) {
		t.Error("a connection without an identity stays open")
	}
}

// The connections of all listeners count together, and a listener that is closed takes those along that it has not handed over.
func TestLimiter_SecondListener_CountsWithTheFirst(t *testing.T) {
	r := newRig(t, Limits{Served: 2, ServedPerClient: 1, Waiting: 5, WaitingPerClient: 5})
	held := r.start()
	old := r.on
	inLine := r.dial("first")
	notAccepted := r.dial("second")
	r.has(2, 1)
	r.on = r.listen("other")
	go func() { _, _ = r.on.Accept() }()
	r.dial("first")
	r.has(2, 2)
	if err := old.Listener.Close(); err != nil { // past the Limiter
		t.Fatal(err)
	}
	plugintest.Eventually(t, "its connections are closed", func() bool { return closed(inLine) && closed(notAccepted) })
	r.has(1, 1)
	if _, err := old.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	held.Close()
	r.has(1, 0)
	if len(r.limiter.clients) != 1 {
		t.Errorf("%d clients are known", len(r.limiter.clients))
	}
}
