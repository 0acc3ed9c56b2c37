package registry_test

import (
	"context"
	"flag"
	"fmt"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

var many = flag.Int("devices", 250_000, "how many `devices` the plugin of TestManyDevices lists")

// A message may be as long as the limits allow: the kubelet breaks at 4 MiB, which is less than 250 000 devices.
func TestManyDevices(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *registry.Config) { c.MaxDevices = *many })
	plugintest.Start(t, f.dir, gpu, plugintest.Devices(*many)...)
	f.eventually("all devices are offered", f.servesNumber(*many))
}

// Lists of more than the 4 MiB at which the kubelet breaks arrive, and one beyond our limit costs its own plugin its
// stream, and says what to do. TestManyDevices is between the two.
func TestMessageSizes(t *testing.T) {
	t.Parallel()
	f := start(t)
	const other = "vendor.example/other"
	small := plugintest.Start(t, f.dir, other, plugintest.Devices(1)...)
	long := func(n int) []*plugintest.Device { // of one KiB each, and a little more
		devices := make([]*plugintest.Device, n)
		for i := range devices {
			devices[i] = plugintest.Dev(fmt.Sprintf("%01024d", i), plugintest.Healthy)
		}
		return devices
	}
	p := plugintest.Start(t, f.dir, gpu, long(5<<10)...)
	f.eventually("5 MiB arrive", f.servesNumber(5<<10))
	p.Set(long(65 << 10)...)
	f.eventually("65 MiB do not", f.is(device.Stale))
	f.eventually("the log says so", func() bool {
		return f.logs.count("the plugin's list is longer than the 67108864 bytes that plugins.maxMessageBytes allows; raise it") > 0
	})
	if n := len(f.offer().Inventory.Devices); n != 5<<10 {
		t.Errorf("the last inventory was not kept: %d devices", n)
	}
	if _, err := f.Allocate(t.Context(), pod, container, other, nil); err != nil || small.Calls(plugintest.ListAndWatch) != 1 {
		t.Errorf("another plugin was touched: %v", err)
	}
	p.Set(long(1)...)
	f.eventually("it serves again", f.servesNumber(1))
}

// BenchmarkAllocate is one call to a plugin through the whole room.
func BenchmarkAllocate(b *testing.B) {
	f := start(b)
	plugintest.Start(b, f.dir, gpu, plugintest.Devices(10)...)
	f.eventually("the plugin serves", f.servesNumber(10))
	ids := []device.ID{"dev-000000"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Allocate(context.Background(), pod, container, gpu, ids); err != nil {
			b.Fatal(err)
		}
	}
}
