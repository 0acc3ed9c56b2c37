package allocator

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/devmgrd/devmgrd/internal/allocator/internal/ledger"
	"github.com/devmgrd/devmgrd/internal/device"
)

// BenchmarkResources reads the resources, with the allocator's lock held, while a pod of many containers waits: eight times as many cost eight times
// as much.
func BenchmarkResources(b *testing.B) {
	const r device.ResourceName = "vendor.example/gpu"
	for _, n := range []int{500, 4000} {
		p := &pod{phase: waiting, waits: waits{wait: device.Wait{Reason: device.NoClaim}}}
		for i := range n {
			p.demand.Demands = append(p.demand.Demands, device.Demand{Container: device.Container{Name: fmt.Sprint("c", i)}, Wants: map[device.ResourceName]int{r: 1}, Blocked: device.NoClaim, Mistake: "no claim"})
		}
		a := &Allocator{mu: newLock(), podLists: podLists{waiting: map[device.PodUID]*pod{"p": p}}}
		a.ledger = ledger.New(ledgerView{a}, false, slog.New(slog.DiscardHandler))
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				a.Resources()
			}
		})
	}
}

// A pod's containers are looked at once each, whatever resources they request.
func TestEachAwaited_YieldsEachRequestOnce(t *testing.T) {
	t.Parallel()
	p := &pod{phase: waiting, waits: waits{wait: device.Wait{Reason: device.Allocating}}}
	for i := range 500 {
		p.demand.Demands = append(p.demand.Demands, device.Demand{Wants: map[device.ResourceName]int{"vendor.example/gpu": 1}})
		if i%2 == 0 {
			p.demand.Demands[i].Mistake = "a mistake"
		}
	}
	n := 0
	for range p.awaited {
		n++
	}
	if n != 250 {
		t.Errorf("250 containers wait for a device, and %d are named", n)
	}
}
