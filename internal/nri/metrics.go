package nri

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
)

type metrics struct {
	hooks    *prometheus.HistogramVec
	refusals *prometheus.CounterVec
}

func newMetrics(to prometheus.Registerer, connected func() bool, notRedirected func() float64) *metrics {
	m := &metrics{
		hooks: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "devmgrd_nri_hook_duration_seconds",
			Help:    "Time in one NRI hook, by event: CreateContainer, ValidateContainerAdjustment, StartContainer, StopContainer, RemoveContainer, RunPodSandbox, StopPodSandbox, RemovePodSandbox or Synchronize.",
			Buckets: prometheus.ExponentialBuckets(0.00001, 2.5, 13), // 10 us to 0.6 s
		}, []string{"event"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_nri_refusals_total",
			Help: "Refused container creations, by reason; each attempt counts.",
		}, []string{"reason"}),
	}
	isConnected := prometheus.NewDesc("devmgrd_nri_connected", "1 while the container runtime is connected.", nil, nil)
	containers := prometheus.NewDesc("devmgrd_containers_not_redirected",
		"Running containers with the kubelet's device plugin directory, created while devmgrd was away: their plugins are registered with the kubelet. devmgrd status names them.", nil, nil)
	to.MustRegister(m.hooks, m.refusals, prometheus.CollectorFunc(func(to chan<- prometheus.Metric) {
		now := 0.0
		if connected() {
			now = 1
		}
		to <- prometheus.MustNewConstMetric(isConnected, prometheus.GaugeValue, now)
		to <- prometheus.MustNewConstMetric(containers, prometheus.GaugeValue, notRedirected())
	}))
	return m
}

func (m *metrics) refused(reason device.Reason) {
	m.refusals.WithLabelValues(string(reason)).Inc()
}
