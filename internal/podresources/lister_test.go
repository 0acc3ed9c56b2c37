package podresources_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	v1alpha1 "k8s.io/kubelet/pkg/apis/podresources/v1alpha1"

	proposal "github.com/devmgrd/devmgrd/api/podresources/v1alpha1"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/podresources"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// expect compares a message with one as people write it.
func expect(t *testing.T, got proto.Message, want string) {
	t.Helper()
	message := got.ProtoReflect().New().Interface()
	if err := prototext.Unmarshal([]byte(want), message); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, message) {
		t.Errorf("got  %v\nwant %v", got, message)
	}
}

// list returns v1's list without the kubelet's counting pod, and the count.
func (r *harness) list() (all *v1.ListPodResourcesResponse, count int64) {
	r.t.Helper()
	answer, err := r.v1.List(r.t.Context(), &v1.ListPodResourcesRequest{})
	if err != nil {
		r.t.Fatal(err)
	}
	all = &v1.ListPodResourcesResponse{}
	for _, p := range answer.PodResources {
		if p.Name == "count" {
			count = p.Containers[0].CpuIds[0]
			continue
		}
		all.PodResources = append(all.PodResources, p)
	}
	return all, count
}

// One entry for each device and NUMA node, in each protocol's form, with what the kubelet knows.
func TestOnePodInAllForms(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Offer(gpu, device.Serving, device.Device{ID: "both", Healthy: true, NUMA: []int{0, 1}}, device.Device{ID: "none", Healthy: true},
		device.Device{ID: "one", Healthy: true, NUMA: []int{1}}, device.Device{ID: "unhealthy"})
	d := pod("p", gpu, 3)
	d.Containers, d.Sidecars = []string{"side", "main"}, 1
	r.Bind(d)
	r.kubelet.has(func() {
		r.kubelet.pods = []*v1.PodResources{{Name: "p", Namespace: "ns", Containers: []*v1.ContainerResources{{Name: "side"}, {Name: "main", CpuIds: []int64{1, 2}}}}}
		r.kubelet.allocatable = &v1.AllocatableResourcesResponse{CpuIds: []int64{1, 2, 3},
			Devices: []*v1.ContainerDevices{{ResourceName: string(gpu), DeviceIds: []string{"old"}}, {ResourceName: "other.com/x", DeviceIds: []string{"0"}}}}
	})
	plugintest.Eventually(t, "p has its devices", func() bool { return r.PodByUID(d.Pod.UID).State == device.Ready })

	devices := `
		devices {resource_name: "vendor.com/gpu" device_ids: "both" topology {nodes {ID: 0}}}
		devices {resource_name: "vendor.com/gpu" device_ids: "both" topology {nodes {ID: 1}}}
		devices {resource_name: "vendor.com/gpu" device_ids: "none"}
		devices {resource_name: "vendor.com/gpu" device_ids: "one" topology {nodes {ID: 1}}}`
	entry := `pod_resources {name: "p" namespace: "ns" containers {name: "side"} containers {name: "main" cpu_ids: [1, 2] ` + devices + `}}`
	all, _ := r.list()
	expect(t, all, entry)
	one, err := r.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "p"})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, one, entry)
	there, err := r.v1.GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, there, `cpu_ids: [1, 2, 3] devices {resource_name: "other.com/x" device_ids: "0"}`+devices)

	old := `pod_resources {name: "p" namespace: "ns" containers {name: "side"} containers {name: "main"
		devices {resource_name: "vendor.com/gpu" device_ids: "both"} devices {resource_name: "vendor.com/gpu" device_ids: "both"}
		devices {resource_name: "vendor.com/gpu" device_ids: "none"} devices {resource_name: "vendor.com/gpu" device_ids: "one"}}}`
	alpha, err := r.alpha.List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, alpha, old)
	draft, err := r.draft.List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, draft, old)
	known, err := r.draft.ListDevices(t.Context(), &proposal.ListDevicesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, known, `devices {resource_name: "vendor.com/gpu" device_ids: ["both", "none", "one", "unhealthy"]}`)
	for _, series := range [][]string{{"v1", "List"}, {"v1", "Get"}, {"v1", "GetAllocatableResources"}, {"v1alpha1", "List"}, {"v1alpha1", "ListDevices"}} {
		if r.metric("devmgrd_podresources_requests_total", append(series, "OK")...) == 0 {
			t.Errorf("nothing is counted for %v", series)
		}
	}
}

