package dra

import "github.com/prometheus/client_golang/prometheus"

// metrics counts writes.
type metrics struct{ writes *prometheus.CounterVec }

func newMetrics(to prometheus.Registerer) metrics {
	m := metrics{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "devmgrd_resource_slice_writes_total",
		Help: "Writes of ResourceSlices, by verb (create, update or delete) and result (ok or error).",
	}, []string{"verb", "result"})}
	for _, v := range []verb{create, update, remove} {
		for _, result := range []string{"ok", "error"} {
			m.writes.WithLabelValues(string(v), result)
		}
	}
	to.MustRegister(m.writes)
	return m
}

func (m metrics) write(v verb, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.writes.WithLabelValues(string(v), result).Inc()
}
