package nodestatus

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// The parts of the Node's status that devmgrd patches.
const (
	partCapacity   = "capacity"
	partConditions = "conditions"
)

// metrics counts patches, and reports on each scrape what the Node shows.
type metrics struct {
	patches    *prometheus.CounterVec
	capacity   *prometheus.Desc
	contested  *prometheus.Desc
	store      *store
	view       View
	contention *contention
}

func newMetrics(to prometheus.Registerer, s *store, v View, by *contention) *metrics {
	m := &metrics{
		patches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_node_patches_total",
			Help: "Patches of the Node's status, by part (capacity or conditions) and result (ok or error).",
		}, []string{"part", "result"}),
		capacity: prometheus.NewDesc("devmgrd_node_capacity",
			"Devices that the Node object shows to the scheduler, as capacity and allocatable.", []string{"resource_name"}, nil),
		contested: prometheus.NewDesc("devmgrd_node_capacity_contested",
			"1 while another writer keeps changing the Node's capacity of the resource, or the kubelet's device manager has the resource too.", []string{"resource_name"}, nil),
		store:      s,
		view:       v,
		contention: by,
	}
	for _, part := range []string{partCapacity, partConditions} {
		for _, result := range []string{"ok", "error"} {
			m.patches.WithLabelValues(part, result)
		}
	}
	to.MustRegister(m.patches, m)
	return m
}

func (m *metrics) patch(part string, err error) {
	if err != nil {
		m.patches.WithLabelValues(part, "error").Inc()
		return
	}
	m.patches.WithLabelValues(part, "ok").Inc()
}

// Describe is part of prometheus.Collector.
func (m *metrics) Describe(c chan<- *prometheus.Desc) {
	c <- m.capacity
	c <- m.contested
}

// Collect is part of prometheus.Collector. It reports only resources of the View, so that no old series remains.
func (m *metrics) Collect(c chan<- prometheus.Metric) {
	all := slices.AppendSeq(m.contention.contested(), maps.Keys(m.contention.shared()))
	slices.Sort(all)
	for _, r := range slices.Compact(all) {
		c <- prometheus.MustNewConstMetric(m.contested, prometheus.GaugeValue, 1, string(r))
	}
	now, _ := m.store.now()
	for r, s := range m.view.Resources().ByName {
		if n, shown := now.allocatable[r]; shown && s.Counted() {
			c <- prometheus.MustNewConstMetric(m.capacity, prometheus.GaugeValue, float64(n), string(r))
		}
	}
}
