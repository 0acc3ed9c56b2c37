package kubetest

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
)

// NewInMemory returns a server that its clients call without a socket, for tests in a synctest bubble. Start and Stop are
// not for it.
func NewInMemory(t testing.TB) *Server {
	s := newServer(t)
	s.transport, s.address = inMemory{s}, "in-memory"
	return s
}

// inMemory is the transport of a server's clients: each request is served by a goroutine of its own.
type inMemory struct{ server *Server }

func (m inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	body, out := io.Pipe()
	w := &response{header: http.Header{}, out: out, begun: make(chan struct{})}
	go func() {
		m.server.ServeHTTP(w, r.WithContext(ctx))
		w.WriteHeader(http.StatusOK)
		out.Close()
		if r.Body != nil {
			r.Body.Close()
		}
	}()
	select {
	case <-w.begun:
		return &http.Response{StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: w.header, Body: &answer{body, cancel}, Request: r}, nil
	case <-ctx.Done():
		cancel()
		body.Close()
		return nil, ctx.Err()
	}
}

// response is the server's end of an exchange.
type response struct {
	header http.Header
	out    *io.PipeWriter
	status int
	begin  sync.Once
	begun  chan struct{}
}

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	w.begin.Do(func() {
		w.status = status
		close(w.begun)
	})
}

func (w *response) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.out.Write(p)
}

func (w *response) Flush() {}

// answer is the client's end. Closing it ends the request.
type answer struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (a *answer) Close() error {
	a.cancel()
	return a.PipeReader.Close()
}
