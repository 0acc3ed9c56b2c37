package openers

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"time"
)

const (
	maxRequest     = 64 << 10         // bytes
	maxConnections = 16               // at once; further ones wait in the socket's queue
	requestLimit   = 10 * time.Second // for a client to send its request
	answerLimit    = 10 * time.Second // for a client to take its answer
	scanLimit      = 50 * time.Second // in all, with the wait for other scans: shorter than clients wait, who need the CPU time
)

// A request is what a client sends: one line of JSON.
type request struct {
	Devices []Device `json:"devices"`
}

// An answer is what a server sends: one line of JSON, before it closes the connection.
type answer struct {
	Scan  *Scan         `json:"scan,omitempty"`
	Error string        `json:"error,omitempty"`
	CPU   time.Duration `json:"cpu,omitempty"` // of a scan that has failed
}

// Serve answers clients on l with scans of /proc, one at a time. It returns nil when ctx ends or, if idle is greater than 0, when no
// client has been connected for idle. Otherwise it returns the error of l, which it closes in each case.
func Serve(ctx context.Context, l net.Listener, idle time.Duration, log *slog.Logger) error {
	return newServer("/proc", log).serve(ctx, l, idle)
}

type server struct {
	finder       *finder
	turn         chan struct{} // holds an element while a scan runs
	log          *slog.Logger
	requestLimit time.Duration
	answerLimit  time.Duration
}

func newServer(proc string, log *slog.Logger) *server {
	return &server{finder: newFinder(proc), turn: make(chan struct{}, 1), log: log, requestLimit: requestLimit, answerLimit: answerLimit}
}

// serve is Serve.
func (s *server) serve(ctx context.Context, l net.Listener, idle time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	var connections sync.WaitGroup
	defer connections.Wait()
	defer cancel()
	accepted, failed := make(chan net.Conn), make(chan error, 1)
	connections.Go(func() {
		defer close(accepted)
		failed <- accept(ctx, l, accepted)
	})
	defer func() {
		for conn := range accepted { // the last one, which has come while the listener was closed
			s.answer(ctx, conn)
		}
	}()
	defer l.Close()

	served, ended := 0, make(chan struct{})
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		incoming, quiet := accepted, timer.C
		if served == maxConnections {
			incoming = nil
		}
		if served > 0 || idle <= 0 {
			quiet = nil
		}
		select {
		case conn, ok := <-incoming:
			if !ok {
				return <-failed
			}
			served++
			connections.Go(func() {
				s.answer(ctx, conn)
				select {
				case ended <- struct{}{}:
				case <-ctx.Done():
				}
			})
		case <-ended:
			served--
			timer.Reset(idle)
		case <-quiet:
			s.log.Info("stopping without clients", "idle", idle)
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// accept hands over connections until the listener fails. Its error is nil if ctx has ended.
func accept(ctx context.Context, l net.Listener, accepted chan<- net.Conn) error {
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accepting clients: %w", err)
		}
		select {
		case accepted <- conn:
		case <-ctx.Done():
			conn.Close()
			return nil
		}
	}
}

// answer serves one connection and closes it.
func (s *server) answer(ctx context.Context, conn net.Conn) {
	var watching sync.WaitGroup
	defer watching.Wait()
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	devices, err := s.receive(conn)
	var result answer
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, scanLimit)
		defer cancel()
		watching.Go(func() {
			_, _ = conn.Read(make([]byte, 1)) // until the client hangs up, or the connection is closed here
			cancel()
		})
		result = s.scan(ctx, devices)
	} else {
		result.Error = err.Error()
	}
	if ctx.Err() != nil {
		return
	}
	text, err := json.Marshal(result)
	if err == nil {
		err = conn.SetWriteDeadline(time.Now().Add(s.answerLimit))
	}
	if err == nil {
		_, err = conn.Write(append(text, '\n'))
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("cannot answer client", "err", err)
	}
}

// receive reads a request.
func (s *server) receive(conn net.Conn) ([]Device, error) {
	if err := conn.SetReadDeadline(time.Now().Add(s.requestLimit)); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxRequest+1)).ReadBytes('\n')
	if len(line) > maxRequest {
		return nil, fmt.Errorf("reading request: more than %d bytes", maxRequest)
	}
	if err != nil {
		return nil, fmt.Errorf("reading request: %w", err)
	}
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return nil, fmt.Errorf("reading request: %w", err)
	}
	return r.Devices, conn.SetReadDeadline(time.Time{})
}

// scan makes a scan when other scans have ended.
func (s *server) scan(ctx context.Context, devices []Device) answer {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return answer{Error: fmt.Sprintf("waiting for another scan: %v", ctx.Err())}
	}
	scan, err := s.finder.find(ctx, devices)
	if err != nil {
		return answer{Error: err.Error(), CPU: scan.CPU}
	}
	s.log.Debug("scanned processes", "devices", len(devices), "openers", len(scan.Openers), "unknown", len(scan.Unknown), "processes", scan.Processes, "files", scan.Files, "cpu", scan.CPU)
	return answer{Scan: &scan}
}
