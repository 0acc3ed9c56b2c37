package podstatus

import "github.com/prometheus/client_golang/prometheus"

func newMetrics(to prometheus.Registerer) *prometheus.CounterVec {
	patches := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "devmgrd_pod_patches_total",
		Help: "Patches of the conditions of pods, by result (ok or error).",
	}, []string{"result"})
	for _, result := range []string{"ok", "error"} {
		patches.WithLabelValues(result)
	}
	to.MustRegister(patches)
	return patches
}
