package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// What hostile neighbours must not bring about.
const (
	hookLimit   = 0.2       // seconds, for 99 of 100 hooks
	memoryLimit = 150 << 20 // bytes of devmgrd
	writeLimit  = 120       // writes of ResourceSlices in a minute, by one process: the pauses begin again with the next
)

// A meter adds up what devmgrd says of itself, over its restarts.
type meter struct {
	mu     sync.Mutex
	pid    int
	last   map[string]float64 // the counters of this process
	sums   map[string]float64 // of those before it
	memory int                // the most so far, in bytes
	minute []sample           // the writes of slices in the last minute, by this process
	writes float64            // the most in a minute
}

type sample struct {
	at    time.Time
	total float64
}

const (
	hookBuckets = "devmgrd_nri_hook_duration_seconds_bucket"
	sliceWrites = "devmgrd_resource_slice_writes_total"
)

// look reads the metrics, about once a second.
func (m *meter) look(w *world, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	pid := w.devmgrd.Pid()
	m.memory = max(m.memory, memoryOf(pid))
	if len(m.minute) > 0 && now.Sub(m.minute[len(m.minute)-1].at) < time.Second {
		return
	}
	_, text, err := w.node.Get("/metrics")
	if err != nil || pid != w.devmgrd.Pid() {
		return
	}
	if pid != m.pid {
		for name, n := range m.last {
			m.sums[name] += n
		}
		m.pid, m.last, m.minute = pid, map[string]float64{}, nil
	}
	m.last = counters(text)
	total := m.total(sliceWrites)
	m.minute = append(m.minute, sample{now, total})
	for now.Sub(m.minute[0].at) > time.Minute {
		m.minute = m.minute[1:]
	}
	m.writes = max(m.writes, total-m.minute[0].total)
}

// counters returns those of a meter, all events of hooks and all kinds of writes together.
func counters(text string) map[string]float64 {
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
		n, err := strconv.ParseFloat(value, 64)
		switch name, labels, _ := strings.Cut(series, "{"); {
		case err != nil:
		case name == sliceWrites:
			all[name] += n
		case name == hookBuckets:
			_, bound, _ := strings.Cut(labels, `le="`)
			all[strings.Trim(bound, `"`)] += n
		}
	}
	return all
}

func (m *meter) total(name string) float64 { return m.sums[name] + m.last[name] }

// hooks returns how many hooks there were, and the part that took no longer than hookLimit, by the next lower bound.
func (m *meter) hooks() (n, fast float64) {
	best := 0.0
	for _, of := range []map[string]float64{m.sums, m.last} {
		for bound := range of {
			if b, err := strconv.ParseFloat(bound, 64); err == nil && b <= hookLimit && b > best {
				best, fast = b, m.total(bound)
			}
		}
	}
	return m.total("+Inf"), fast
}

// report prints what has been measured, and returns whether it is as it should be.
func (m *meter) report() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, fast := m.hooks()
	fmt.Printf("%6.0f hooks, %.2f %% of them within %.0f ms\n", n, 100*fast/max(n, 1), 1000*hookLimit)
	fmt.Printf("%6d MiB of memory at most\n", m.memory>>20)
	fmt.Printf("%6.0f writes of ResourceSlices in a minute at most\n", m.writes)
	return n > 0 && fast >= 0.99*n && m.memory <= memoryLimit && m.writes <= writeLimit
}

// memoryOf returns the memory of a process that is not of files, in bytes.
func memoryOf(pid int) (n int) {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	for line := range strings.Lines(string(text)) {
		if rest, is := strings.CutPrefix(line, "RssAnon:"); is {
			_, _ = fmt.Sscan(rest, &n)
		}
	}
	return n << 10
}