// What cannot be given to a container is not allocatable: unhealthy devices, those out of service, and those of a plugin that is gone
// for long.
func TestAllocatable(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Offer(gpu, device.Stale, device.Device{ID: "a", Healthy: true}, device.Device{ID: "b"})
	r.Plugins.Offer("vendor.com/out", device.Serving, device.Device{ID: "d", Healthy: true})
	r.Plugins.Offer(nic, device.Lost, device.Device{ID: "c", Healthy: true})
	plugintest.Eventually(t, "the offers are known", func() bool { return len(r.Resources().Offers()) == 3 })
	if _, err := r.Cordon([]device.Cordon{{Resource: "vendor.com/out", ID: "d"}}); err != nil {
		t.Fatal(err)
	}
	there, err := r.v1.GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, there, `devices {resource_name: "vendor.com/gpu" device_ids: "a"}`)
}

// Pods without devices are listed, those that are over are not, and a local pod's mirror is no pod next to it.
func TestWhichPodsAreListed(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 2)
	r.bind("plain", "", 0)
	over := r.bind("over", gpu, 1)
	r.RuntimeCreating(t.Context(), device.Running{ID: "1", Container: device.Container{Pod: over.Pod.UID, Name: "main"}}) // and it runs on
	r.Drop(over.Pod.UID)
	local := pod("static", gpu, 1)
	local.Local, local.Containers = true, nil
	r.Bind(local)
	mirror := pod("static", "", 0)
	mirror.Pod.UID, mirror.Mirror, mirror.Containers = "mirror", true, []string{"main", "more"}
	r.Bind(mirror)
	plugintest.Eventually(t, "the local pod has its device", func() bool { return r.PodByUID(local.Pod.UID).State == device.Ready })
	all, _ := r.list()
	names := map[string]int{}
	for _, p := range all.PodResources {
		names[p.Name] = len(p.Containers)
	}
	if len(all.PodResources) != 2 || names["plain"] != 1 || names["static"] != 2 {
		t.Errorf("listed: %v", all)
	}
	_, err := r.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "over"})
	if want := "pod over in namespace ns not found"; status.Code(err) != codes.Unknown || status.Convert(err).Message() != want {
		t.Errorf("Get of a pod that is over: %v, want code Unknown and %q", err, want)
	}
}

// The kubelet is away: devices are served all the same, and that is logged once and counted. It is called again when it is back.
func TestTheKubeletIsAway(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 1)
	r.bind("p", gpu, 1)
	if _, count := r.list(); count == 0 {
		t.Fatal("the kubelet was not asked")
	}
	r.kubelet.stop()
	want := `pod_resources {name: "p" namespace: "ns" containers {name: "main" devices {resource_name: "vendor.com/gpu" device_ids: "d000"}}}`
	for range 3 {
		all, count := r.list()
		expect(t, all, want)
		if count != 0 {
			t.Error("a kubelet that is away has answered")
		}
	}
	if n := r.metric("devmgrd_podresources_gaps_total"); n != 3 {
		t.Errorf("%v answers are counted as incomplete, want 3", n)
	}
	if n := r.log.count("PodResources not answering"); n != 1 {
		t.Errorf("it is logged %d times, want once", n)
	}
	r.kubelet.serve(t)
	plugintest.Eventually(t, "the kubelet is asked again", func() bool { _, count := r.list(); return count > 0 })
	if n := r.log.count("kubelet's PodResources answering again"); n != 1 {
		t.Errorf("its return is logged %d times, want once", n)
	}
}

