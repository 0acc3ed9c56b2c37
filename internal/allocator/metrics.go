package allocator

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
)

// metrics publishes the allocator's state. Gauges are computed when they are read.
type metrics struct {
	a              *Allocator
	admission      prometheus.Histogram
	preferred      *prometheus.CounterVec
	startedWithout prometheus.Counter
	failures       *prometheus.CounterVec
	givenUp        *prometheus.CounterVec
	suspensions    *prometheus.CounterVec
	devices        *prometheus.Desc
	unlisted       *prometheus.Desc
	disputed       *prometheus.Desc
	waiting        *prometheus.Desc
}

func newMetrics(a *Allocator, to prometheus.Registerer) *metrics {
	m := &metrics{
		a: a,
		admission: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "devmgrd_admission_duration_seconds",
			Help:    "Time from the first report of a pod bound to this node until the pod's devices are durably assigned, waiting included.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2.5, 16), // 0.5 ms to 8 min
		}),
		preferred: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_preferred_allocations_total",
			Help: "GetPreferredAllocation calls to device plugins, by result: followed, corrected, slow or failed.",
		}, []string{"resource_name", "result"}),
		startedWithout: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "devmgrd_started_without_devices_total",
			Help: "Containers found running without requested devices: devmgrd was away, or did not know their static pods.",
		}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_device_failures_total",
			Help: "Times that a device in use became unhealthy, or that its plugin stopped listing the device for 5 s.",
		}, []string{"resource_name"}),
		givenUp: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_pods_given_up_total",
			Help: "Pods that waited for as long as wait.giveUpAfter allows, by reason.",
		}, []string{"reason"}),
		suspensions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_device_suspensions_total",
			Help: "Times that devmgrd suspended a device because it had become unhealthy again and again, or was refused by its plugin.",
		}, []string{"resource_name"}),
		devices: prometheus.NewDesc("devmgrd_devices", "Devices of a resource by state; each device has exactly one.",
			[]string{"resource_name", "state"}, nil),
		unlisted: prometheus.NewDesc("devmgrd_devices_unlisted", "Devices in use that their plugin does not list.", []string{"resource_name"}, nil),
		disputed: prometheus.NewDesc("devmgrd_devices_disputed", "Devices of pods that containers of other pods run with.", []string{"resource_name"}, nil),
		waiting:  prometheus.NewDesc("devmgrd_pods_waiting", "Pods that wait for their devices, by reason.", []string{"reason"}, nil),
	}
	to.MustRegister(m.admission, m.preferred, m.startedWithout, m.failures, m.givenUp, m.suspensions, m)
	return m
}

// forget deletes a resource's series. The other series are built on each read.
func (m *metrics) forget(r device.ResourceName) {
	of := prometheus.Labels{"resource_name": string(r)}
	m.preferred.DeletePartialMatch(of)
	m.failures.DeletePartialMatch(of)
	m.suspensions.DeletePartialMatch(of)
}

// Describe is part of prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.devices
	to <- m.unlisted
	to <- m.disputed
	to <- m.waiting
}

// Collect is part of prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	for r, s := range m.a.Resources().ByName {
		for state, n := range s.States {
			to <- prometheus.MustNewConstMetric(m.devices, prometheus.GaugeValue, float64(n), string(r), string(state))
		}
		if s.States != nil {
			to <- prometheus.MustNewConstMetric(m.unlisted, prometheus.GaugeValue, float64(s.Unlisted), string(r))
			to <- prometheus.MustNewConstMetric(m.disputed, prometheus.GaugeValue, float64(s.Disputed), string(r))
		}
	}
	waiting := map[device.Reason]int{}
	for _, p := range m.a.Snapshot().Waiting() {
		if p.Wait != waitAllocating {
			waiting[p.Wait.Reason]++
		}
	}
	for reason, n := range waiting {
		to <- prometheus.MustNewConstMetric(m.waiting, prometheus.GaugeValue, float64(n), string(reason))
	}
}
