package kubelet

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	// pause is from one question to the next: devmgrd asks its kubelet forty times a second at most, and who asks devmgrd more
	// than a hundred times a second waits. That is measured where many ask at one moment.
	pause = 30 * time.Millisecond
	// sample is how many questions tell what an answer allocates.
	sample = 20
	// cpusEach is how many CPUs each container has of its own, where any has.
	cpusEach = 2
)

// servers are those that are compared, by socket, and the processes that they are in.
type servers struct {
	dir                     string
	devmgrd, kubelet, floor *process
}

// Sockets, by what is served. A plain kubelet has nothing to add to devmgrd's devices, as most have; one with CPUs has some
// for each container.
const (
	devmgrdAlone, devmgrdPlain, devmgrdCPUs           = "devmgrd", "devmgrd-plain", "devmgrd-cpus"
	kubeletDevices, kubeletBoth, kubeletLimited       = "kubelet", "kubelet-both", "kubelet-limited"
	kubeletPlain, kubeletCPUs, floorDevices, floorAll = "kubelet-plain", "kubelet-cpus", "floor", "floor-both"
)

// BenchmarkList measures what a client of one server has to wait for: from its question to the last byte of the answer. What
// it takes to read the answer is the same for all, and stands next to.
func BenchmarkList(b *testing.B) {
	for _, pods := range []int{110, 1000} {
		b.Run(fmt.Sprintf("pods=%d", pods), func(b *testing.B) {
			s := startServers(b, pods)
			for _, c := range []struct {
				name                    string
				devmgrd, kubelet, floor string
				before                  func(round int)
			}{
				{name: "nothing-changes", devmgrd: devmgrdAlone, kubelet: kubeletDevices, floor: floorDevices},
				{name: "one-pod-changes", devmgrd: devmgrdAlone, kubelet: kubeletDevices, floor: floorDevices, before: func(round int) {
					s.devmgrd.do(b, "Replace", fmt.Sprintf("pod-%06d", round%pods), nil)
				}},
				{name: "merged-plain", devmgrd: devmgrdPlain, kubelet: kubeletDevices, floor: floorDevices},
				{name: "merged-cpus", devmgrd: devmgrdCPUs, kubelet: kubeletBoth, floor: floorAll},
			} {
				b.Run(c.name, func(b *testing.B) {
					if c.before == nil {
						c.before = func(int) {}
					}
					s.compare(b, c.devmgrd, c.kubelet, c.floor, c.before)
				})
			}
			b.Run(fmt.Sprintf("clients=%d", crowd), s.crowd)
		})
	}
}

// startServers has all of them say the same: what devmgrd has given out.
func startServers(b *testing.B, pods int) *servers {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	s := &servers{dir, startProcess(b), startProcess(b), startProcess(b)}
	s.devmgrd.do(b, "ServeDevmgrd", Size{Pods: pods}, nil)
	s.devmgrd.do(b, "Window", Window{Socket: s.at(devmgrdAlone)}, nil)
	devices := s.read(b, devmgrdAlone)
	both, cpus, plain := proto.CloneOf(devices), proto.CloneOf(devices), proto.CloneOf(devices)
	for i := range devices.PodResources {
		for j := range devices.PodResources[i].Containers {
			var own []int64
			for cpu := range cpusEach {
				own = append(own, int64(i*cpusEach+cpu))
			}
			both.PodResources[i].Containers[j].CpuIds = own
			cpus.PodResources[i].Containers[j].CpuIds = own
			cpus.PodResources[i].Containers[j].Devices = nil
			plain.PodResources[i].Containers[j].Devices = nil
		}
	}
	for _, serve := range []struct {
		where   *process
		method  string
		at      string
		content *v1.ListPodResourcesResponse
		limited bool
	}{
		{s.kubelet, "ServeKubelet", kubeletDevices, devices, false},
		{s.kubelet, "ServeKubelet", kubeletLimited, devices, true},
		{s.kubelet, "ServeKubelet", kubeletBoth, both, false},
		{s.kubelet, "ServeKubelet", kubeletPlain, plain, true},
		{s.kubelet, "ServeKubelet", kubeletCPUs, cpus, true},
		{s.floor, "ServeFloor", floorDevices, devices, false},
		{s.floor, "ServeFloor", floorAll, both, false},
	} {
		content, err := proto.Marshal(serve.content)
		if err != nil {
			b.Fatal(err)
		}
		serve.where.do(b, serve.method, Served{s.at(serve.at), content, serve.limited}, nil)
	}
	s.devmgrd.do(b, "Window", Window{s.at(devmgrdPlain), s.at(kubeletPlain)}, nil)
	s.devmgrd.do(b, "Window", Window{s.at(devmgrdCPUs), s.at(kubeletCPUs)}, nil)
	for same, want := range map[string]*v1.ListPodResourcesResponse{
		kubeletDevices: devices, devmgrdPlain: devices, floorDevices: devices, kubeletBoth: both, devmgrdCPUs: both, floorAll: both,
	} {
		if got := s.read(b, same); !proto.Equal(got, inOrder(want)) {
			b.Fatalf("%s has another answer than it should: what it takes says nothing", same)
		}
	}
	return s
}

