package registry_test

import (
	"context"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/internal/registry"
)

// A message may be as long as the limits allow: the kubelet breaks at 4 MiB.
func TestMillionDevices(t *testing.T) {
	const million = 1_000_000
	f := start(t, func(c *registry.Config) { c.MaxDevices = million })
	plugintest.Start(t, f.dir, gpu, plugintest.Devices(million)...)
	f.eventually("a million devices are offered", f.servesNumber(million))
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
