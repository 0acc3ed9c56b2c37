package dra

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
)

// metrics counts writes, and reports on each scrape what the slices show.
type metrics struct {
	writes  *prometheus.CounterVec
	devices *prometheus.Desc
	store   *store
}

func newMetrics(to prometheus.Registerer, s *store) metrics {
	m := metrics{
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_resource_slice_writes_total",
			Help: "Writes of ResourceSlices, by verb (create, update or delete) and result (ok or error).",
		}, []string{"verb", "result"}),
		devices: prometheus.NewDesc("devmgrd_resource_slice_devices",
			"Devices in this node's ResourceSlices, by whether they have a taint that keeps pods away.", []string{"resource_name", "tainted"}, nil),
		store: s,
	}
	for _, v := range []verb{create, update, remove} {
		for _, result := range []string{"ok", "error"} {
			m.writes.WithLabelValues(string(v), result)
		}
	}
	to.MustRegister(m.writes, m)
	return m
}

func (m metrics) write(v verb, err error) {
	result := "ok"
	if err != nil {
		result = "error"
	}
	m.writes.WithLabelValues(string(v), result).Inc()
}

// Describe is part of prometheus.Collector.
func (m metrics) Describe(c chan<- *prometheus.Desc) { c <- m.devices }

// Collect is part of prometheus.Collector.
func (m metrics) Collect(c chan<- prometheus.Metric) {
	type key struct {
		resource string
		tainted  bool
	}
	count := map[key]int{}
	all, _ := m.store.now()
	for _, slice := range all {
		r := slice.Annotations[resourceAnnotation]
		if _, err := device.ParseResourceName(r); err != nil {
			continue // not devmgrd's: a label that is no UTF-8 would end the process
		}
		count[key{r, false}] += 0
		count[key{r, true}] += 0
		for _, d := range slice.Spec.Devices {
			count[key{r, len(d.Taints) > 0}]++
		}
	}
	for k, n := range count {
		c <- prometheus.MustNewConstMetric(m.devices, prometheus.GaugeValue, float64(n), k.resource, strconv.FormatBool(k.tainted))
	}
}
