package healthcommand_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/units"
	"github.com/devmgrd/devmgrd/internal/units/healthcommand"
)

const gpu device.ResourceName = "vendor.example/gpu"

// node is devices, and what the command does with each: it is the Examiner's Devices and its Units.
type node struct {
	mu      sync.Mutex
	devices []device.ID
	taken   map[device.ID]bool
	run     func(ctx context.Context, id string) (units.Outcome, error)
	left    []string // units of an earlier process of devmgrd; each takes 15 s to end
	runs    []string // as "unit id"
	at      []time.Duration
	began   time.Time
	verdict map[device.ID][]string
}

func (n *node) Resources() device.Resources {
	return device.Resources{ByName: map[device.ResourceName]device.ResourceStatus{gpu: {}, "vendor.example/unexamined": {}}}
}

func (n *node) Examinable(r device.ResourceName) (ids []device.ID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(n.devices), func(id device.ID) bool { return n.taken[id] })
}

func (n *node) MayExamine(r device.ResourceName, id device.ID) bool {
	return slices.Contains(n.Examinable(r), id)
}

func (n *node) Examined(r device.ResourceName, id device.ID, objection string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.verdict[id] = append(n.verdict[id], objection)
}

func (n *node) Run(ctx context.Context, unit string, argv, env []string, limit time.Duration) (units.Outcome, error) {
	if !slices.Equal(argv, []string{"/bin/examine", "-q"}) || limit != 30*time.Second || env[0] != "DEVMGRD_RESOURCE="+string(gpu) {
		return units.Outcome{}, fmt.Errorf("ran %q with %q for %v", argv, env, limit)
	}
	id := strings.TrimPrefix(env[1], "DEVMGRD_DEVICE=")
	n.mu.Lock()
	n.runs, n.at = append(n.runs, unit+" "+id), append(n.at, time.Since(n.began))
	n.mu.Unlock()
	return n.run(ctx, id)
}

func (n *node) Left(_ context.Context, prefix string) ([]string, error) {
	return slices.DeleteFunc(slices.Clone(n.left), func(unit string) bool { return !strings.HasPrefix(unit, prefix+"-") }), nil
}

func (n *node) End(_ context.Context, unit string) error {
	time.Sleep(15 * time.Second) // of the bubble's clock
	n.mu.Lock()
	defer n.mu.Unlock()
	n.runs = append(n.runs, "ended "+unit)
	return nil
}

// examine runs an Examiner for a time, and returns its log and its metrics.
func (n *node) examine(t *testing.T, d time.Duration) (log string, results map[string]float64) {
	n.taken, n.verdict, n.began = map[device.ID]bool{}, map[device.ID][]string{}, time.Now()
	var text bytes.Buffer
	metrics := prometheus.NewRegistry()
	e := healthcommand.New(healthcommand.Config{
		Command: func(r device.ResourceName) []string {
			if r == gpu {
				return []string{"/bin/examine", "-q"}
			}
			return nil
		},
		Plugin:   func(device.ResourceName) units.Plugin { return units.Plugin{} },
		Interval: time.Minute, Timeout: 30 * time.Second, Devices: n, Units: n, Log: slog.New(slog.NewTextHandler(&text, nil)), Metrics: metrics,
	})
	ctx, stop := context.WithTimeout(t.Context(), d)
	defer stop()
	if err := e.Run(ctx); err != nil {
		t.Error(err)
	}
	results = map[string]float64{}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			i := slices.IndexFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == "result" })
			results[m.Label[i].GetValue()] += m.Counter.GetValue()
		}
	}
	return text.String(), results
}

func TestExaminer_ExitCodes_AreVerdicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		outcomes := map[string]units.Outcome{"good": {}, "bad": {Code: 1}, "away": {Code: 203}, "hung": {TimedOut: true}, "crashed": {Signal: "segmentation fault"}}
		n := &node{devices: []device.ID{"good", "bad", "away", "hung", "crashed", "lost", "con\ntrol"}, run: func(_ context.Context, id string) (units.Outcome, error) {
			if id == "lost" {
				return units.Outcome{}, errors.New("systemd does not answer")
			}
			return outcomes[id], nil
		}}
		log, results := n.examine(t, 80*time.Second) // two rounds
		if want := []string{"", ""}; !slices.Equal(n.verdict["good"], want) {
			t.Errorf("good: %q", n.verdict["good"])
		}
		if got := n.verdict["bad"]; len(got) != 2 || got[0] != "health.command finds it unhealthy (exit code 1); see journalctl -u devmgrd-health-vendor.example:gpu.service" {
			t.Errorf("bad: %q", got)
		}
		if len(n.verdict) != 2 {
			t.Errorf("judged: %q", n.verdict)
		}
		if results["healthy"] != 2 || results["unhealthy"] != 2 || results["unknown"] != 10 {
			t.Errorf("counted: %v", results)
		}
		for _, want := range []string{"exit code 203", "health.timeout", "segmentation fault", "systemd does not answer", "control character", "judges devices again"} {
			if !strings.Contains(log, want) {
				t.Errorf("the log lacks %q:\n%s", want, log)
			}
		}
	})
}

