package nri_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/allocator"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/nri"
)

// still stands for the rooms that the hook must never reach: any call ends the benchmark.
type still struct{ b *testing.B }

func (s still) Offers() map[device.ResourceName]device.Offer { return nil }
func (s still) Changed() <-chan struct{}                     { return nil }
func (s still) Allocate(context.Context, device.Pod, device.Container, device.ResourceName, []device.ID) (device.Grant, error) {
	s.b.Fatal("the hook has called a plugin")
	return device.Grant{}, nil
}
func (s still) Prefer(context.Context, device.Pod, device.Container, device.ResourceName, []device.ID, []device.ID, int) ([]device.ID, error) {
	return nil, nil
}
func (s still) PreStart(context.Context, device.Pod, device.Container, device.ResourceName, []device.ID) error {
	s.b.Fatal("the hook has called a plugin")
	return nil
}
func (s still) SaveCordons(_, _ []device.Cordon) error    { return nil }
func (s still) SaveDeclaredCordons([]device.Cordon) error { return nil }
func (s still) SaveFalls(_, _ []device.Falls) error       { return nil }
func (s still) DropRetired([]device.ResourceName) error   { return nil }
func (s still) Forget(device.ResourceName) error          { return nil }
func (s still) SavePods([]device.PodRecord, []device.PodUID) error {
	s.b.Fatal("the hook has written the state file")
	return nil
}
func (s still) Waiting(device.Pod, device.Wait)                                     {}
func (s still) Assigned(device.Pod, []device.Assignment)                            {}
func (still) Failed(device.Pod, device.ResourceName, []device.ID)                   {}
func (still) FailedForLong(device.Pod, device.ResourceName, device.ID, func() bool) {}
func (still) DeviceRefused(device.ResourceName, device.ID, string)                  {}
func (still) GivenUp(device.Pod, device.Wait, time.Duration, func() bool)           {}
func (s still) StartedWithoutDevices(device.Pod, string, func() bool)               {}
func (s still) NotRedirected(device.Pod, string, func() bool)                       {}
func (s still) Contradiction(device.Pod, string, []string)                          {}
func (s still) NotStarted(device.Pod, string, int, string)                          {}
func (s still) NotSynchronized(string)                                              {}
func (s still) Fetch(context.Context, device.Pod) error {
	s.b.Fatal("the hook has asked the API server")
	return nil
}

// BenchmarkHook measures what devmgrd adds to the creation of a container: the hook, in process, on the message that
// containerd 2.4.2 sent for a container of a real pod, with real state file of 110 pods. The stat of each device is real.
func BenchmarkHook(b *testing.B) {
	raw, err := os.ReadFile("testdata/create-container.pb")
	if err != nil {
		b.Fatal(err)
	}
	for _, devices := range []int{0, 1, 8} {
		b.Run(fmt.Sprintf("devices=%d", devices), func(b *testing.B) {
			var message api.CreateContainerRequest
			if err := message.UnmarshalVT(raw); err != nil {
				b.Fatal(err)
			}
			pod, ctr := message.Pod, message.Container
			known := []device.PodRecord{record(device.PodUID(pod.Uid), ctr.Name, devices)}
			for i := range 109 {
				known = append(known, record(device.PodUID(fmt.Sprint(i)), "main", 0))
			}
			assignments := allocator.New(allocator.Config{
				Registry: still{b}, Plugins: still{b}, Store: still{b}, Notifier: still{b}, Known: known, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
			})
			hook := nri.NewHook(assignments, assignments, still{b}, still{b})
			b.ReportAllocs()
			for b.Loop() {
				adj, err := hook(pod, ctr)
				if err != nil {
					b.Fatal(err)
				}
				if got := len(adj.GetLinux().GetDevices()); got != devices {
					b.Fatalf("%d devices were injected, want %d", got, devices)
				}
			}
		})
	}
}

// record returns a pod that holds n devices, each with a device node, and for all of them one mount and three variables.
func record(uid device.PodUID, container string, n int) device.PodRecord {
	c := device.Container{Pod: uid, Name: container}
	d := device.PodDemand{Pod: device.Pod{UID: uid, Namespace: "default", Name: string(uid)}}
	if n == 0 {
		return device.PodRecord{Demand: d}
	}
	share := device.Share{Resource: "vendor.example/gpu", Grant: device.Grant{
		Env:    map[string]string{"VISIBLE_DEVICES": "all", "DRIVER": "1", "MODE": "shared"},
		Mounts: []device.Mount{{HostPath: "/usr/lib", ContainerPath: "/usr/lib/gpu", ReadOnly: true}},
	}}
	for i := range n {
		share.IDs = append(share.IDs, device.ID(fmt.Sprintf("GPU-%08d", i)))
		share.Grant.Nodes = append(share.Grant.Nodes, device.Node{HostPath: "/dev/null", ContainerPath: fmt.Sprintf("/dev/gpu%d", i), Permissions: "rw"})
	}
	d.Demands = []device.Demand{{Container: c, Kind: device.App, Wants: map[device.ResourceName]int{share.Resource: n}}}
	return device.PodRecord{Demand: d, Assignments: []device.Assignment{{Container: c, Shares: []device.Share{share}}}}
}
