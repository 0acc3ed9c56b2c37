package reclaim

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/reclaim/openers"
)

type metrics struct {
	searches, cpu prometheus.Counter
	commands      *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		searches: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "devmgrd_release_searches_total", Help: "Searches of all processes for those that use devices of ended pods (release.check: openers).",
		}),
		cpu: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "devmgrd_release_search_cpu_seconds_total", Help: "CPU time of these searches. 5 % of one core at most, unless pods have more than 20 000 files open.",
		}),
		commands: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_release_commands_total", Help: "Runs of release.command, by resource and result: free, retry or failed.",
		}, []string{"resource", "result"}),
	}
	r.MustRegister(m.searches, m.cpu, m.commands)
	return m
}

func (m *metrics) searched(s openers.Scan) {
	m.searches.Inc()
	m.cpu.Add(s.CPU.Seconds())
}

// forget deletes a resource's series.
func (m *metrics) forget(r device.ResourceName) {
	m.commands.DeletePartialMatch(prometheus.Labels{"resource": string(r)})
}

func (m *metrics) commanded(r device.ResourceName, err error, again bool) {
	result := "free"
	switch {
	case err != nil && again:
		result = "retry"
	case err != nil:
		result = "failed"
	}
	m.commands.WithLabelValues(string(r), result).Inc()
}
