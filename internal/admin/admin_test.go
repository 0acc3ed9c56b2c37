package admin_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/devmgrd/devmgrd/api/devmgrd/admin/v1"
	"github.com/devmgrd/devmgrd/internal/admin"
	"github.com/devmgrd/devmgrd/internal/allocator/allocatortest"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const gpu device.ResourceName = "vendor.com/gpu"

// A harness is a server in front of a real allocator, and a client.
type harness struct {
	*allocatortest.Allocator
	adminv1.AdminServiceClient
	t      *testing.T
	server *admin.Server
	path   string
	end    func()
}

// fakeFile are files of so many bytes.
type fakeFile int

func (b fakeFile) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(bytes.Repeat([]byte("x"), int(b)))
	return int64(n), err
}

// A watcher gets each device at once, and again when one has changed.
func TestWatchDevices(t *testing.T) {
	t.Parallel()
	r := start(t)
	stream, err := r.WatchDevices(t.Context(), &adminv1.WatchDevicesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, condition func([]*adminv1.Device) bool) {
		t.Helper()
		for {
			answer, err := stream.Recv()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if condition(answer.Devices) {
				return
			}
		}
	}
	until("nothing is there", func(all []*adminv1.Device) bool { return len(all) == 0 })
	r.Plugins.Stock(gpu, 2)
	until("two devices are free", func(all []*adminv1.Device) bool { return len(all) == 2 && all[1].State == "free" })
	p := r.Settle(t, allocatortest.Pod("p", gpu, 1))
	until("one is assigned", func(all []*adminv1.Device) bool { return all[0].State == "assigned" && all[0].Holder.Name == "p" })
	if _, err := r.Allocator.Cordon([]device.Cordon{{Resource: gpu, ID: "d001"}}); err != nil {
		t.Fatal(err)
	}
	until("one is cordoned", func(all []*adminv1.Device) bool { return all[1].State == "cordoned" })
	r.Drop(p.Pod.UID)
	until("one is free again", func(all []*adminv1.Device) bool { return all[0].State == "free" })
	go r.end()
	_, err = stream.Recv()
	refused(t, err, codes.Unavailable, "devmgrd is stopping")
}

// A copy comes in parts that any client takes, and is of the file that is asked for.
func TestBackup(t *testing.T) {
	t.Parallel()
	r := start(t)
	for _, c := range []struct {
		history  bool
		n, parts int
	}{{false, 3<<20 + 1, 4}, {true, 7, 1}} {
		stream, err := r.Backup(t.Context(), &adminv1.BackupRequest{History: c.history})
		if err != nil {
			t.Fatal(err)
		}
		n, parts := 0, 0
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			n, parts = n+len(part.Data), parts+1
		}
		if n != c.n || parts != c.parts {
			t.Errorf("%d bytes in %d parts, want %d in %d", n, parts, c.n, c.parts)
		}
	}
}

type endpoints struct{}

func (endpoints) Registrations() map[device.ResourceName]device.Registration {
	return map[device.ResourceName]device.Registration{gpu: {Endpoint: "gpu.sock", Pod: device.PluginPod{
		Pod: device.Pod{UID: "u1", Namespace: "system", Name: "gpu-plugin"}, ServiceAccount: "gpu",
	}}}
}

type grants struct{}

func (grants) Seen() []device.PluginGrants {
	name := func(text, pattern string) []device.GrantName {
		return []device.GrantName{{Text: text, Pattern: pattern}}
	}
	return []device.PluginGrants{{
		Resource: gpu, Env: name("GPU_1", "GPU_[0-9]*"), Mounts: name("/lib", "/lib"), Devices: name("/dev/gpu0", "/dev/gpu[0-9]*"),
		Annotations: name("a/b", "a/b"), CDIKinds: name("v.example/gpu", "v.example/gpu"), Full: true,
	}}
}

