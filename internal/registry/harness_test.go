package registry_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const gpu = "vendor.example/gpu"

var (
	pod       = device.Pod{UID: "uid-1", Namespace: "default", Name: "train"}
	container = device.Container{Pod: "uid-1", Name: "main"}
)

// A harness is a registry that runs.
type harness struct {
	*registry.Registry
	t       testing.TB
	dir     string
	watched string // the registry directory
	with    registry.Neighbours
	memory  *memory
	logs    *logs
	metrics *prometheus.Registry
	stop    func() // returns when Run has
}

// prepare makes a registry that does not run yet.
func prepare(t testing.TB, change ...func(*registry.Config)) *harness {
	t.Helper()
	f := &harness{t: t, memory: &memory{}, logs: &logs{}, metrics: prometheus.NewRegistry()}
	cfg := registry.Config{
		GracePeriod:     time.Minute,
		AllocateTimeout: time.Minute, PreferredTimeout: time.Minute, PreStartTimeout: time.Minute,
		MaxMessageBytes: 64 << 20, MaxDevices: 250_000, MaxResources: 256, MaxTotalBytes: 256 << 20,
		Store: f.memory, Metrics: f.metrics,
		Log: slog.New(slog.NewTextHandler(f.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&cfg)
	}
	if cfg.SocketDir == "" {
		cfg.SocketDir = socketDir(t)
	}
	f.dir, f.watched, f.Registry = cfg.SocketDir, cfg.RegistryDir, registry.New(cfg)
	return f
}

// run starts it, and stops it when the test ends.
func (f *harness) run() *harness {
	f.t.Helper()
	var err error
	// A process that another test is just starting has the listener of a registry that has ended until it becomes another program.
	f.eventually("it listens", func() bool {
		err = f.Listen()
		return err == nil || !strings.Contains(err.Error(), fmt.Sprintf("(pid %d) listens on", os.Getpid()))
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return f.serve()
}

// serve is run for a registry that listens.
func (f *harness) serve() *harness {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, f.with) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				f.t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			f.t.Error("Run does not return")
		}
	})
	f.t.Cleanup(func() {
		f.stop()
		if f.t.Failed() {
			f.t.Log("log:\n" + f.logs.String())
		}
	})
	return f
}

func start(t testing.TB, change ...func(*registry.Config)) *harness {
	t.Helper()
	return prepare(t, change...).run()
}

// socketDir is short, since a socket's path may have 107 bytes and a test's own directory bears its name.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "plugins")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func at(dir string) func(*registry.Config) {
	return func(c *registry.Config) { c.SocketDir = dir }
}

// Where a plugin's container has our directories.
const (
	kubeletDir      = "/var/lib/kubelet/device-plugins"
	kubeletRegistry = "/var/lib/kubelet/plugins_registry"
)

// watches has plugins called that put a socket into dir.
func watches(dir string) func(*registry.Config) {
	return func(c *registry.Config) {
		c.RegistryDir, c.KubeletDir, c.KubeletRegistryDir = dir, kubeletDir, kubeletRegistry
	}
}

func grace(d time.Duration) func(*registry.Config) {
	return func(c *registry.Config) { c.GracePeriod = d }
}

func known(records ...device.PluginRecord) func(*registry.Config) {
	return func(c *registry.Config) { c.Known = records }
}

// offer returns the offer of gpu.
func (f *harness) offer() device.Offer { return f.Offers()[gpu] }

// serves reports whether gpu is served with devices of these IDs.
func (f *harness) serves(want ...string) func() bool {
	return func() bool {
		o := f.offer()
		return o.State == device.Serving && o.Reported && slices.Equal(ids(o), want)
	}
}

func (f *harness) is(state device.OfferState) func() bool {
	return func() bool {
		o, ok := f.Offers()[gpu]
		return ok && o.State == state
	}
}

// servesNumber reports whether gpu is served with n devices.
func (f *harness) servesNumber(n int) func() bool {
	return func() bool {
		o := f.offer()
		return o.State == device.Serving && o.Reported && len(o.Inventory.Devices) == n
	}
}

func (f *harness) eventually(what string, condition func() bool) {
	f.t.Helper()
	plugintest.Eventually(f.t, what, condition)
}

// stacks reports whether a goroutine's stack matches. A test that asks is not parallel: the goroutine is its own.
func stacks(t *testing.T, pattern string) bool {
	t.Helper()
	var all strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&all, 2); err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(pattern).MatchString(all.String())
}

// metric returns the value of a counter or gauge, or a histogram's count; -1 if there is no such series.
func (f *harness) metric(name, resource string) float64 {
	f.t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			if m.GetLabel()[0].GetValue() == resource {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

func ids(o device.Offer) []string {
	var all []string
	for _, d := range o.Inventory.Devices {
		all = append(all, string(d.ID))
	}
	return all
}

// store is a Memory that keeps what it is given.
type memory struct {
	mu    sync.Mutex
	saves []device.PluginRecord
	fail  error
	hold  chan struct{} // if set, SavePlugin waits for it

	forgotten []device.ResourceName
}

func (m *memory) SavePlugin(r device.PluginRecord) error {
	m.mu.Lock()
	hold, fail := m.hold, m.fail
	m.mu.Unlock()
	if hold != nil {
		<-hold
	}
	if fail != nil {
		return fail
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saves = append(m.saves, r)
	return nil
}

func (m *memory) ForgetResource(r device.ResourceName) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.saves = slices.DeleteFunc(m.saves, func(s device.PluginRecord) bool { return s.Resource == r })
	m.forgotten = append(m.forgotten, r)
	return nil
}

func (m *memory) all() []device.PluginRecord {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.saves)
}

// last returns the latest record of gpu.
func (m *memory) last() (device.PluginRecord, bool) { return m.lastOf(gpu) }

func (m *memory) lastOf(resource device.ResourceName) (device.PluginRecord, bool) {
	saves := m.all()
	for i := len(saves) - 1; i >= 0; i-- {
		if saves[i].Resource == resource {
			return saves[i], true
		}
	}
	return device.PluginRecord{}, false
}

// logs is what was logged.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logs) count(part string) int { return strings.Count(l.String(), part) }
