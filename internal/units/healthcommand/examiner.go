package healthcommand

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/locks"
	"github.com/devmgrd/devmgrd/internal/units"
)

// first is when the first devices are examined after a start. Plugins have registered by then, as a rule.
const first = 10 * time.Second

// unitPrefix begins the names of the commands' units; the resource follows.
const unitPrefix = "devmgrd-health"

// unhealthy is the exit code of a command that finds a device unhealthy.
const unhealthy = 1

// Devices are the devices of this node.
type Devices interface {
	Resources() device.Resources
	// Examinable returns the devices of a resource that are listed and healthy and that no pod has.
	Examinable(device.ResourceName) []device.ID
	// MayExamine reports whether a device is one of these.
	MayExamine(device.ResourceName, device.ID) bool
	// Examined reports why a device is unhealthy; empty: it is healthy.
	Examined(r device.ResourceName, id device.ID, objection string)
}

// Units runs commands as units of systemd, as units.Systemd does.
type Units interface {
	// Run returns when systemd says that the unit has ended, also when ctx ends, which has it stopped.
	Run(ctx context.Context, unit string, argv, env []string, limit time.Duration) (units.Outcome, error)
	// Left returns the units that an earlier process of devmgrd has left, of those whose names begin with prefix.
	Left(ctx context.Context, prefix string) ([]string, error)
	// End has a unit stopped, and returns when it has ended, or ctx has.
	End(ctx context.Context, unit string) error
}

// Config is what New needs.
type Config struct {
	// Command returns the command that examines a resource's devices; empty: there is none.
	Command func(device.ResourceName) []string
	// Plugin returns the plugin of a resource: each has its share of the commands that run at once.
	Plugin   func(device.ResourceName) units.Plugin
	Interval time.Duration // from one round through the devices of a resource to the next
	Timeout  time.Duration // of a command
	Devices  Devices
	Units    Units
	Log      *slog.Logger
	Metrics  prometheus.Registerer
}

// An Examiner has devices examined.
type Examiner struct {
	Config
	runs  *prometheus.CounterVec
	turns units.Turns

	mu     locks.Mutex[locks.Leaf]       // guards what follows
	rounds map[device.ResourceName]bool  // under way
	latest map[device.ResourceName]error // why the latest run has judged no device; nil: it has judged one
}

// New returns an Examiner. Run makes it work.
func New(c Config) *Examiner {
	e := &Examiner{Config: c, rounds: map[device.ResourceName]bool{}, latest: map[device.ResourceName]error{}, runs: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "devmgrd_health_commands_total", Help: "Runs of health.command, by resource and result: healthy, unhealthy or unknown.",
	}, []string{"resource", "result"})}
	c.Metrics.MustRegister(e.runs)
	return e
}

// Run examines devices until ctx ends, which is not an error.
func (e *Examiner) Run(ctx context.Context) error {
	var work sync.WaitGroup
	defer work.Wait()
	e.endLeft(ctx)
	due := time.NewTimer(min(first, e.Interval))
	defer due.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-due.C:
			due.Reset(e.Interval)
		}
		resources := e.Devices.Resources().ByName
		e.forgetOthers(resources)
		for r := range resources {
			if argv := e.Command(r); len(argv) > 0 && e.begin(r) {
				work.Go(func() { e.round(ctx, r, argv) })
			}
		}
	}
}

// endLeft ends the commands that an earlier process of devmgrd has left, so that only one runs for a resource.
func (e *Examiner) endLeft(ctx context.Context) {
	left, _ := e.Units.Left(ctx, unitPrefix) // an error is the end of ctx
	for _, unit := range left {
		_ = e.Units.End(ctx, unit)
	}
}

// forgetOthers forgets the resources that devmgrd no longer knows.
func (e *Examiner) forgetOthers(resources map[device.ResourceName]device.ResourceStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for r := range e.latest {
		if _, there := resources[r]; !there && !e.rounds[r] {
			delete(e.latest, r)
			e.runs.DeletePartialMatch(prometheus.Labels{"resource": string(r)})
		}
	}
}

// begin reports whether a round through a resource's devices may begin: the last one has ended.
func (e *Examiner) begin(r device.ResourceName) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.rounds[r] {
		return false
	}
	e.rounds[r] = true
	return true
}

// round examines the devices of a resource, one after the other.
func (e *Examiner) round(ctx context.Context, r device.ResourceName, argv []string) {
	defer func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.rounds, r)
	}()
	for _, id := range e.Devices.Examinable(r) {
		done, err := e.turns.Take(ctx, e.Plugin(r), e.Timeout)
		if err != nil {
			return
		}
		if e.Devices.MayExamine(r, id) { // no pod has got it
			e.judge(ctx, r, id, argv)
		}
		done()
	}
}

// judge has a device examined, and reports what has come of it unless devmgrd ends.
func (e *Examiner) judge(ctx context.Context, r device.ResourceName, id device.ID, argv []string) {
	objection, err := e.examine(ctx, r, id, argv)
	if ctx.Err() != nil {
		return
	}
	e.record(r, objection, err)
	if err == nil {
		e.Devices.Examined(r, id, objection)
	}
}

// record counts a run. It logs the first of several failures to judge a resource's devices, and their end.
func (e *Examiner) record(r device.ResourceName, objection string, err error) {
	result := "healthy"
	switch {
	case err != nil:
		result = "unknown"
	case objection != "":
		result = "unhealthy"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs.WithLabelValues(string(r), result).Inc()
	before := e.latest[r]
	e.latest[r] = err
	switch {
	case err != nil && (before == nil || before.Error() != err.Error()):
		e.Log.Warn("health.command says nothing of a device", "resource", r, "err", err)
	case err == nil && before != nil:
		e.Log.Info("health.command judges devices again", "resource", r)
	}
}

// examine runs the command for one device. An error means that it is not known how the device is.
func (e *Examiner) examine(ctx context.Context, r device.ResourceName, id device.ID, argv []string) (objection string, err error) {
	if !utf8.ValidString(string(id)) || strings.ContainsFunc(string(id), unicode.IsControl) {
		return "", fmt.Errorf("device %s has a control character in its ID, and cannot be named to a command", device.QuoteID(id))
	}
	unit := units.Name(unitPrefix, string(r)) // one at a time
	got, err := e.Units.Run(ctx, unit, argv, []string{"DEVMGRD_RESOURCE=" + string(r), "DEVMGRD_DEVICE=" + string(id)}, e.Timeout)
	switch {
	case err != nil:
	case got.TimedOut:
		err = errors.New("it has not ended within health.timeout")
	case got.Signal != "":
		err = fmt.Errorf("it was ended by signal %s", got.Signal)
	case got.Code == unhealthy:
		return "health.command finds it unhealthy (exit code 1); see journalctl -u " + unit, nil
	case got.Code != 0:
		err = fmt.Errorf("it has ended with exit code %d", got.Code)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w; see journalctl -u %s", argv[0], err, unit)
	}
	return "", err
}