// actionLog opens a history for actions.
func actionLog(t *testing.T) *store.History {
	t.Helper()
	s, err := store.Open(store.Config{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h, _ := store.OpenHistory(s)
	t.Cleanup(func() {
		if err := errors.Join(h.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	})
	return h
}

func start(t *testing.T, change ...func(*admin.Config)) *harness {
	t.Helper()
	dir := t.TempDir()
	r := &harness{Allocator: allocatortest.Start(t, filepath.Join(dir, "state")), t: t, path: filepath.Join(dir, "run", "admin.sock")}
	c := admin.Config{
		Socket: r.path, Version: "v1", Node: "node", View: r.Allocator, Allocator: r.Allocator, Plugins: endpoints{}, Rules: grants{}, History: nothing{}, Actions: actionLog(t), StateFile: fakeFile(3<<20 + 1), HistoryFile: fakeFile(7), Log: slog.New(slog.DiscardHandler),
		Components: func() []device.Component {
			return []device.Component{{Name: "store"}, {Name: "nri", Err: errors.New("away")}}
		},
	}
	for _, f := range change {
		f(&c)
	}
	r.server = admin.New(c)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.server.Run(ctx) }()
	r.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.end)
	r.AdminServiceClient = adminv1.NewAdminServiceClient(plugintest.Client(t, r.path))
	return r
}

// expect compares a message with one as people write it. Times are left out, once they are known to be there.
func expect(t *testing.T, got proto.Message, err error, want string) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	message := got.ProtoReflect().New().Interface()
	if err := prototext.Unmarshal([]byte(want), message); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(got, message) {
		t.Errorf("got  %v\nwant %v", got, message)
	}
}

func refused(t *testing.T, err error, code codes.Code, words string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), words) {
		t.Errorf("%v, want %v with %q", err, code, words)
	}
}

// Each device with the one thing to know of it, and who has it.
func TestDevices(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Offer(gpu, device.Serving, device.Device{ID: "a", Healthy: true, NUMA: []int{0, 1}}, device.Device{ID: "b", Healthy: true},
		device.Device{ID: "c"}, device.Device{ID: "d", Healthy: true})
	r.Settle(t, allocatortest.Pod("p", gpu, 1))
	done, err := r.Cordon(t.Context(), &adminv1.CordonRequest{Reason: "fan", Devices: []*adminv1.DeviceName{{ResourceName: string(gpu), Id: "d"}, {ResourceName: string(gpu), Id: "a"}}})
	if err != nil || len(done.Devices) != 2 || done.Devices[0].Id != "d" || done.Devices[0].State != "cordoned" || done.Devices[1].State != "assigned" {
		t.Fatalf("%v, %v", done, err)
	}
	all, err := r.ListDevices(t.Context(), &adminv1.ListDevicesRequest{})
	for _, d := range all.GetDevices() {
		d.Failed = nil
		if d.Cordon != nil {
			if time.Since(d.Cordon.Since.AsTime()) > time.Minute {
				t.Errorf("%s is cordoned since %v", d.Id, d.Cordon.Since.AsTime())
			}
			d.Cordon.Since = nil
		}
	}
	expect(t, all, err, `
		devices {resource_name: "vendor.com/gpu" id: "a" state: "assigned" healthy: true listed: true numa_nodes: [0, 1]
			holder {namespace: "ns" name: "p" uid: "uid-p" containers: "main"} cordon {reason: "fan"}}
		devices {resource_name: "vendor.com/gpu" id: "b" state: "free" healthy: true listed: true}
		devices {resource_name: "vendor.com/gpu" id: "c" state: "unhealthy" listed: true}
		devices {resource_name: "vendor.com/gpu" id: "d" state: "cordoned" healthy: true listed: true cordon {reason: "fan"}}`)

	// The plugin is away, and lists one device less when it is back.
	r.Plugins.Offer(gpu, device.Lost, device.Device{ID: "b", Healthy: true})
	plugintest.Eventually(t, "the plugin is away", func() bool { return r.Resources().Offers()[gpu].State == device.Lost })
	all, err = r.ListDevices(t.Context(), &adminv1.ListDevicesRequest{ResourceName: string(gpu)})
	if err != nil || len(all.Devices) != 3 || all.Devices[0].Listed || all.Devices[1].State != "stale" || all.Devices[2].State != "cordoned" {
		t.Errorf("%v, %v", all, err)
	}
	back, err := r.Uncordon(t.Context(), &adminv1.UncordonRequest{Devices: []*adminv1.DeviceName{{ResourceName: string(gpu), Id: "a"}, {ResourceName: string(gpu), Id: "b"}}})
	if err != nil || len(back.Devices) != 2 || back.Devices[0].Cordon != nil {
		t.Errorf("%v, %v", back, err)
	}
}

