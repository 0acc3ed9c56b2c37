package podresources

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	podresourcesv1 "github.com/devmgrd/devmgrd/api/devmgrd/podresources/v1"
	"github.com/devmgrd/devmgrd/internal/device"
)

// A client with gRPC's own limit of 4 MiB gets every part of a snapshot.
func TestPartsFitEveryClient(t *testing.T) {
	t.Parallel()
	long := make([]byte, 1000)
	for i := range long {
		long[i] = 'x'
	}
	b := &device.Snapshot{}
	for i := range 5000 {
		s := device.Share{Resource: "vendor.com/gpu", IDs: []device.ID{device.ID(fmt.Sprintf("%s%04d", long, i))}}
		b.Pods = append(b.Pods, device.PodStatus{PodAllocation: &device.PodAllocation{Assignments: []device.Assignment{{Shares: []device.Share{s}}}}})
	}
	for part := range parts(b) {
		if n := proto.Size(&podresourcesv1.WatchResponse{Content: &podresourcesv1.WatchResponse_Snapshot{Snapshot: part}}); n > 4<<20 {
			t.Errorf("a part of %d bytes", n)
		}
	}
}

// A device takes at most a few times as much in an answer as plugins.maxTotalBytes counts for it, whatever a plugin names it and wherever it is. Answers have
// devices encoded only: decoded entries are several times as large.
func TestAnswers_OddDevices_WeightBoundsTheirSize(t *testing.T) {
	t.Parallel()
	const most = 3 // times the weight, where the resource's name is as long as names may be
	for _, r := range []device.ResourceName{"a.b/c", device.ResourceName(strings.Repeat("a", 253) + "/" + strings.Repeat("b", 63))} {
		for _, length := range []int{1, 30, 1024} {
			for _, nodes := range []int{0, 1, 2, 8, 64} {
				d := device.Device{ID: device.ID(strings.Repeat("d", length)), Healthy: true}
				for i := range nodes {
					d.NUMA = append(d.NUMA, 960+i)
				}
				offer := &device.Offer{Inventory: device.Inventory{Resource: r, Devices: []device.Device{d}}, State: device.Serving}
				p := &device.PodAllocation{Containers: []string{"c"}, Assignments: []device.Assignment{{
					Container: device.Container{Name: "c"}, Shares: []device.Share{{Resource: r, IDs: []device.ID{d.ID}, Near: [][]int{d.NUMA}}},
				}}}
				inV1, inAlpha := entry(p), alphaEntry(p)
				if len(inV1.Containers[0].Devices) > 0 || len(inAlpha.Containers[0].Devices) > 0 {
					t.Error("an entry has decoded devices")
				}
				for what, size := range map[string]int{
					"GetAllocatableResources": len(allocatable(device.Resources{ByName: map[device.ResourceName]device.ResourceStatus{r: {Offer: offer}}})),
					"List":                    proto.Size(inV1), "List in v1alpha1": proto.Size(inAlpha),
				} {
					if size == 0 || size > most*d.Weight() {
						t.Errorf("%s: %d bytes for a device of weight %d, with an ID of %d bytes, near %d nodes", what, size, d.Weight(), length, nodes)
					}
				}
			}
		}
	}
}
