package daemon

import (
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestPluginOf_CommonDirectory_SocketsDiffer(t *testing.T) {
	plugin := pluginOf(func() map[device.ResourceName]device.Registration {
		return map[device.ResourceName]device.Registration{
			"a.example/gpu": {Endpoint: "a.sock"}, "a.example/nic": {Endpoint: "a.sock"}, "b.example/gpu": {Endpoint: "b.sock"},
			"c.example/gpu": {Endpoint: "a.sock", Pod: device.PluginPod{Pod: device.Pod{UID: "1"}}},
		}
	})
	a := plugin("a.example/gpu")
	if a != plugin("a.example/nic") || a == plugin("b.example/gpu") || a == plugin("c.example/gpu") {
		t.Errorf("%+v, %+v, %+v, %+v", a, plugin("a.example/nic"), plugin("b.example/gpu"), plugin("c.example/gpu"))
	}
}