// The kubelet hangs: one answer waits for it, and the others do so only shortly until it answers again.
func TestTheKubeletHangs(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 1)
	r.bind("p", gpu, 1)
	hang := make(chan struct{})
	r.kubelet.has(func() { r.kubelet.hang = hang })
	for range 20 { // 40 s, if each of them waited in full
		if all, count := r.list(); len(all.PodResources) != 1 || count != 0 {
			t.Fatalf("%v, count %d", all, count)
		}
	}
	r.kubelet.has(func() { r.kubelet.hang = nil })
	close(hang)
	plugintest.Eventually(t, "the kubelet answers", func() bool { _, count := r.list(); return count > 0 })
}

// An answer is not older than its question, however many ask, and the kubelet is called much less often than we are.
func TestAnswersAreAsNewAsTheirQuestions(t *testing.T) {
	t.Parallel()
	r := start(t)
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 3 {
				before := r.kubelet.calls.Load()
				if _, count := r.list(); count <= before {
					t.Errorf("the kubelet's call %d had begun when the question came, and %d is the answer", before, count)
				}
			}
		})
	}
	all.Wait()
	if n := r.kubelet.calls.Load(); n > 75 {
		t.Errorf("150 questions were %d calls to the kubelet", n)
	}
}

// Get waits for an allocation in flight.
func TestGetWaits(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 1)
	answer := make(chan error)
	r.Plugins.Answer(func(ctx context.Context) error { return <-answer })
	r.Bind(pod("p", gpu, 1))
	got := make(chan *v1.GetPodResourcesResponse, 1)
	go func() {
		one, err := r.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "p"})
		if err != nil {
			t.Error(err)
		}
		got <- one
	}()
	plugintest.Eventually(t, "the question is there", func() bool { return r.kubelet.calls.Load() > 0 })
	answer <- nil
	expect(t, <-got, `pod_resources {name: "p" namespace: "ns" containers {name: "main" devices {resource_name: "vendor.com/gpu" device_ids: "d000"}}}`)
}

// If the devices do not come Get fails, and says why the pod waits.
func TestGetDoesNotAnswerHalf(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 1)
	r.bind("first", gpu, 1)
	r.Bind(pod("p", gpu, 1))
	_, err := r.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "p"})
	want := "NotEnoughDevices: pod ns/p waits for its devices: vendor.com/gpu: 1 wanted, 0 of 1 free; try again"
	if status.Code(err) != codes.Unavailable || status.Convert(err).Message() != want {
		t.Errorf("%v, want Unavailable and %q", err, want)
	}
	// A pod that waits for something else than a call holds up no list.
	if all, _ := r.list(); len(all.PodResources) != 2 {
		t.Errorf("%v", all)
	}
}

// List waits for allocations in flight, too: some ask it while a pod's network is made.
func TestListWaits(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 1)
	answer := make(chan error)
	r.Plugins.Answer(func(ctx context.Context) error { return <-answer })
	r.Bind(pod("p", gpu, 1))
	plugintest.Eventually(t, "the allocation is in flight", func() bool { return r.PodByUID("uid-p").Wait.Reason == device.Allocating })
	all, _ := r.list()
	expect(t, all, `pod_resources {name: "p" namespace: "ns" containers {name: "main"}}`) // it does not wait for ever
	go func() { answer <- nil }()
	plugintest.Eventually(t, "the device is listed", func() bool {
		all, _ := r.list()
		return len(all.PodResources[0].Containers[0].Devices) == 1
	})
}

// finder stands for the API server.
type finder func(namespace, name string) (bool, error)

func (f finder) Find(_ context.Context, namespace, name string) (bool, error) {
	return f(namespace, name)
}