// An unused resource can be forgotten, and an unknown resource cannot.
func TestForget(t *testing.T) {
	t.Parallel()
	onNode := device.ResourceName("vendor.com/ghost")
	r := start(t, func(c *admin.Config) { c.OnNode = func(r device.ResourceName) (int, bool) { return 3, r == onNode } })
	forget := func(resource device.ResourceName) (*adminv1.ForgetResponse, error) {
		return r.AdminServiceClient.Forget(t.Context(), &adminv1.ForgetRequest{ResourceName: string(resource)})
	}
	r.Plugins.Stock(gpu, 2)
	p := r.Settle(t, allocatortest.Pod("p", gpu, 1))
	_, err := r.Cordon(t.Context(), &adminv1.CordonRequest{Devices: []*adminv1.DeviceName{{ResourceName: string(gpu), Id: "d001"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = forget(gpu)
	refused(t, err, codes.FailedPrecondition, "nothing has been changed: vendor.com/gpu is in use by ns/p: pods that hold or request its devices must end first")
	r.Drop(p.Pod.UID)
	plugintest.Eventually(t, "no pod requests it", func() bool { return r.Resources().ByName[gpu].States[device.StateFree] == 1 })
	_, err = forget(gpu)
	refused(t, err, codes.FailedPrecondition, "its device plugin is serving; stop the plugin first")
	r.Plugins.Offer(gpu, device.Lost, device.Device{ID: "d000"}, device.Device{ID: "d001"})
	plugintest.Eventually(t, "the plugin is away", func() bool { return r.Resources().Offers()[gpu].State == device.Lost })
	answer, err := forget(gpu)
	expect(t, answer, err, `lifted {resource_name: "vendor.com/gpu" id: "d001"}`)
	_, err = forget(gpu)
	refused(t, err, codes.NotFound, "unknown resource \"vendor.com/gpu\"")
	answer, err = forget(onNode)
	expect(t, answer, err, "")
	if got := r.Resources().Retired; !slices.Equal(got, []device.ResourceName{onNode, gpu}) {
		t.Errorf("to be taken off the Node: %v", got)
	}
	_, err = forget("no name")
	refused(t, err, codes.InvalidArgument, "no name")
}

// evictions tell who is to go.
type evictions struct{ gone chan device.Pod }

func (e evictions) Evict(pod device.Pod, why string, still func() bool) {
	if !still() {
		panic("there is no reason to evict " + pod.String())
	}
	if !strings.Contains(why, "is drained") {
		panic(why)
	}
	e.gone <- pod
}

// Devices are drained: cordoned, and their pods evicted, once each; the stream ends when no pod has them.
func TestDrain(t *testing.T) {
	t.Parallel()
	gone := make(chan device.Pod, 10)
	r := start(t, func(c *admin.Config) { c.Evictions = evictions{gone: gone} })
	r.Plugins.Stock(gpu, 4)
	p := r.Settle(t, allocatortest.Pod("p", gpu, 2))
	var names []*adminv1.DeviceName
	for _, id := range []string{"d000", "d001", "d002"} {
		names = append(names, &adminv1.DeviceName{ResourceName: string(gpu), Id: id})
	}
	stream, err := r.Drain(t.Context(), &adminv1.DrainRequest{Devices: names, Reason: "fan"})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || answer.Done || len(answer.Devices) != 3 || answer.Devices[0].Holder.GetName() != "p" || answer.Devices[2].State != "cordoned" {
		t.Fatalf("%v, %v", answer, err)
	}
	if pod := <-gone; pod != p.Pod {
		t.Errorf("%v is evicted", pod)
	}
	r.Settle(t, allocatortest.Pod("another", gpu, 1)) // which is none of its business
	r.Drop(p.Pod.UID)
	if answer, err = stream.Recv(); err != nil || !answer.Done || answer.Devices[0].State != "cordoned" || answer.Devices[0].Cordon.Reason != "fan" {
		t.Errorf("%v, %v", answer, err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if len(gone) > 0 {
		t.Errorf("%v is evicted, too", <-gone)
	}
}

// The end of the daemon ends a drain, and a mistake begins none.
func TestDrainThatEnds(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *admin.Config) { c.Evictions = evictions{gone: make(chan device.Pod, 10)} })
	r.Plugins.Stock(gpu, 1)
	r.Settle(t, allocatortest.Pod("p", gpu, 1))
	drain := func(id string) (*adminv1.DrainResponse, error) {
		stream, err := r.Drain(t.Context(), &adminv1.DrainRequest{Devices: []*adminv1.DeviceName{{ResourceName: string(gpu), Id: id}}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			return nil, err
		}
		go r.end()
		return stream.Recv()
	}
	_, err := drain("d009")
	refused(t, err, codes.NotFound, "there is no device d009")
	_, err = drain("d000")
	refused(t, err, codes.Unavailable, "devmgrd is stopping")

	r = start(t)
	r.Plugins.Stock(gpu, 1)
	_, err = drain("d000")
	refused(t, err, codes.FailedPrecondition, "kubernetes.mode")
}

// A mistake says what is unknown and where to look, and changes nothing.
func TestMistakes(t *testing.T) {
	t.Parallel()
	r := start(t)
	_, err := r.ListDevices(t.Context(), &adminv1.ListDevicesRequest{ResourceName: "vendor.com/gpu"})
	refused(t, err, codes.NotFound, "no device plugin has registered yet")
	r.Plugins.Stock(gpu, 2)
	plugintest.Eventually(t, "the plugin is known", func() bool { return len(r.Resources().Offers()) > 0 })
	_, err = r.ListDevices(t.Context(), &adminv1.ListDevicesRequest{ResourceName: "vendor.com/gpus"})
	refused(t, err, codes.NotFound, "known resources: vendor.com/gpu")
	_, err = r.ListAssignments(t.Context(), &adminv1.ListAssignmentsRequest{Namespace: "ns", Name: "p"})
	refused(t, err, codes.NotFound, "pod ns/p is not known on this node")
	_, err = r.Explain(t.Context(), &adminv1.ExplainRequest{Namespace: "ns", Name: "p"})
	refused(t, err, codes.NotFound, "pod ns/p is not known on this node")

	name := func(r, id string) []*adminv1.DeviceName {
		return []*adminv1.DeviceName{{ResourceName: string(gpu), Id: "d000"}, {ResourceName: r, Id: id}}
	}
	for _, c := range []struct {
		devices []*adminv1.DeviceName
		reason  string
		code    codes.Code
		words   string
	}{
		{name(string(gpu), "d9"), "", codes.NotFound, "there is no device d9 of vendor.com/gpu, and nothing has been changed; see devmgrd devices vendor.com/gpu"},
		{name("gpu", "d9"), "", codes.InvalidArgument, "no slash"},
		{name(string(gpu), ""), "", codes.InvalidArgument, "without its ID"},
		{nil, "", codes.InvalidArgument, "no device is named"},
		{make([]*adminv1.DeviceName, 5000), "", codes.InvalidArgument, "5000 devices"},
		{name(string(gpu), "d001"), strings.Repeat("x", 2000), codes.InvalidArgument, "the reason is longer"},
	} {
		_, err := r.Cordon(t.Context(), &adminv1.CordonRequest{Devices: c.devices, Reason: c.reason})
		refused(t, err, c.code, c.words)
	}
	all, err := r.ListDevices(t.Context(), &adminv1.ListDevicesRequest{})
	if err != nil || all.Devices[0].State != "free" || all.Devices[1].State != "free" {
		t.Errorf("%v, %v", all, err)
	}
}

// Why a pod waits, since when, and what would end that; and what one has that does not wait.
func TestExplain(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 1)
	has := r.Settle(t, allocatortest.Pod("has", gpu, 1))
	r.Settle(t, allocatortest.Pod("plain", "", 0))
	r.Bind(allocatortest.Pod("waits", gpu, 1))
	r.Bind(allocatortest.Pod("lost", "vendor.com/none", 1))
	plugintest.Eventually(t, "two wait", func() bool {
		return len(r.Snapshot().Waiting()) == 2 && r.Snapshot().Waiting()[1].Wait.Reason != device.Allocating
	})
	explain := func(pod, want string) {
		t.Helper()
		e, err := r.Explain(t.Context(), &adminv1.ExplainRequest{Namespace: "ns", Name: pod})
		if err == nil && time.Since(e.Since.AsTime()) > time.Minute {
			t.Errorf("%s stands so since %v", pod, e.Since.AsTime())
		}
		if err == nil {
			e.Since = nil
		}
		expect(t, e, err, want)
	}
	mine := `assignments {namespace: "ns" pod: "has" uid: "uid-has" container: "main" resource_name: "vendor.com/gpu" device_ids: "d000" why: "1 by lowest ID"`
	explain("has", `namespace: "ns" name: "has" uid: "uid-has" verdict: "ready" message: "the pod has all the devices that it requests" `+mine+`}`)
	explain("plain", `namespace: "ns" name: "plain" uid: "uid-plain" verdict: "none" message: "the pod requests no device that devmgrd assigns"`)
	explain("waits", `namespace: "ns" name: "waits" uid: "uid-waits" verdict: "waiting" reason: "NotEnoughDevices" message: "vendor.com/gpu: 1 wanted, 0 of 1 free"
		ends: "a device of vendor.com/gpu is released by another pod, uncordoned, or newly listed"`)
	explain("lost", `namespace: "ns" name: "lost" uid: "uid-lost" verdict: "waiting" reason: "PluginMissing" message: "no device plugin has registered vendor.com/none"
		ends: "the device plugin of vendor.com/none registers and lists its devices"`)

	r.RuntimeCreating(t.Context(), device.Running{ID: "1", Container: device.Container{Pod: has.Pod.UID, Name: "main"}})
	r.Drop(has.Pod.UID)
	explain("has", `namespace: "ns" name: "has" uid: "uid-has" verdict: "ended" message: "the pod has ended"
		ends: "its devices are released when they are proved free, see release.check" `+mine+` ended: true}`)
	all, err := r.ListAssignments(t.Context(), &adminv1.ListAssignmentsRequest{})
	expect(t, all, err, mine+` ended: true}`)
}

// A served pod whose container the runtime would not be let create waits too.
func TestExplain_ContainerOfAServedPodIsRefused_PodWaits(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *admin.Config) { c.View = refusing{c.View} })
	r.Plugins.Stock(gpu, 1)
	r.Settle(t, allocatortest.Pod("has", gpu, 1))
	e, err := r.Explain(t.Context(), &adminv1.ExplainRequest{Namespace: "ns", Name: "has"})
	if err != nil || e.Verdict != "waiting" || e.Reason != "PreStartFailed" || e.Message != "container main would not start now: the plugin says no" || e.Since != nil ||
		e.Ends != "PreStartContainer of the device plugin of vendor.com/gpu succeeds" || len(e.Assignments) != 1 {
		t.Errorf("%v, %v", e, err)
	}
}

type refusing struct{ admin.View }

func (refusing) WouldRefuse(device.PodUID) (string, *device.Wait) {
	return "main", &device.Wait{Reason: device.PreStartFailed, Message: "the plugin says no"}
}

// A device that may be in use under another ID is counted as withheld.
func TestStatus_RenamedDevice_IsWithheld(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Offer(gpu, device.Serving, device.Device{ID: "old", Healthy: true})
	r.Settle(t, allocatortest.Pod("has", gpu, 1))
	r.Plugins.Offer(gpu, device.Serving, device.Device{ID: "new", Healthy: true, Added: time.Now().UnixNano()})
	plugintest.Eventually(t, "the new device is withheld", func() bool {
		s, err := r.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
		return err == nil && len(s.Resources) == 1 && s.Resources[0].Withheld == 1 && s.Resources[0].Free == 0 && s.Resources[0].Assigned == 1
	})
	all, err := r.ListDevices(t.Context(), &adminv1.ListDevicesRequest{})
	if err != nil || len(all.Devices) != 2 || all.Devices[0].State != "withheld" || all.Devices[1].State != "assigned" {
		t.Errorf("%v, %v", all, err)
	}
}

// A plugin's container that was created without devmgrd is named wherever the plugin is missed.
func TestNotRedirected(t *testing.T) {
	t.Parallel()
	pod := device.Pod{UID: "u", Namespace: "kube-system", Name: "plugin"}
	all := []device.PodContainer{{Pod: pod, Name: "main"}}
	r := start(t, func(c *admin.Config) { c.NotRedirected = func() []device.PodContainer { return all } })
	const want = `{namespace: "kube-system" pod: "plugin" uid: "u" container: "main"}`
	s, err := r.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	expect(t, &adminv1.GetStatusResponse{NotRedirected: s.GetNotRedirected()}, err, "not_redirected "+want)
	plugins, err := r.ListPlugins(t.Context(), &adminv1.ListPluginsRequest{})
	expect(t, plugins, err, "not_redirected "+want)

	r.Plugins.Stock(gpu, 1)
	r.Bind(allocatortest.Pod("lost", "vendor.com/none", 1))
	r.Bind(allocatortest.Pod("large", gpu, 2))
	plugintest.Eventually(t, "two wait", func() bool {
		return len(r.Snapshot().Waiting()) == 2 && r.Snapshot().Waiting()[1].Wait.Reason == device.NotEnoughDevices
	})
	ends := func(name string) string {
		e, err := r.Explain(t.Context(), &adminv1.ExplainRequest{Namespace: "ns", Name: name})
		if err != nil {
			t.Fatal(err)
		}
		return e.Ends
	}
	if got := ends("lost"); !strings.HasSuffix(got, "; if the plugin runs in kube-system/plugin:main, it is registered with the kubelet, because the container was created while devmgrd was away: delete its pod") {
		t.Errorf("lost ends: %q", got)
	}
	if got := ends("large"); strings.Contains(got, "kubelet") {
		t.Errorf("large ends: %q", got)
	}
	for range 6 {
		all = append(all, all[0])
	}
	if got := ends("lost"); strings.Count(got, "kube-system/plugin:main") != 5 || !strings.Contains(got, " or 2 more, it is") {
		t.Errorf("with seven: %q", got)
	}
}

// apiPods stand for the API server's pods.
type apiPods struct {
	ends map[string]device.EndedPod // by name
	bind func(name string) bool     // of Find
	err  error
}

func (a apiPods) Ended(_ context.Context, _, name string) (device.EndedPod, bool, error) {
	end, ended := a.ends[name]
	return end, ended, a.err
}

func (a apiPods) Find(_ context.Context, _, name string) (bool, error) {
	return a.bind != nil && a.bind(name), a.err
}

// A pod that the ledger does not know, or not any longer, is looked up in the API server.
func TestExplain_PodThatEnded_SaysHow(t *testing.T) {
	t.Parallel()
	api := &apiPods{ends: map[string]device.EndedPod{}}
	r := start(t, func(c *admin.Config) { c.Pods = api })
	api.bind = func(name string) bool {
		if name == "late" {
			r.Bind(allocatortest.Pod("late", "", 0))
		}
		return name == "late"
	}
	pod := func(name string) device.Pod {
		return device.Pod{UID: device.PodUID("uid-" + name), Namespace: "ns", Name: name}
	}
	at := time.Unix(1000, 0)
	api.ends["refused"] = device.EndedPod{Pod: pod("refused"), Failed: true, Refused: true, At: at, Reason: "OutOfvendor.com/gpu", Message: "Pod was rejected"}
	api.ends["failed"] = device.EndedPod{Pod: pod("failed"), Failed: true, Reason: "Evicted"}
	api.ends["stuck"] = device.EndedPod{Pod: pod("stuck"), Leaving: true, Message: "its sandbox is gone"}
	api.ends["has"] = device.EndedPod{Pod: pod("has"), Message: "done"}
	api.ends["again"] = device.EndedPod{Pod: device.Pod{UID: "uid-of-another"}, Failed: true, Reason: "Evicted"}
	explain := func(name, want string) {
		t.Helper()
		e, err := r.Explain(t.Context(), &adminv1.ExplainRequest{Namespace: "ns", Name: name})
		if err == nil && name != "refused" {
			e.Since = nil
		}
		expect(t, e, err, `namespace: "ns" name: "`+name+`" uid: "uid-`+name+`" `+want)
	}
	explain("refused", `verdict: "refused" reason: "OutOfvendor.com/gpu" since {seconds: 1000}
		message: "the kubelet did not admit the pod, and none of its containers was created: Pod was rejected"
		ends: "never: delete the pod, or let its controller replace it; leave spec.nodeName to the scheduler, which keeps a pod pending until the Node has enough"`)
	explain("failed", `verdict: "ended" reason: "Evicted" message: "the pod has failed"`)
	explain("stuck", `verdict: "ended" message: "the kubelet starts no further container of the pod: its sandbox is gone"`)
	explain("late", `verdict: "none" message: "the pod requests no device that devmgrd assigns"`)
	r.Plugins.Stock(gpu, 2)
	for _, name := range []string{"has", "again"} { // which have devices until the runtime has removed their containers
		p := r.Settle(t, allocatortest.Pod(name, gpu, 1))
		r.RuntimeCreating(t.Context(), device.Running{ID: name, Container: device.Container{Pod: p.Pod.UID, Name: "main"}})
		r.Drop(p.Pod.UID)
	}
	held := `ends: "its devices are released when they are proved free, see release.check" assignments {namespace: "ns" container: "main" resource_name: "vendor.com/gpu" ended: true `
	explain("has", held+`pod: "has" uid: "uid-has" device_ids: "d000" why: "1 by lowest ID"} verdict: "ended" message: "the pod has succeeded: done"`)
	explain("again", held+`pod: "again" uid: "uid-again" device_ids: "d001" why: "1 by lowest ID"} verdict: "ended" message: "the pod has ended"`)
	_, err := r.Explain(t.Context(), &adminv1.ExplainRequest{Namespace: "ns", Name: "none"})
	refused(t, err, codes.NotFound, "pod ns/none is not known on this node")
	api.err = errors.New("forbidden")
	_, err = r.Explain(t.Context(), &adminv1.ExplainRequest{Namespace: "ns", Name: "none"})
	refused(t, err, codes.NotFound, "pod ns/none is not known on this node: forbidden")
}

// busy is a view of ended pods whose devices are in use.
type busy struct{ admin.View }

func (v busy) Snapshot() *device.Snapshot {
	s := *v.View.Snapshot()
	s.Pods = slices.Clone(s.Pods)
	for i := range s.Pods {
		s.Pods[i].Release = &device.Release{Why: "processes of the pod have not ended", Busy: true}
	}
	return &s
}

// How a pod has ended does not hide what keeps its devices.
func TestExplain_PodThatEnded_DevicesAreInUse_SaysWhy(t *testing.T) {
	t.Parallel()
	api := &apiPods{ends: map[string]device.EndedPod{}}
	r := start(t, func(c *admin.Config) { c.Pods, c.View = api, busy{c.View} })
	r.Plugins.Stock(gpu, 1)
	p := r.Settle(t, allocatortest.Pod("p", gpu, 1))
	r.RuntimeCreating(t.Context(), device.Running{ID: "1", Container: device.Container{Pod: p.Pod.UID, Name: "main"}})
	r.Drop(p.Pod.UID)
	api.ends["p"] = device.EndedPod{Pod: p.Pod, Leaving: true, Message: "it is being deleted"}
	e, err := r.Explain(t.Context(), &adminv1.ExplainRequest{Namespace: "ns", Name: "p"})
	want := "the kubelet starts no further container of the pod: it is being deleted; its devices are not free yet: processes of the pod have not ended"
	if err != nil || e.Message != want {
		t.Errorf("got %q (%v), want %q", e.GetMessage(), err, want)
	}
}

// Explain shows when a failing plugin is called again.
func TestExplainTellsOfTheNextTry(t *testing.T) {
	t.Parallel()
	r := start(t)
	r.Plugins.Stock(gpu, 1)
	r.Plugins.Answer(func(context.Context) error { return errors.New("no") })
	r.Bind(allocatortest.Pod("p", gpu, 1))
	plugintest.Eventually(t, "the plugin has failed", func() bool {
		e, err := r.Explain(t.Context(), &adminv1.ExplainRequest{Namespace: "ns", Name: "p"})
		return err == nil && e.Reason == "PluginError" && e.Retry != nil && strings.Contains(e.Ends, "asks it again")
	})
}

// The daemon at a glance.
func TestStatus(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *admin.Config) {
		c.OnNode = func(device.ResourceName) (int, bool) { return 2, true } // the API server has not taken 3 yet
	})
	r.Replace(nil) // the API server has listed the pods
	r.Plugins.Stock(gpu, 2)
	r.Settle(t, allocatortest.Pod("has", gpu, 1))
	r.Bind(allocatortest.Pod("waits", gpu, 2))
	plugintest.Eventually(t, "one waits", func() bool { return r.Allocator.PodByUID("uid-waits").Wait.Reason == device.NotEnoughDevices })
	s, err := r.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	if err != nil || s.Started == nil || len(s.Waiting) != 1 || s.Waiting[0].Since == nil {
		t.Fatalf("%v, %v", s, err)
	}
	s.Started, s.Waiting[0].Since = nil, nil
	expect(t, s, nil, `version: "v1" node: "node" components {name: "store" ready: true} components {name: "nri" problem: "away"}
		resources {name: "vendor.com/gpu" plugin: "serving" node_capacity: 2 target_capacity: 3 free: 1 assigned: 1}
		waiting {namespace: "ns" name: "waits" reason: "NotEnoughDevices" message: "vendor.com/gpu: 2 wanted, 1 of 2 free"}`)
	plugins, err := r.ListPlugins(t.Context(), &adminv1.ListPluginsRequest{})
	expect(t, plugins, err, `plugins {resource_name: "vendor.com/gpu" state: "serving" endpoint: "gpu.sock" devices: 2 healthy: 2
		pod {namespace: "system" name: "gpu-plugin" uid: "u1" service_account: "gpu"}}`)
}

