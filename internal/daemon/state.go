package daemon

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
	"github.com/devmgrd/devmgrd/internal/socket/shareddir"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/internal/version"
)

// addState reads what may end the start with a message, and opens the state file and the history.
func (d *daemon) addState() (err error) {
	if d.config.Kubernetes.Mode != config.NoCluster {
		d.api, err = kube.Connect(d.config.Kubernetes.Kubeconfig, version.Get().Version)
		if err != nil {
			return err
		}
	}
	d.bootID, err = store.Boot()
	if err != nil {
		return err
	}
	allowed, err := rulesOf(d.config.Plugins, d.logFor("pluginrules"))
	if err != nil {
		return err
	}
	if _, err := shareddir.Make(d.config.RunDir, 0o755); err != nil { // regardless of the umask: other users pass through to the sockets below
		return fmt.Errorf("making runDir: %w", err)
	}
	d.stateFile, d.known, err = store.Recover(store.Config{Dir: d.config.StateDir, Log: d.logFor("store"), Metrics: d.metrics})
	if err != nil {
		return err
	}
	d.historyFile, d.open = store.OpenHistory(d.stateFile)
	d.notifier = newNotifier(d.config, d.api, d.logFor("pods"))
	d.rules = pluginrules.New(pluginrules.Config{
		Rules: allowed, Enforce: d.config.Plugins.Rules == config.Enforce, Notifier: d.notifier, Log: d.logFor("pluginrules"), Metrics: d.metrics,
	})
	for _, r := range d.known.Pods {
		for _, s := range device.Shares(r.Assignments) {
			d.rules.Granted(s.Resource, s.IDs, s.Grant)
		}
	}
	d.add(part{name: "store", check: d.stateFile.Check})
	return nil
}

// close closes the history and the state file.
func (d *daemon) close() error {
	if d.stateFile == nil {
		return nil
	}
	return errors.Join(d.historyFile.Close(), d.stateFile.Close())
}

// logFor returns the log of a component.
func (d *daemon) logFor(name string) *slog.Logger { return d.log.With("component", name) }

// newMetrics returns the registry of metrics, with the standard metrics of a Go process.
func newMetrics() *prometheus.Registry {
	r := prometheus.NewRegistry()
	b := version.Get()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "devmgrd_build_info",
		Help:        "Always 1; the labels name the running version.",
		ConstLabels: prometheus.Labels{"version": b.Version, "goversion": b.Go},
	})
	info.Set(1)
	r.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// rulesOf reads the rules for device plugins; nil: plugins.rules is off.
func rulesOf(c config.Plugins, log *slog.Logger) (*pluginrules.Rules, error) {
	if c.Rules == config.Off {
		return nil, nil
	}
	rules, err := pluginrules.ReadFile(c.RulesFile)
	if err != nil {
		return nil, err
	}
	log.Info("rules for device plugins read", "mode", c.Rules, "file", c.RulesFile, "rules", len(rules.Rules))
	return rules, nil
}
