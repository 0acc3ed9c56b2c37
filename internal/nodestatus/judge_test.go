package nodestatus

import (
	"errors"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestJudgeDevices(t *testing.T) {
	t.Parallel()
	const gpu, nic = device.ResourceName("vendor.example/gpu"), device.ResourceName("vendor.example/nic")
	status := func(state device.OfferState, cordoned []device.ID, healthy ...bool) device.ResourceStatus {
		o := device.Offer{State: state, Reported: true}
		for i, h := range healthy {
			o.Inventory.Devices = append(o.Inventory.Devices, device.Device{ID: device.ID(rune('a' + i)), Healthy: h})
		}
		s := device.ResourceStatus{Offer: &o, Cordoned: map[device.ID]device.Cordon{}}
		for _, id := range cordoned {
			s.Cordoned[id] = device.Cordon{}
		}
		return s
	}
	suspended := status(device.Serving, nil, true, true)
	suspended.Cordoned["b"] = device.Cordon{Suspended: true}
	refused := status(device.Serving, nil, true, true)
	refused.Cordoned["b"], refused.Refused = device.Cordon{Suspended: true, Refused: true}, []device.ID{"b"}
	type resources = map[device.ResourceName]device.ResourceStatus
	for _, c := range []struct {
		name      string
		resources resources
		expected  map[device.ResourceName]int
		want      condition
	}{
		{"no plugin", nil, nil, condition{devicesHealthy, true, "NoDevices", "no plugin lists devices"}},
		{"all healthy", resources{gpu: status(device.Serving, nil, true, true), nic: status(device.Stale, nil, true)}, map[device.ResourceName]int{gpu: 2},
			condition{devicesHealthy, true, "AllDevicesHealthy", "vendor.example/gpu: 2; vendor.example/nic: 1"}},
		{"one unhealthy", resources{gpu: status(device.Serving, nil, true, false)}, nil,
			condition{devicesHealthy, false, "DeviceUnhealthy", "vendor.example/gpu: 1 of 2 devices are unhealthy: b"}},
		{"one unhealthy, and cordoned", resources{gpu: status(device.Serving, []device.ID{"b"}, true, false)}, nil,
			condition{devicesHealthy, true, "AllDevicesHealthy", "vendor.example/gpu: 2"}},
		{"one suspended, and healthy at the moment", resources{gpu: suspended}, nil,
			condition{devicesHealthy, false, "DeviceUnhealthy", "vendor.example/gpu: 1 of 2 devices are unhealthy: b"}},
		{"one refused", resources{gpu: refused}, nil,
			condition{devicesHealthy, false, "DeviceRefused", "vendor.example/gpu: 1 of 2 devices are refused by their plugin: b"}},
		{"fewer than expected, one unhealthy", resources{gpu: status(device.Serving, nil, false)}, map[device.ResourceName]int{gpu: 2},
			condition{devicesHealthy, false, "DevicesMissing", "vendor.example/gpu: 1 of 2 expected devices are listed; vendor.example/gpu: 1 of 1 devices are unhealthy: a"}},
		{"expected, and never registered", nil, map[device.ResourceName]int{gpu: 8},
			condition{devicesHealthy, false, "DevicesMissing", "vendor.example/gpu: 0 of 8 expected devices are listed"}},
		{"more than expected", resources{gpu: status(device.Serving, nil, true, true)}, map[device.ResourceName]int{gpu: 1},
			condition{devicesHealthy, true, "AllDevicesHealthy", "vendor.example/gpu: 2"}},
		{"plugin away for long", resources{gpu: status(device.Lost, nil, true), nic: status(device.Serving, nil, true)}, map[device.ResourceName]int{gpu: 1},
			condition{devicesHealthy, false, "PluginMissing", "the plugin of vendor.example/gpu is away; vendor.example/gpu: 0 of 1 expected devices are listed"}},
		{"only cordons are known", resources{gpu: {Cordoned: map[device.ID]device.Cordon{"a": {}}}}, nil,
			condition{devicesHealthy, true, "NoDevices", "no plugin lists devices"}},
	} {
		if got := judgeDevices(device.Resources{ByName: c.resources}, c.expected); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestJudgeComponents(t *testing.T) {
	t.Parallel()
	if got := judgeComponents([]device.Component{{Name: "nri"}}); !got.True || got.Reason != "ComponentsReady" {
		t.Errorf("%+v", got)
	}
	got := judgeComponents([]device.Component{{Name: "nri", Err: errors.New("not connected")}, {Name: "pods"}, {Name: "store", Err: errors.New("disk full")}})
	if want := (condition{deviceManagerReady, false, "ComponentsNotReady", "nri: not connected; store: disk full"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
