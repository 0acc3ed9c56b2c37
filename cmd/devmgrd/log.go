package main

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/devmgrd/devmgrd/config"
)

// newLog makes the daemon's log. The function it gives ends it: what has been said until then is written.
func newLog(c config.Log, to io.Writer) (*slog.Logger, func()) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		panic(err) // the configuration has been checked
	}
	scribe := newAsyncWriter(to)
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(scribe, options)), scribe.end
	}
	return slog.New(slog.NewTextHandler(scribe, options)), scribe.end
}

// A asyncWriter writes lines in the background. Whoever reads our log may stop reading, as journald does when its disk hangs;
// a daemon that waits for that holds up every container of the node. So nobody waits: when too many lines wait to be
// written, further ones are lost, and how many is said as soon as somebody reads again.
type asyncWriter struct {
	to    io.Writer
	lines chan []byte
	ended chan struct{}

	mu   sync.Mutex // guards what follows; held for no write
	lost int
	over bool
}

const (
	backlog = 4096            // lines
	parting = 2 * time.Second // for what is left at the end
)

func newAsyncWriter(to io.Writer) *asyncWriter {
	s := &asyncWriter{to: to, lines: make(chan []byte, backlog), ended: make(chan struct{})}
	go s.run() // ends with end
	return s
}

// Write takes one line. It is called by slog, one line at a time, and never blocks.
func (s *asyncWriter) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return len(line), nil
	}
	select {
	case s.lines <- append([]byte(nil), line...): // slog uses its buffer again
	default:
		s.lost++
	}
	return len(line), nil
}

func (s *asyncWriter) run() {
	defer close(s.ended)
	for line := range s.lines {
		s.to.Write(line)
		s.mu.Lock()
		lost := s.lost
		s.lost = 0
		s.mu.Unlock()
		if lost > 0 {
			fmt.Fprintf(s.to, "devmgrd: %d log lines were lost because the log was not read in time\n", lost)
		}
	}
}

// end waits until all is written, but not for somebody who does not read.
func (s *asyncWriter) end() {
	s.mu.Lock()
	if !s.over {
		s.over = true
		close(s.lines)
	}
	s.mu.Unlock()
	select {
	case <-s.ended:
	case <-time.After(parting):
	}
}
