package podresources

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

type metrics struct {
	requests *prometheus.CounterVec
	gaps     prometheus.Counter
}

func newMetrics(to prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "devmgrd_podresources_requests_total",
			Help: "Requests on the PodResources socket that have ended, by version of the protocol, method and gRPC code.",
		}, []string{"version", "method", "code"}),
		gaps: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "devmgrd_podresources_gaps_total",
			Help: "Answers without CPUs, memory and dynamic resources, because the kubelet did not answer.",
		}),
	}
	to.MustRegister(m.requests, m.gaps)
	return m
}

// count counts a request by its full method name, which must be a served one.
func (m *metrics) count(method string, code codes.Code) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	version := service[:strings.LastIndex(service, ".")]
	m.requests.WithLabelValues(version, name, code.String()).Inc()
}
