package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// A count is what has gone through the connections of one party.
type count struct {
	reads    int64 // GET of one object or of a list
	watches  int64 // watch requests
	writes   int64 // POST, PUT, PATCH, DELETE
	failed   int64 // requests without an answer: the API server was away
	received int64 // bytes, TLS included
	sent     int64
}

func (c count) minus(before count) count {
	return count{c.reads - before.reads, c.watches - before.watches, c.writes - before.writes, c.failed - before.failed, c.received - before.received, c.sent - before.sent}
}

func (c count) requests() int64 { return c.reads + c.watches + c.writes }

// A meter counts for one party: all kubelets, or all devmgrds.
type meter struct {
	reads, watches, writes, failed, received, sent atomic.Int64
	seconds                                        [3600]atomic.Int32 // answers in each second since the meter was made
	began                                          time.Time
}

func newMeter() *meter { return &meter{began: time.Now()} }

func (m *meter) now() count {
	return count{m.reads.Load(), m.watches.Load(), m.writes.Load(), m.failed.Load(), m.received.Load(), m.sent.Load()}
}

// peak returns the most requests in one second since a time.
func (m *meter) peak(since time.Time) (most int32) {
	for i := int(since.Sub(m.began) / time.Second); i <= int(time.Since(m.began)/time.Second) && i < len(m.seconds); i++ {
		most = max(most, m.seconds[i].Load())
	}
	return most
}

// transport counts the requests of a client that are answered, and the others.
func (m *meter) transport(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		switch {
		case err != nil:
			m.failed.Add(1)
			return answer, err
		case r.Method != http.MethodGet:
			m.writes.Add(1)
		case strings.Contains(r.URL.RawQuery, "watch="):
			m.watches.Add(1)
		default:
			m.reads.Add(1)
		}
		if i := int(time.Since(m.began) / time.Second); i < len(m.seconds) {
			m.seconds[i].Add(1)
		}
		return answer, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// conn counts the bytes of a connection.
func (m *meter) conn(c net.Conn) net.Conn { return metered{c, m} }

type metered struct {
	net.Conn
	meter *meter
}

func (c metered) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.meter.received.Add(int64(n))
	return n, err
}

func (c metered) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.meter.sent.Add(int64(n))
	return n, err
}

var _ io.ReadWriter = metered{}
