package daemon

import (
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
)

// sharedDevices are devices that many pods share.
type sharedDevices []device.DeviceStatus

func (s sharedDevices) EachDevice(device.ResourceName) iter.Seq[device.DeviceStatus] {
	return slices.Values(s)
}

func TestDeviceInfo_SharedDevices_SeriesAreBounded(t *testing.T) {
	var pods []device.Holder
	for i := range 100 {
		pods = append(pods, device.Holder{Pod: device.Pod{Namespace: "ns", Name: fmt.Sprint("pod-", i)}})
	}
	var all sharedDevices
	for i := range 32 {
		all = append(all, device.DeviceStatus{Resource: "vendor.com/gpu", Device: device.Device{ID: device.ID(fmt.Sprint("d", i))}, Holder: &pods[0], Sharers: pods[1:]})
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(newDeviceInfo(all.EachDevice))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch n := len(f.GetMetric()); f.GetName() {
		case "devmgrd_device_info":
			if n != 1000 {
				t.Errorf("%d series, want those of 10 devices", n)
			}
		case "devmgrd_device_info_omitted":
			if got := f.GetMetric()[0].GetGauge().GetValue(); got != 22 {
				t.Errorf("%v devices omitted, want 22", got)
			}
		}
	}
}
