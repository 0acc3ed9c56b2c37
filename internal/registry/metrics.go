package registry

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
)

// metrics have the names of the kubelet's, for existing dashboards. A resource gets its series when its plugin is accepted,
// never from the name in a mere request.
type metrics struct {
	registrations *prometheus.CounterVec
	allocate      *prometheus.HistogramVec
	up            *prometheus.GaugeVec
	info          *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	label := []string{"resource_name"}
	m := &metrics{
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "device_plugin_registration_total",
			Help: "Accepted registrations of device plugins.",
		}, label),
		allocate: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "device_plugin_alloc_duration_seconds",
			Help: "Duration of one Allocate call to a device plugin.",
			// The kubelet's buckets, and finer ones below them: a plugin on the same node answers in less than 5 ms.
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, label),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "devmgrd_plugin_up",
			Help: "1 while the resource's plugin is connected, otherwise 0.",
		}, label),
		info: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "devmgrd_plugin_info",
			Help: "Always 1; the labels name the plugin's pod. Empty: the plugin runs on the host, or its pod is not known.",
		}, []string{"resource_name", "namespace", "pod", "service_account"}),
	}
	reg.MustRegister(m.registrations, m.allocate, m.up, m.info)
	return m
}

func (m *metrics) setUp(resource device.ResourceName, up bool) {
	value := 0.0
	if up {
		value = 1
	}
	m.up.WithLabelValues(string(resource)).Set(value)
}

// setPod notes in which pod the resource's plugin runs.
func (m *metrics) setPod(resource device.ResourceName, p device.PluginPod) {
	m.info.DeletePartialMatch(prometheus.Labels{"resource_name": string(resource)})
	m.info.WithLabelValues(string(resource), p.Namespace, p.Name, p.ServiceAccount).Set(1)
}

func (m *metrics) forget(resource device.ResourceName) {
	m.registrations.DeleteLabelValues(string(resource))
	m.allocate.DeleteLabelValues(string(resource))
	m.up.DeleteLabelValues(string(resource))
	m.info.DeletePartialMatch(prometheus.Labels{"resource_name": string(resource)})
}
