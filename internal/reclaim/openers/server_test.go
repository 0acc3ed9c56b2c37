package openers

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

// listen listens on a socket of the test.
func listen(t *testing.T) (l net.Listener, path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "openers") // a socket's path may have 107 bytes, and a test's own directory bears its name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "socket")
	if l, err = net.Listen("unix", path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) // this reference also keeps the garbage collector from closing it
	return l, path
}

// serve runs a server until the test ends. Its result is in ended.
func serve(t *testing.T, s *server, idle time.Duration) (c Client, ended chan error) {
	t.Helper()
	l, path := listen(t)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	ended = make(chan error, 1)
	running.Go(func() { ended <- s.serve(ctx, l, idle) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return Client{path}, ended
}

// newTestServer returns a server that scans a proc.
func newTestServer(proc string) *server { return newServer(proc, slog.New(slog.DiscardHandler)) }

// withHolder is a proc in which process 3 holds /dev/full.
func withHolder(t *testing.T) fakeProc {
	t.Helper()
	p := newFakeProc(t)
	p.process(3, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
	p.link(fullNode, "3", "map_files", "400000-452000")
	return p
}

func TestServe(t *testing.T) {
	plugintest.NeedRoot(t)
	holder := ready(t, "open", fullNode)
	l, path := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, 0, slog.New(slog.DiscardHandler)) }()
	scan, err := Client{path}.Find(t.Context(), []Device{full})
	if err != nil || by(t, scan, full, holder.Process.Pid) != Open {
		t.Errorf("%+v, %v", scan, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// What the client returns is what the server has found.
func TestClient_Find(t *testing.T) {
	p := withHolder(t)
	p.process(4, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n")
	devices := []Device{full, {Block: true, Major: 1, Minor: 7}}
	want, err := Find(t.Context(), p.dir, devices)
	if err != nil || len(want.Openers) != 1 || len(want.Unknown) != 1 {
		t.Fatalf("%+v, %v", want, err)
	}
	c, _ := serve(t, newTestServer(p.dir), 0)
	var clients sync.WaitGroup
	defer clients.Wait()
	for range 2 * maxConnections {
		clients.Go(func() {
			got, err := c.Find(t.Context(), devices)
			got.CPU = want.CPU
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, %v, want %+v", got, err, want)
			}
		})
	}
}

func TestClient_Find_Fails(t *testing.T) {
	c, _ := serve(t, newTestServer(t.TempDir()), 0)
	if _, err := c.Find(t.Context(), []Device{full}); err == nil || !strings.Contains(err.Error(), c.Path+": looking for openers of devices: this process is not in ") {
		t.Errorf("a scan that fails: %v", err)
	}
	if _, err := c.Find(t.Context(), make([]Device, MaxDevices+1)); err == nil || !strings.Contains(err.Error(), "1025 devices") {
		t.Errorf("too many devices: %v", err)
	}
	if _, err := (Client{filepath.Join(t.TempDir(), "none")}).Find(t.Context(), []Device{full}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a server: %v", err)
	}
}

// A server that says nothing of a scan has not scanned.
func TestClient_Find_BadAnswer(t *testing.T) {
	l, path := listen(t)
	var serving sync.WaitGroup
	defer serving.Wait()
	defer l.Close()
	answers := []string{"", "{}\n", "{\"scan\":null}\n", "{\"scan\":{\"openers\":", "nonsense\n"}
	serving.Go(func() {
		for _, text := range answers {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(conn).ReadString('\n')
			_, _ = io.WriteString(conn, text)
			conn.Close()
		}
	})
	for _, text := range answers {
		if scan, err := (Client{path}).Find(t.Context(), []Device{full}); err == nil {
			t.Errorf("%q is %+v", text, scan)
		}
	}
}

// A scan that fails costs as much as one that does not.
func TestClient_Find_ScanFails_HasItsCPUTime(t *testing.T) {
	p := newFakeProc(t)
	for pid := range maxUnknown + 1 {
		p.process(100+pid, "00400000-00452000 r-xp 00000000 fe:01 12    /x\n") // which map_files lacks
	}
	c, _ := serve(t, newTestServer(p.dir), 0)
	if scan, err := c.Find(t.Context(), []Device{full}); err == nil || scan.CPU <= 0 {
		t.Errorf("%+v, %v", scan, err)
	}
	// The server is killed before it answers.
	l, path := listen(t)
	go func() {
		if conn, err := l.Accept(); err == nil {
			_, _ = bufio.NewReader(conn).ReadString('\n')
			conn.Close()
		}
	}()
	if scan, err := (Client{path}).Find(t.Context(), []Device{full}); err == nil || scan.CPU <= 0 {
		t.Errorf("without an answer: %+v, %v", scan, err)
	}
}

func TestClient_Find_EndOfContext(t *testing.T) {
	_, path := listen(t) // without a server
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	if _, err := (Client{path}).Find(ctx, []Device{full}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of the context: %v", err)
	}
}

// The largest requests fit.
func TestRequest_Largest(t *testing.T) {
	text, err := json.Marshal(request{slices.Repeat([]Device{{true, 1<<32 - 1, 1<<32 - 1}}, MaxDevices)})
	if err != nil || len(text)+1 > maxRequest {
		t.Errorf("%d devices take %d bytes, %v", MaxDevices, len(text), err)
	}
}

func TestServe_BadRequest(t *testing.T) {
	p := withHolder(t)
	for name, test := range map[string]struct{ send, want string }{
		"too large":        {strings.Repeat(" ", maxRequest+1) + "\n", "more than 65536 bytes"},
		"no JSON":          {"hello\n", "invalid character"},
		"negative":         {`{"devices":[{"major":-1}]}` + "\n", "cannot unmarshal"},
		"no devices":       {"{}\n", "no device in the request"},
		"too many devices": {`{"devices":[{}` + strings.Repeat(",{}", MaxDevices) + "]}\n", "1025 devices in the request"},
		"no end":           {`{"devices":[{}]}`, "i/o timeout"},
		"nothing":          {"", "i/o timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTestServer(p.dir)
			if test.want == "i/o timeout" { // where the machine is busy, the other requests may need longer
				s.requestLimit = 100 * time.Millisecond
			}
			c, _ := serve(t, s, 0)
			conn, err := net.Dial("unix", c.Path)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, test.send) // the server may have hung up already
			text, err := io.ReadAll(conn)
			if !strings.Contains(string(text), test.want) || strings.Contains(string(text), `"scan"`) {
				t.Errorf("the answer is %q (%v), want %q", text, err, test.want)
			}
		})
	}
}

// A client that does not read holds its connection for a limited time.
func TestServe_ClientNeverReads(t *testing.T) {
	s := newTestServer(withHolder(t).dir)
	s.answerLimit = 10 * time.Millisecond
	ours, theirs := net.Pipe() // which has no buffer
	defer ours.Close()
	go func() { fmt.Fprintln(ours, `{"devices":[{"major":1,"minor":7}]}`) }()
	s.answer(t.Context(), theirs)
	if _, err := ours.Read(make([]byte, 1)); err == nil {
		t.Error("the connection is open")
	}
}

// When a client hangs up, its scan ends, and so does its place in the line.
func TestServe_ClientHangsUp(t *testing.T) {
	s := newTestServer(newFakeProc(t).dir)
	c, _ := serve(t, s, 0)
	s.turn <- struct{}{} // as if another scan ran
	for range 2 * maxConnections {
		conn, err := net.Dial("unix", c.Path)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(conn, `{"devices":[{"major":1,"minor":7}]}`)
		conn.Close()
	}
	<-s.turn
	if _, err := c.Find(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "no device in the request") {
		t.Errorf("the next client: %v", err)
	}
}

// pipes is a listener without a socket, for a bubble.
type pipes struct {
	net.Listener
	conns  chan net.Conn
	closed chan struct{}
}

func (p pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error { close(p.closed); return nil }

// The server ends when it has had no client for a while, and not under a client.
func TestServe_Idle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ended := pipes{conns: make(chan net.Conn), closed: make(chan struct{})}, make(chan error, 1)
		go func() { ended <- newTestServer("").serve(t.Context(), l, 100*time.Millisecond) }()
		time.Sleep(50 * time.Millisecond) // of the bubble's clock
		ours, theirs := net.Pipe()
		l.conns <- theirs
		time.Sleep(300 * time.Millisecond)
		select {
		case err := <-ended:
			t.Fatalf("the server has left a client: %v", err)
		default:
		}
		ours.Close()
		left := time.Now()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if idle := time.Since(left); idle != 100*time.Millisecond {
			t.Errorf("the server ends %v after its last client", idle)
		}
		select {
		case <-l.closed:
		default:
			t.Error("the server still listens")
		}
	})
}

// A client that comes while the server decides to end is served.
func TestServe_IdleAndClients(t *testing.T) {
	p := withHolder(t)
	dir, err := os.MkdirTemp("", "openers")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "socket")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // as systemd does: it holds the socket, and starts the server when clients come
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			file, err := l.File()
			if err != nil {
				t.Error(err)
				return
			}
			handed, err := net.FileListener(file)
			file.Close()
			if err != nil {
				t.Error(err)
				return
			}
			if err := newTestServer(p.dir).serve(t.Context(), handed, time.Nanosecond); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for range 50 {
		if _, err := (Client{l.Addr().String()}).Find(t.Context(), []Device{full}); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-stopped
}

func TestServe_ListenerFails(t *testing.T) {
	l, _ := listen(t)
	l.Close()
	if err := newTestServer("/proc").serve(t.Context(), l, time.Hour); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a listener that is closed: %v", err)
	}
}