func (s *servers) at(socket string) string { return filepath.Join(s.dir, socket) }

// read returns a server's answer, in order: neither side keeps one.
func (s *servers) read(b *testing.B, socket string) *v1.ListPodResourcesResponse {
	b.Helper()
	answer, err := v1.NewPodResourcesListerClient(dial(b, s.at(socket))).List(b.Context(), &v1.ListPodResourcesRequest{})
	if err != nil {
		b.Fatal(err)
	}
	return inOrder(answer)
}

func inOrder(answer *v1.ListPodResourcesResponse) *v1.ListPodResourcesResponse {
	slices.SortFunc(answer.PodResources, func(a, b *v1.PodResources) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range answer.PodResources {
		for _, c := range p.Containers {
			slices.SortFunc(c.Devices, func(a, b *v1.ContainerDevices) int { return cmp.Compare(a.DeviceIds[0], b.DeviceIds[0]) })
		}
	}
	return answer
}

// A side is one server of a comparison.
type side struct {
	name    string
	in      *process
	conn    *grpc.ClientConn
	took    []time.Duration
	bytes   []int64
	objects []int64
}

// compare asks one server after the other, each time in another order, and after a change if one is wanted.
func (s *servers) compare(b *testing.B, devmgrd, kubelet, floor string, before func(round int)) {
	sides := []*side{
		{name: "devmgrd", in: s.devmgrd, conn: dial(b, s.at(devmgrd))},
		{name: "kubelet", in: s.kubelet, conn: dial(b, s.at(kubelet))},
		{name: "floor", in: s.floor, conn: dial(b, s.at(floor))},
	}
	pace := time.NewTicker(pause)
	defer pace.Stop()
	var answer []byte
	ask := func(at *side) {
		if err := list(b.Context(), at.conn, &answer); err != nil {
			b.Fatalf("%s: %v", at.name, err)
		}
	}
	for _, at := range sides {
		ask(at) // it connects
	}
	round := 0
	for b.Loop() {
		<-pace.C
		before(round)
		for i := range sides {
			at := sides[(round+i)%len(sides)]
			start := time.Now()
			ask(at)
			at.took = append(at.took, time.Since(start))
		}
		round++
	}
	for range sample {
		<-pace.C
		before(round)
		round++
		for _, at := range sides {
			first := at.in.allocated(b) // to tell takes some, too
			second := at.in.allocated(b)
			ask(at)
			third := at.in.allocated(b)
			at.bytes = append(at.bytes, third.Bytes-second.Bytes-(second.Bytes-first.Bytes))
			at.objects = append(at.objects, third.Objects-second.Objects-(second.Objects-first.Objects))
		}
	}
	var reading []time.Duration
	for range sample {
		start := time.Now()
		if err := proto.Unmarshal(answer, &v1.ListPodResourcesResponse{}); err != nil {
			b.Fatal(err)
		}
		reading = append(reading, time.Since(start))
	}
	b.ReportMetric(0, "ns/op") // it would count the pauses too
	b.ReportMetric(float64(len(answer))/1024, "KiB-answer")
	b.ReportMetric(microseconds(median(reading)), "µs-to-read-it")
	for _, at := range sides {
		b.ReportMetric(microseconds(median(at.took)), "µs-"+at.name)
		b.ReportMetric(float64(median(at.bytes))/1024, "KiB-"+at.name)
		b.ReportMetric(float64(median(at.objects)), "objects-"+at.name)
	}
	for _, other := range sides[1:] {
		b.ReportMetric(float64(median(sides[0].took))/float64(median(other.took)), "time:devmgrd/"+other.name)
	}
	b.ReportMetric(float64(median(sides[0].bytes))/float64(median(sides[1].bytes)), "bytes:devmgrd/kubelet")
	b.ReportMetric(float64(median(sides[0].objects))/float64(median(sides[1].objects)), "objects:devmgrd/kubelet")
}

func dial(t testing.TB, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// list asks for the list, and takes the answer as it comes.
func list(ctx context.Context, conn *grpc.ClientConn, answer *[]byte) error {
	return conn.Invoke(ctx, v1.PodResourcesLister_List_FullMethodName, nil, answer, grpc.ForceCodecV2(unread{}), grpc.WaitForReady(true))
}

// unread is a codec that leaves the message as it is.
type unread struct{}

func (unread) Name() string                         { return "proto" }
func (unread) Marshal(any) (mem.BufferSlice, error) { return nil, nil } // an empty message
func (unread) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

func median[T cmp.Ordered](all []T) T { return quantile(all, 0.5) }

// quantile sorts.
func quantile[T cmp.Ordered](all []T, q float64) T {
	slices.Sort(all)
	return all[int(q*float64(len(all)-1))]
}
