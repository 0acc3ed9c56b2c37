package podresources

import (
	"fmt"
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
	for _, part := range parts(b) {
		if n := proto.Size(&podresourcesv1.WatchResponse{Content: &podresourcesv1.WatchResponse_Snapshot{Snapshot: part}}); n > 4<<20 {
			t.Errorf("a part of %d bytes", n)
		}
	}
}
