package allocator_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
)

// noBooks is a Store that keeps nothing.
type noBooks struct{}

func (noBooks) SavePods([]device.PodRecord, []device.PodUID) error { return nil }
func (noBooks) SaveCordons(_, _ []device.Cordon) error             { return nil }
func (noBooks) SaveDeclaredCordons([]device.Cordon) error          { return nil }
func (noBooks) SaveFalls(_, _ []device.Falls) error                { return nil }
func (noBooks) DropRetired([]device.ResourceName) error            { return nil }

// BenchmarkRuntimeSynced measures how long the comparison of the runtime's containers with the state file takes, and the
// CPU time of the process meanwhile, for pods with as many devices as plugins that share memory by the megabyte list.
func BenchmarkRuntimeSynced(b *testing.B) {
	for _, bench := range []struct {
		name        string
		pods, n     int
		lost, other bool // the state file is lost; or has other devices than the stamps
	}{
		{name: "4x2000", pods: 4, n: 2000},
		{name: "4x16000", pods: 4, n: 16000},
		{name: "1x80000", pods: 1, n: 80000},
		{name: "4x16000-lost", pods: 4, n: 16000, lost: true},
		{name: "1x80000-lost", pods: 1, n: 80000, lost: true},
		{name: "1x80000-other", pods: 1, n: 80000, other: true},
	} {
		b.Run(bench.name, func(b *testing.B) {
			var known []device.PodRecord
			var all []device.Running
			var devices []device.Device
			for p := range bench.pods {
				ids := make([]device.ID, bench.n)
				for i := range ids {
					ids[i] = device.ID(fmt.Sprintf("GPU-8f6d2c4e-1111-2222-3333-444455556666-_-%06d", p*bench.n+i))
					devices = append(devices, device.Device{ID: ids[i], Healthy: true})
				}
				d := pod(string(rune('a'+p)), app(gpu, bench.n))
				c := running(d.Pod.Name, d.Pod.Name, "main")
				c.Stamp = device.Choice{gpu: ids}
				if bench.other {
					c.Stamp = device.Choice{gpu: append([]device.ID{"another"}, ids[1:]...)}
				}
				all = append(all, c)
				if !bench.lost {
					known = append(known, device.PodRecord{Demand: d, Assignments: []device.Assignment{{Container: d.Demands[0].Container, Shares: []device.Share{{Resource: gpu, IDs: ids}}}}})
				}
			}
			known = append(known, device.PodRecord{Demand: pod("z")})
			var cpu time.Duration
			for b.Loop() {
				b.StopTimer()
				shop := newShop()
				shop.offer(gpu, func(o *device.Offer) {
					o.Reported, o.State, o.Inventory.Devices = true, device.Serving, devices
				})
				a := allocator.New(allocator.Config{Registry: shop, Plugins: shop, Store: noBooks{}, Notifier: shop, Known: known, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan struct{})
				go func() { defer close(ended); a.Run(ctx) }()
				before := cpuTime(b)
				b.StartTimer()
				a.RuntimeSynced(all, nil)
				a.WaitSynced()
				b.StopTimer()
				cpu += cpuTime(b) - before
				cancel()
				<-ended
				b.StartTimer()
			}
			b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