// Only root can open the socket, and it goes with the daemon; another process's socket is not replaced.
func TestTheSocket(t *testing.T) {
	t.Parallel()
	r := start(t)
	if _, err := r.GetStatus(t.Context(), &adminv1.GetStatusRequest{}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(r.path); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	r.end()
	if _, err := os.Lstat(r.path); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}

	var other net.Listener
	r = start(t, func(c *admin.Config) {
		if err := os.MkdirAll(filepath.Dir(c.Socket), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if other, err = net.Listen("unix", c.Socket); err != nil {
			t.Fatal(err)
		}
	})
	plugintest.Eventually(t, "the failure shows", func() bool { return r.server.Check() != nil })
	if err := r.server.Check(); !strings.Contains(err.Error(), "admin.socket") {
		t.Error(err)
	}
	other.Close()
	if _, err := r.GetStatus(t.Context(), &adminv1.GetStatusRequest{}); err != nil || r.server.Check() != nil {
		t.Errorf("%v, %v", err, r.server.Check())
	}
}

// An uncordon ends the drain of the device: a pod that gets it afterwards keeps it.
func TestUncordonEndsADrain(t *testing.T) {
	t.Parallel()
	gone := make(chan device.Pod, 10)
	r := start(t, func(c *admin.Config) { c.Evictions = evictions{gone: gone} })
	r.Plugins.Stock(gpu, 2)
	p := r.Settle(t, allocatortest.Pod("p", gpu, 1))
	r.Settle(t, allocatortest.Pod("q", gpu, 1))
	names := []*adminv1.DeviceName{{ResourceName: string(gpu), Id: "d000"}, {ResourceName: string(gpu), Id: "d001"}}
	stream, err := r.Drain(t.Context(), &adminv1.DrainRequest{Devices: names})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	<-gone
	<-gone
	if _, err := r.AdminServiceClient.Uncordon(t.Context(), &adminv1.UncordonRequest{Devices: names[:1]}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	refused(t, err, codes.Aborted, "uncordoned meanwhile")
	r.Drop(p.Pod.UID)
	r.Settle(t, allocatortest.Pod("fresh", gpu, 1))
	if len(gone) > 0 {
		t.Errorf("%v is evicted from a device that is in service", <-gone)
	}
}

// A pod without a known name cannot be evicted: a container runs with the device, and its pod is not known.
func TestDrainOfAQuarantinedDevice(t *testing.T) {
	t.Parallel()
	gone := make(chan device.Pod, 10)
	r := start(t, func(c *admin.Config) { c.Evictions = evictions{gone: gone} })
	r.Plugins.Stock(gpu, 1)
	r.Settle(t, allocatortest.Pod("plain", gpu, 0))
	r.RuntimeSynced([]device.Running{{ID: "c", Container: device.Container{Pod: "stranger", Name: "main"}, Stamp: device.Choice{gpu: {"d000"}}}}, nil)
	plugintest.Eventually(t, "the device is quarantined", func() bool { return r.Resources().ByName[gpu].States[device.StateQuarantined] == 1 })
	stream, err := r.Drain(t.Context(), &adminv1.DrainRequest{Devices: []*adminv1.DeviceName{{ResourceName: string(gpu), Id: "d000"}}})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil || answer.Done || answer.Devices[0].State != "quarantined" {
		t.Fatalf("%v, %v", answer, err)
	}
	found := allocatortest.Pod("found", gpu, 1) // now it has a name
	found.Pod.UID = "stranger"
	r.Bind(found)
	if pod := <-gone; pod.Name != "found" {
		t.Errorf("%+v must not be evicted", pod)
	}
}

// A pod has a device of a plugin that devmgrd has not heard of, since it was killed before it had noted the plugin.
func TestStatus_PluginNotKnown_WantsWhatTheNodeShows(t *testing.T) {
	t.Parallel()
	r := start(t, func(c *admin.Config) { c.OnNode = func(device.ResourceName) (int, bool) { return 2, true } })
	r.Plugins.Stock(gpu, 2)
	r.Settle(t, allocatortest.Pod("has", gpu, 1))
	r.Plugins.Offer(gpu, device.Lost)
	if err := r.Plugins.Forget(gpu); err != nil {
		t.Fatal(err)
	}
	r.Plugins.Stock("vendor.com/other", 1)
	plugintest.Eventually(t, "the offer is gone", func() bool { _, is := r.Resources().Offers()[gpu]; return !is })
	s, err := r.GetStatus(t.Context(), &adminv1.GetStatusRequest{})
	if err != nil || len(s.Resources) == 0 || s.Resources[0].NodeCapacity != 2 || s.Resources[0].TargetCapacity != 2 || s.Resources[0].Assigned != 1 {
		t.Errorf("%v, %v", s, err)
	}
}

// ListGrants returns names and patterns of all sorts.
func TestListGrants(t *testing.T) {
	t.Parallel()
	r := start(t)
	answer, err := r.ListGrants(t.Context(), &adminv1.ListGrantsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	name := func(text, pattern string) []*adminv1.GrantName {
		return []*adminv1.GrantName{{Text: text, Pattern: pattern}}
	}
	want := &adminv1.ListGrantsResponse{Grants: []*adminv1.Grants{{
		ResourceName: string(gpu), Env: name("GPU_1", "GPU_[0-9]*"), Mounts: name("/lib", "/lib"), Devices: name("/dev/gpu0", "/dev/gpu[0-9]*"),
		Annotations: name("a/b", "a/b"), CdiKinds: name("v.example/gpu", "v.example/gpu"), Full: true,
	}}}
	if !proto.Equal(answer, want) {
		t.Errorf("the answer is %v, want %v", answer, want)
	}
}
