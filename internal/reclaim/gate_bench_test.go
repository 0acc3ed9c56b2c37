package reclaim

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/reclaim/openers"
)

// assigned counts its readers.
type assigned struct {
	*world
	reads int
}

func (a *assigned) Snapshot() *device.Snapshot {
	a.reads++
	return a.world.Snapshot()
}

// searching returns one search for the devices of pods that have ended at once, with 160 device nodes each.
func searching(t testing.TB, pods int) (search func(), a *assigned) {
	w := &world{holds: map[uint32][]openers.Opener{}}
	for i := range pods {
		var numbers []int
		for n := range 160 {
			numbers = append(numbers, 160*i+n)
		}
		w.departed = append(w.departed, gone(device.PodUID(fmt.Sprint("pod-", i)), gpu, numbers...))
	}
	g := New(Config{
		Openers: func(device.ResourceName) bool { return true }, Command: func(device.ResourceName) []string { return nil },
		Timeout: time.Minute, Finder: w, Nodes: w, SeesRuntime: func() bool { return true }, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	a = &assigned{world: w}
	g.neighbours = Neighbours{a, w}
	return func() {
		var proofs []*proof
		for _, d := range w.departed {
			p := &proof{Departure: d, searches: true}
			p.ctx, p.forget = context.WithCancel(t.Context())
			proofs = append(proofs, p)
		}
		g.search(t.Context(), proofs)
		for _, p := range proofs {
			p.forget()
			if p.result != nil {
				t.Fatal(p.result)
			}
		}
	}, a
}

// All grants of the node are looked at once, however many pods have ended.
func TestSearch_ManyPods_GrantsAreReadOnce(t *testing.T) {
	t.Parallel()
	search, a := searching(t, 10)
	search()
	if a.reads != 1 {
		t.Errorf("all grants were read %d times", a.reads)
	}
}

func BenchmarkSearch(b *testing.B) {
	search, _ := searching(b, 50)
	for b.Loop() {
		search()
	}
}