// The kubelet may ask for a pod's network before our watch has shown the pod: then the API server is asked.
func TestGetFindsAPod(t *testing.T) {
	t.Parallel()
	var r *harness
	asked := 0
	r = start(t, func(c *podresources.Config) {
		c.Pods = finder(func(_, name string) (bool, error) {
			asked++
			switch name {
			case "p":
				r.Bind(pod("p", gpu, 1))
				return true, nil
			case "lost":
				return false, errors.New("the API server is away")
			}
			return false, nil
		})
	})
	r.Plugins.Stock(gpu, 1)
	get := func(name string) (*v1.GetPodResourcesResponse, error) {
		return r.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: name})
	}
	if _, err := get("p"); status.Code(err) != codes.Unknown || asked != 0 {
		t.Errorf("an unknown pod: %v, the API server was asked %d times", err, asked)
	}
	r.kubelet.has(func() {
		for _, name := range []string{"p", "lost", "own"} {
			r.kubelet.pods = append(r.kubelet.pods, &v1.PodResources{Name: name, Namespace: "ns", Containers: []*v1.ContainerResources{{Name: "main"}}})
		}
	})
	one, err := get("p")
	if err != nil {
		t.Fatal(err)
	}
	expect(t, one, `pod_resources {name: "p" namespace: "ns" containers {name: "main" devices {resource_name: "vendor.com/gpu" device_ids: "d000"}}}`)
	if _, err := get("lost"); status.Code(err) != codes.Unavailable {
		t.Errorf("a pod that nothing knows: %v", err)
	}
	one, err = get("own") // the kubelet's alone: it asks for none of our devices
	if err != nil {
		t.Fatal(err)
	}
	expect(t, one, `pod_resources {name: "own" namespace: "ns" containers {name: "main"}}`)
}

// Entries are drawn once, and never show what is over.
func TestListsFollowTheBoard(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 4)
	for i := range 20 {
		name := fmt.Sprint("p", i)
		d := r.bind(name, gpu, 1+i%3)
		all, _ := r.list()
		if len(all.PodResources) != 1 || all.PodResources[0].Name != name || len(all.PodResources[0].Containers[0].Devices) != 1+i%3 {
			t.Fatalf("%s: %v", name, all)
		}
		r.Drop(d.Pod.UID)
	}
	if all, _ := r.list(); len(all.PodResources) != 0 {
		t.Errorf("all pods have ended, and the list has %v", all)
	}
}

// The kubelet is asked for one pod with its Get, so its own metrics count the question; in a burst the questions share its list,
// and so they do with a kubelet that does not know Get.
func TestGetAsksTheKubeletForOnePod(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]bool{"a kubelet with Get": false, "a kubelet without Get": true} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			r.kubelet.old = old
			r.Plugins.Stock(gpu, 1)
			r.bind("p", gpu, 1)
			r.kubelet.has(func() {
				r.kubelet.pods = []*v1.PodResources{{Name: "p", Namespace: "ns", Containers: []*v1.ContainerResources{{Name: "main", CpuIds: []int64{7}}}}}
			})
			get := func() {
				one, err := r.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: "p"})
				if err != nil {
					t.Error(err)
					return
				}
				expect(t, one, `pod_resources {name: "p" namespace: "ns" containers {name: "main" devices {resource_name: "vendor.com/gpu" device_ids: "d000"} cpu_ids: 7}}`)
			}
			get()
			if gets, lists := r.kubelet.gets.Load(), r.kubelet.calls.Load(); old != (gets == 0) || old != (lists > 0) {
				t.Errorf("one question became %d Get and %d List", gets, lists)
			}
			var all sync.WaitGroup
			for range 64 {
				all.Go(get)
			}
			all.Wait()
			if gets, lists := r.kubelet.gets.Load(), r.kubelet.calls.Load(); gets+lists > 32 {
				t.Errorf("64 questions at one time became %d Get and %d List", gets, lists)
			}
		})
	}
}

// newer sets the fields that only newer kubelets have in a message: numbers 98 and 99.
func newer(m proto.Message) {
	raw := protowire.AppendVarint(protowire.AppendTag(nil, 98, protowire.VarintType), 7)
	m.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(raw, 99, protowire.BytesType), "new"))
}

