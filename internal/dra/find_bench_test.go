package dra

import (
	"fmt"
	"slices"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A claim of 32 devices, of a resource with 4096 whose IDs are no DNS labels.
func BenchmarkClaims_Find(b *testing.B) {
	w, c := newWorld(nil)
	ids := make([]device.ID, 4096)
	for i := range ids {
		ids[i] = device.ID(fmt.Sprintf("GPU-5b1f5a34-8d3c-4f3e-9a64-%012d", i))
	}
	w.devices = map[device.ResourceName][]device.ID{gpu: ids}
	var results []result
	for i := range 32 {
		results = append(results, result{pool: PoolName("n1", gpu, 0), device: Name(ids[i*100])})
	}
	for b.Loop() {
		w.list(gpu, ids...)
		if got := c.index.find(results); slices.Contains(got, device.Key{}) {
			b.Fatal("not found")
		}
	}
}