// One device after the other, and no round before the last one has ended. A device that a pod gets meanwhile is left alone.
func TestExaminer_SlowCommand_OneRunAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{devices: []device.ID{"a", "b", "c"}}
		running := 0
		n.run = func(ctx context.Context, id string) (units.Outcome, error) {
			running++
			if running > 1 {
				t.Errorf("%d run at once", running)
			}
			defer func() { running-- }()
			n.mu.Lock()
			n.taken["b"] = true
			n.mu.Unlock()
			select {
			case <-time.After(25 * time.Second):
				return units.Outcome{}, nil
			case <-ctx.Done():
				return units.Outcome{}, ctx.Err()
			}
		}
		n.examine(t, 170*time.Second) // the end cuts the last run off
		const unit = "devmgrd-health-vendor.example:gpu.service "
		if want := []string{unit + "a", unit + "c", unit + "a", unit + "c", unit + "a", unit + "c"}; !slices.Equal(n.runs, want) {
			t.Errorf("ran %q", n.runs)
		}
		if want := []time.Duration{10, 35, 70, 95, 130, 155}; len(n.at) != len(want) || n.at[0] != want[0]*time.Second || n.at[2] != want[2]*time.Second || n.at[5] != want[5]*time.Second {
			t.Errorf("ran at %v", n.at)
		}
		if got := n.verdict["c"]; len(got) != 2 {
			t.Errorf("c was judged %d times", len(got))
		}
	})
}

// devmgrd was killed during a run: the command ends before another one begins.
func TestExaminer_CommandOfAnEarlierProcess_IsEndedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const unit = "devmgrd-health-vendor.example:gpu.service"
		n := &node{devices: []device.ID{"a"}, left: []string{unit, "devmgrd-release-a-vendor.example:gpu.service"}, run: func(context.Context, string) (units.Outcome, error) {
			return units.Outcome{}, nil
		}}
		n.examine(t, 30*time.Second)
		if want := []string{"ended " + unit, unit + " a"}; !slices.Equal(n.runs, want) {
			t.Errorf("ran %q, want %q", n.runs, want)
		}
	})
}

// many is resources of two plugins, whose commands take 100 ms.
type many struct {
	node
	mu        sync.Mutex
	resources []device.ResourceName
	now, most int
	count     map[device.ResourceName]int
}

func (m *many) Resources() device.Resources {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := device.Resources{ByName: map[device.ResourceName]device.ResourceStatus{}}
	for _, r := range m.resources {
		all.ByName[r] = device.ResourceStatus{}
	}
	return all
}

func (m *many) Examinable(r device.ResourceName) []device.ID {
	if r == gpu {
		return []device.ID{"a", "b", "c"}
	}
	all := make([]device.ID, 2000)
	for i := range all {
		all[i] = device.ID(fmt.Sprint(i))
	}
	return all
}

func (m *many) MayExamine(device.ResourceName, device.ID) bool  { return true }
func (m *many) Examined(device.ResourceName, device.ID, string) {}

func (m *many) Run(ctx context.Context, _ string, _, env []string, _ time.Duration) (units.Outcome, error) {
	m.mu.Lock()
	m.now++
	m.most = max(m.most, m.now)
	m.count[device.ResourceName(strings.TrimPrefix(env[0], "DEVMGRD_RESOURCE="))]++
	m.mu.Unlock()
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now--
	return units.Outcome{}, nil
}

// examineAll runs an Examiner until the test ends.
func (m *many) examineAll(t *testing.T) *prometheus.Registry {
	metrics := prometheus.NewRegistry()
	e := healthcommand.New(healthcommand.Config{
		Command: func(device.ResourceName) []string { return []string{"/bin/examine"} },
		Plugin: func(r device.ResourceName) units.Plugin {
			if r == gpu {
				return units.Plugin{Pod: "honest"}
			}
			return units.Plugin{Pod: "junk"}
		},
		Interval: time.Minute, Timeout: 30 * time.Second, Devices: m, Units: m, Log: slog.New(slog.DiscardHandler), Metrics: metrics,
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return metrics
}

func TestExaminer_PluginWithManyResources_FourCommandsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &many{count: map[device.ResourceName]int{}, resources: []device.ResourceName{gpu}}
		for i := range 255 {
			m.resources = append(m.resources, device.ResourceName(fmt.Sprint("vendor.example/junk", i)))
		}
		m.examineAll(t)
		time.Sleep(11 * time.Second) // one second of commands
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.most > 4 {
			t.Errorf("%d commands at once", m.most)
		}
		if m.count[gpu] != 3 {
			t.Errorf("%d of 3 devices of the other plugin have been examined within a second", m.count[gpu])
		}
	})
}

func TestExaminer_ResourceForgotten_SeriesAreDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &many{count: map[device.ResourceName]int{}, resources: []device.ResourceName{gpu, "vendor.example/junk"}}
		metrics := m.examineAll(t)
		series := func() (all []string) {
			families, err := metrics.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				for _, one := range f.Metric {
					all = append(all, one.Label[0].GetValue())
				}
			}
			return all
		}
		time.Sleep(90 * time.Second) // a round of 2000 devices
		if got := series(); !slices.Equal(got, []string{"vendor.example/gpu", "vendor.example/junk"}) {
			t.Fatalf("series of %q", got)
		}
		m.mu.Lock()
		m.resources = m.resources[:1]
		m.mu.Unlock()
		time.Sleep(10 * time.Minute)
		if got := series(); !slices.Equal(got, []string{"vendor.example/gpu"}) {
			t.Errorf("series of %q after one has been forgotten", got)
		}
	})
}