// withoutNewer returns the messages on the way to each container of pods in which the fields of newer kubelets are missing, as paths.
func withoutNewer(response proto.Message, pods []proto.Message) (missing []string) {
	look := func(at string, m proto.Message) {
		want := m.ProtoReflect().New().Interface()
		newer(want)
		if !bytes.Contains(m.ProtoReflect().GetUnknown(), want.ProtoReflect().GetUnknown()) {
			missing = append(missing, at)
		}
	}
	look("response", response)
	for _, p := range pods {
		name := p.(interface{ GetName() string }).GetName()
		look(name, p)
		fields := p.ProtoReflect()
		containers := fields.Get(fields.Descriptor().Fields().ByName("containers")).List()
		for i := range containers.Len() {
			look(fmt.Sprintf("%s container %d", name, i), containers.Get(i).Message().Interface())
		}
	}
	return missing
}

// A kubelet newer than devmgrd has fields that devmgrd does not know: they pass, also for pods without devices, and for pods that devmgrd
// does not know.
func TestNewerKubelet_UnknownFields_Pass(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *podresources.Config) {
		c.Pods = finder(func(string, string) (bool, error) { return false, nil })
	})
	r.Plugins.Stock(gpu, 1)
	r.bind("devices", gpu, 1)
	r.bind("plain", "", 0)
	r.kubelet.has(func() {
		for _, name := range []string{"devices", "plain", "foreign", "cpus"} {
			c := &v1.ContainerResources{Name: "main"}
			if name == "cpus" {
				c.CpuIds = []int64{1}
			}
			if name != "plain" { // of which only the pod has new fields
				newer(c)
			}
			p := &v1.PodResources{Name: name, Namespace: "ns", Containers: []*v1.ContainerResources{c}}
			newer(p)
			r.kubelet.pods = append(r.kubelet.pods, p)
		}
		r.kubelet.allocatable = &v1.AllocatableResourcesResponse{CpuIds: []int64{1}}
		newer(r.kubelet.allocatable)
	})
	messages := func(all []*v1.PodResources) (pods []proto.Message) {
		for _, p := range all {
			if p.Name != "count" {
				pods = append(pods, p)
			}
		}
		return pods
	}
	all, err := r.v1.List(t.Context(), &v1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	got := withoutNewer(all, messages(all.PodResources))
	if want := []string{"plain container 0"}; !slices.Equal(got, want) || len(all.PodResources) != 5 {
		t.Errorf("List of %d pods lacks new fields of %q, want %q", len(all.PodResources), got, want)
	}
	for _, name := range []string{"devices", "plain", "foreign", "cpus"} {
		one, err := r.v1.Get(t.Context(), &v1.GetPodResourcesRequest{PodNamespace: "ns", PodName: name})
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		if name == "plain" {
			want = []string{"plain container 0"}
		}
		got := slices.DeleteFunc(withoutNewer(one, messages([]*v1.PodResources{one.PodResources})), func(at string) bool {
			return at == "response" && name != "devices" // after some calls one pod comes from the kubelet's List
		})
		if !slices.Equal(got, want) {
			t.Errorf("Get of %s lacks new fields of %q, want %q", name, got, want)
		}
		if devices := one.PodResources.Containers[0].Devices; (len(devices) == 1) != (name == "devices") {
			t.Errorf("Get of %s has the devices %v", name, devices)
		}
	}
	alpha, err := r.alpha.List(t.Context(), &v1alpha1.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var pods []proto.Message
	for _, p := range alpha.PodResources {
		pods = append(pods, p)
	}
	if got, want := withoutNewer(alpha, pods), []string{"plain container 0"}; !slices.Equal(got, want) || len(pods) != 4 {
		t.Errorf("v1alpha1 List of %d pods lacks new fields of %q, want %q", len(pods), got, want)
	}
	there, err := r.v1.GetAllocatableResources(t.Context(), &v1.AllocatableResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := withoutNewer(there, nil); got != nil || len(there.CpuIds) != 1 || len(there.Devices) != 1 {
		t.Errorf("GetAllocatableResources lacks new fields: %v", there)
	}
}
