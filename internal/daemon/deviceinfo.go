package daemon

import (
	"iter"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
)

// maxDeviceSeries bounds the series of one node, and with them the memory of a Prometheus that scrapes a fleet.
const maxDeviceSeries = 1024

// A deviceInfo reports on each scrape the devices of this node, each with its pod: for metrics.devices.
type deviceInfo struct {
	devices func(device.ResourceName) iter.Seq[device.DeviceStatus]
	info    *prometheus.Desc
	omitted *prometheus.Desc
}

func newDeviceInfo(devices func(device.ResourceName) iter.Seq[device.DeviceStatus]) *deviceInfo {
	return &deviceInfo{devices,
		prometheus.NewDesc("devmgrd_device_info",
			"Always 1: a device, its state, and each pod that has it with its containers. At most 1024 devices; only with metrics.devices.",
			[]string{"resource_name", "device", "state", "healthy", "cordoned", "namespace", "pod", "container"}, nil),
		prometheus.NewDesc("devmgrd_device_info_omitted", "Devices beyond the limit of devmgrd_device_info; only with metrics.devices.", nil, nil),
	}
}

// Describe is part of prometheus.Collector.
func (d *deviceInfo) Describe(to chan<- *prometheus.Desc) {
	to <- d.info
	to <- d.omitted
}

// Collect is part of prometheus.Collector.
func (d *deviceInfo) Collect(to chan<- prometheus.Metric) {
	series, omitted := 0, 0
	for one := range d.devices("") {
		holders := []device.Holder{{}}
		if one.Holder != nil {
			holders = append([]device.Holder{*one.Holder}, one.Sharers...)
		}
		if omitted > 0 || series+len(holders) > maxDeviceSeries {
			omitted++
			continue
		}
		seen := map[string]bool{} // a pod and its successor may have one name
		for _, holder := range holders {
			name := holder.Pod.String()
			if seen[name] {
				continue
			}
			seen[name] = true
			series++
			labels := []string{
				string(one.Resource), device.QuoteID(one.ID), string(one.State), yesNo(one.Healthy), yesNo(one.Cordon != nil),
				holder.Pod.Namespace, holder.Pod.Name, strings.Join(holder.Containers, ","),
			}
			for i, label := range labels {
				labels[i] = strings.ToValidUTF8(label, "\uFFFD")
			}
			to <- prometheus.MustNewConstMetric(d.info, prometheus.GaugeValue, 1, labels...)
		}
	}
	to <- prometheus.MustNewConstMetric(d.omitted, prometheus.GaugeValue, float64(omitted))
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
