package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/nri"
)

// routeLogs sends what libraries log to log, at level debug but for what concerns Kubernetes: devmgrd itself reports what they cannot do. It sets
// global variables: call it once, at the start.
func routeLogs(log *slog.Logger) {
	kube.RouteLogs(log)
	nri.RouteLogs(log)
	slog.SetLogLoggerLevel(slog.LevelDebug)
	slog.SetDefault(log)
}

// NewLog returns the daemon's log, and a function that ends it after writing the pending lines.
func NewLog(c config.Log, to io.Writer) (*slog.Logger, func()) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		panic(err) // the configuration has been checked
	}
	writer := newAsyncWriter(to)
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(writer, options)), writer.end
	}
	return slog.New(slog.NewTextHandler(writer, options)), writer.end
}

// An asyncWriter writes lines in the background. The log's reader may stop reading, as journald does when its disk hangs.
// A daemon that waited for the reader would hold up every container of the node. So Write never blocks: when too many
// lines are pending, further lines are lost, and run writes the number of lost lines as soon as the reader continues.
type asyncWriter struct {
	to    io.Writer
	lines chan []byte
	ended chan struct{}

	mu   locks.Mutex[locks.Leaf] // guards the fields below; not held during a write
	lost int
	over bool
}

const (
	backlog = 4096            // lines
	parting = 2 * time.Second // for pending lines at the end
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

// end waits until all lines are written, for parting at most.
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
