package admin

import (
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestPluginOf(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := pluginOf(device.Offer{
		Inventory: device.Inventory{Resource: "vendor.com/gpu", Devices: []device.Device{{ID: "a", Healthy: true}, {ID: "b"}}},
		State:     device.Lost, Connected: true, Since: at, LastError: "it said \xff", LastErrorAt: at.Add(time.Second),
	}, device.Registration{Endpoint: "gpu.sock"})
	if p.Healthy != 0 || p.Devices != 2 || p.State != "connected" || !p.Since.AsTime().Equal(at) || p.LastError != "it said \uFFFD" || !p.LastErrorTime.AsTime().Equal(at.Add(time.Second)) {
		t.Errorf("%v", p)
	}
}
