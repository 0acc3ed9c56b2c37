package gobuild

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// How often progress is reported in a log and on a terminal, and how much time has to have passed for an estimate.
const (
	logPause      = 15 * time.Second
	terminalPause = time.Second
	estimateAfter = 5 * time.Second
)

// progress reports how far a build is.
type progress struct {
	log      io.Writer
	title    string
	terminal bool
	stop     chan struct{}
	stopped  chan struct{}

	mu       sync.Mutex     // guards what follows
	modules  int            // downloaded
	position map[string]int // of a package in the order of the build; nil: not known yet
	sizes    []int64        // source bytes of the packages, by position
	upTo     []int64        // the sum of the sizes before each position, and of all
	reached  int            // the last position at which a package was compiled; those before are compiled or cached
	compiled int            // packages
	bytes    int64          // of their sources
	first    time.Time      // when the first of them began
	shown    int            // characters of the line on the terminal
}

func newProgress(log io.Writer, title string) *progress {
	p := &progress{log: log, title: title, stop: make(chan struct{}), stopped: make(chan struct{})}
	if f, ok := log.(*os.File); ok {
		_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
		p.terminal = err == nil
	}
	go p.report()
	return p
}

// report writes a line from time to time until end is called.
func (p *progress) report() {
	defer close(p.stopped)
	pause := logPause
	if p.terminal {
		pause = terminalPause
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case now := <-tick.C:
			p.mu.Lock()
			p.write(p.line(now))
			p.mu.Unlock()
		}
	}
}

func (p *progress) write(line string) {
	switch {
	case line == "":
	case p.terminal:
		fmt.Fprintf(p.log, "\r%-*s", p.shown, line)
		p.shown = len(line)
	default:
		fmt.Fprintln(p.log, line)
	}
}

// end stops the reports and clears the line on a terminal.
func (p *progress) end() {
	close(p.stop)
	<-p.stopped
	if p.shown > 0 {
		fmt.Fprintf(p.log, "\r%s\r", strings.Repeat(" ", p.shown))
	}
}

// downloaded counts a module.
func (p *progress) downloaded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.modules++
}

// expect sets what the build consists of.
func (p *progress) expect(all []source) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.position = make(map[string]int, len(all))
	var sum int64
	for i, s := range all {
		p.position[s.path] = i
		p.upTo, p.sizes = append(p.upTo, sum), append(p.sizes, s.size)
		sum += s.size
	}
	p.upTo = append(p.upTo, sum)
}

// begins reports whether a line of go build -v names a package, whose compilation begins with the line.
func (p *progress) begins(line string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.position[strings.TrimSuffix(line, "\n")]
	if !ok {
		return false
	}
	if p.compiled == 0 {
		p.first = time.Now()
	}
	p.compiled++
	p.bytes += p.sizes[at]
	p.reached = max(p.reached, at)
	return true
}

// line describes the state of the build.
func (p *progress) line(now time.Time) string {
	switch {
	case p.position == nil && p.modules == 0:
		return fmt.Sprintf("  %s: reading its sources", p.title)
	case p.position == nil:
		return fmt.Sprintf("  %s: %d modules downloaded", p.title, p.modules)
	case p.compiled == 0:
		return ""
	}
	total, left := len(p.sizes), p.upTo[len(p.sizes)]-p.upTo[p.reached]
	text := fmt.Sprintf("  %s: %d of %d packages", p.title, p.reached+1, total)
	if took := now.Sub(p.first); took > estimateAfter && p.bytes > 0 {
		text += ", " + about(time.Duration(float64(took)*float64(left)/float64(p.bytes)))
	}
	return text
}

func about(left time.Duration) string {
	if left < time.Minute {
		return "less than a minute left"
	}
	return fmt.Sprintf("about %d min left", int(left.Minutes()+0.5))
}
