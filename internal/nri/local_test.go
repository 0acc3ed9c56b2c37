package nri

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
)

func TestResourcesAnnotation(t *testing.T) {
	t.Parallel()
	type wants = map[string]map[device.ResourceName]int
	for text, want := range map[string]wants{
		`{}`: {},
		`{"a":{"x.com/d":2,"x.com/e":1},"b":{"x.com/d":0},"c":{}}`: {"a": {"x.com/d": 2, "x.com/e": 1}},
		`{"a":{"x.com/d":9223372036854775807}}`:                    {"a": {"x.com/d": math.MaxInt32}}, // it waits, and sums do not overflow
	} {
		if got, err := resources(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		``:                         "cannot be read",
		`[1]`:                      "cannot be read",
		`{"a":{"x.com/d":"2"}}`:    "cannot be read",
		`{"a":{"x.com/d":1.5}}`:    "cannot be read",
		`{"a":{"x.com/d":-1}}`:     `container "a": requests -1 of x.com/d`,
		`{"a":{"cpu":1}}`:          `container "a": resource name "cpu"`,
		strings.Repeat(" ", 1<<17): "longer than",
	} {
		if got, err := resources(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.50s: %v, %v, want an error with %q", text, got, err, want)
		}
	}
}

func FuzzResourcesAnnotation(f *testing.F) {
	f.Add(`{"a":{"x.com/d":2}}`)
	f.Add(`{"a":{"x.com/d":2e3,"cpu":null}}`)
	f.Fuzz(func(t *testing.T, text string) {
		got, err := resources(text)
		if err != nil {
			return
		}
		for c, wants := range got {
			for r, n := range wants {
				if _, err := device.ParseResourceName(string(r)); err != nil || n <= 0 {
					t.Errorf("%q asks for %d of %s in container %q", text, n, r, c)
				}
			}
		}
		again, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := resources(string(again)); err != nil || !reflect.DeepEqual(back, got) {
			t.Errorf("%q: %v, and read again %v, %v", text, got, back, err)
		}
	})
}

func static(id string) *api.PodSandbox {
	return &api.PodSandbox{Id: id, Uid: "hash", Namespace: "ns", Name: "pod", Pid: 1, Annotations: map[string]string{
		sourceKey: "file", resourcesKey: `{"b":{"a.com/x":1},"a":{"a.com/x":2}}`}}
}

// A local pod is bound when its sandbox is made and dropped with its last sandbox: it may have a new one before the old
// one is removed.
func TestLocalPods(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	ctx := context.Background()
	for _, s := range []*api.PodSandbox{static("s1"), sandbox()} {
		if err := p.RunPodSandbox(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	want := []device.PodDemand{{Local: true, Pod: device.Pod{UID: "hash", Namespace: "ns", Name: "pod"}, Demands: []device.Demand{
		{Container: device.Container{Pod: "hash", Name: "a"}, Kind: device.App, Wants: map[device.ResourceName]int{"a.com/x": 2}},
		{Container: device.Container{Pod: "hash", Name: "b"}, Kind: device.App, Wants: map[device.ResourceName]int{"a.com/x": 1}},
	}}}
	if !reflect.DeepEqual(w.bound, want) {
		t.Errorf("bound %+v, want %+v", w.bound, want)
	}
	for _, step := range []func() error{
		func() error { return p.RunPodSandbox(ctx, static("s2")) },
		func() error { return p.StopPodSandbox(ctx, static("s1")) },
		func() error { return p.RemovePodSandbox(ctx, static("s1")) },
		func() error { return p.RemovePodSandbox(ctx, sandbox()) },
	} {
		if err := step(); err != nil || len(w.dropped) > 0 {
			t.Errorf("%v, dropped %v; want neither yet", err, w.dropped)
		}
	}
	if err := p.RemovePodSandbox(ctx, static("s2")); err != nil || !reflect.DeepEqual(w.dropped, []device.PodUID{"hash"}) {
		t.Errorf("%v, dropped %v, want hash", err, w.dropped)
	}

	bad := static("s3")
	bad.Annotations[resourcesKey] = "{"
	if err := p.RunPodSandbox(ctx, bad); err != nil {
		t.Errorf("a sandbox was refused: %v", err)
	}
	if _, err := p.Synchronize(ctx, []*api.PodSandbox{static("s4"), sandbox(), bad}, nil); err != nil || !reflect.DeepEqual(w.local, want) {
		t.Errorf("%v, told %+v, want %+v", err, w.local, want)
	}
}

// The runtime tells of sandboxes that have stopped as well, and does not say so: their pods are over.
func TestLocalPods_StoppedSandbox_IsNotBound(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	sandbox := func(uid string, pid uint32) *api.PodSandbox {
		s := static("of-" + uid)
		s.Uid, s.Pid = uid, pid
		return s
	}
	stopped, running := sandbox("stopped", 0), sandbox("running", 1)
	processless := sandbox("used", 0) // as of a runtime whose sandboxes have no process
	c := &api.Container{Id: "c", PodSandboxId: processless.Id, Name: "a"}
	if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{stopped, running, processless}, []*api.Container{c}); err != nil {
		t.Fatal(err)
	}
	var bound []device.PodUID
	for _, d := range w.local {
		bound = append(bound, d.Pod.UID)
	}
	if want := []device.PodUID{"running", "used"}; !slices.Equal(bound, want) {
		t.Errorf("bound pods %q, want %q", bound, want)
	}
	for _, s := range []*api.PodSandbox{stopped, running, processless} {
		if err := p.RemovePodSandbox(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(w.dropped, bound) {
		t.Errorf("dropped %q, want %q", w.dropped, bound)
	}
}

// The first that is heard of a local pod may be a container of it.
func TestLocalPodsWithoutRunPodSandbox(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	for range 2 {
		if _, _, err := p.CreateContainer(t.Context(), static("s1"), container()); err == nil {
			t.Fatal("a container of a pod that the ledger does not know may start")
		}
	}
	for range 2 {
		if err := p.RemovePodSandbox(t.Context(), static("s1")); err != nil {
			t.Fatal(err)
		}
	}
	if want := []device.PodUID{"hash"}; len(w.bound) != 2 || !slices.Equal(w.dropped, want) {
		t.Errorf("bound %d times, dropped %q, want %q", len(w.bound), w.dropped, want)
	}
}

// The state file keeps pods by their UIDs, which in a kubelet's sandboxes have 32 or 36 bytes.
func TestLocalPodsUID(t *testing.T) {
	t.Parallel()
	for n, fits := range map[int]bool{0: false, 1: true, 128: true, 129: false} {
		p, w := newPlugin(t)
		s := static("s1")
		s.Uid = strings.Repeat("u", n)
		if err := p.RunPodSandbox(t.Context(), s); err != nil || (len(w.bound) == 1) != fits {
			t.Errorf("%d bytes: %v, bound %v", n, err, w.bound)
		}
		if _, _, err := p.CreateContainer(t.Context(), s, container()); !fits && (err == nil || !strings.Contains(err.Error(), "1 to 128 bytes")) {
			t.Errorf("%d bytes: %v, want an error with what it may be", n, err)
		}
	}
}

// broken is a ledger that panics.
type broken struct{ *harness }

func (broken) Bind(device.PodDemand)   { panic("oh") }
func (broken) DropLocal(device.PodUID) { panic("oh") }

// What goes wrong with a sandbox is for the log: an error would do harm, and the end of the process more.
func TestSandboxesNeverFail(t *testing.T) {
	t.Parallel()
	for event, handle := range map[string]func(*plugin, context.Context, *api.PodSandbox) error{
		"RunPodSandbox":    (*plugin).RunPodSandbox,
		"StopPodSandbox":   (*plugin).StopPodSandbox,
		"RemovePodSandbox": (*plugin).RemovePodSandbox,
	} {
		t.Run(event, func(t *testing.T) {
			p, w := newPlugin(t)
			var log strings.Builder
			p.Allocator, p.Log = broken{w}, slog.New(slog.NewTextHandler(&log, nil))
			p.sandboxes.add(static("s1"))
			if err := handle(p, t.Context(), static("s1")); err != nil {
				t.Errorf("the hook returns %v", err)
			}
			if !strings.Contains(log.String(), "hook panicked") || !strings.Contains(log.String(), "event="+event+" panic=oh") {
				t.Errorf("the log says %q", log.String())
			}
		})
	}
}

// Without Kubernetes every pod may say what it asks for, and those that do not ask for nothing.
func TestNoAPIServer(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	p.Pods = nil
	w.set(ready())
	plain := sandbox()
	plain.Annotations = nil
	if adj, _, err := p.CreateContainer(context.Background(), plain, container()); err != nil || len(adj.Env) != 0 {
		t.Errorf("a pod that asks for nothing: %v, %v", adj, err)
	}
	asking := sandbox()
	asking.Annotations = map[string]string{resourcesKey: `{"main":{"a.com/x":1}}`}
	if adj, _, err := p.CreateContainer(context.Background(), asking, container()); err != nil || len(adj.Env) == 0 || len(w.bound) != 1 {
		t.Errorf("a pod that asks: %v, %v, bound %v", adj, err, w.bound)
	}
}

// The network namespaces of a pod's sandboxes are known from its sandbox, from the runtime's list, and from containers; until the sandbox is removed.
func TestNetworks_EachWay_AreKnown(t *testing.T) {
	t.Parallel()
	networked := func(id string) *api.PodSandbox {
		s := sandbox()
		s.Id = id
		s.Linux = &api.LinuxPodSandbox{Namespaces: []*api.LinuxNamespace{{Type: "pid"}, {Type: "network", Path: "/run/netns/" + id}}}
		return s
	}
	p, _ := newPlugin(t)
	uid := device.PodUID(sandbox().GetUid())
	has := func(want ...string) {
		t.Helper()
		if got := slices.Sorted(slices.Values(p.Presence.sandboxes.networks(uid))); !slices.Equal(got, want) {
			t.Errorf("networks %q, want %q", got, want)
		}
	}
	for _, err := range []error{p.RunPodSandbox(t.Context(), networked("a")), p.RunPodSandbox(t.Context(), sandbox())} {
		if err != nil {
			t.Fatal(err)
		}
	}
	has("/run/netns/a")                                         // the other one has the host's
	p.CreateContainer(t.Context(), networked("b"), container()) // also of one that is refused
	has("/run/netns/a", "/run/netns/b")
	p.StopPodSandbox(t.Context(), sandbox()) // containerd leaves out a namespace that is gone
	p.RemovePodSandbox(t.Context(), networked("a"))
	has("/run/netns/b")
	if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{networked("c")}, nil); err != nil {
		t.Fatal(err)
	}
	has("/run/netns/c")
}

// What the runtime shows of static pods, by which their mirror pods count.
func TestPresence_StaticPods(t *testing.T) {
	t.Parallel()
	shown := NewPresence()
	p, _ := newPlugin(t)
	p.Presence = shown
	is := func(pod device.Pod, want string) {
		t.Helper()
		s, local := shown.Static(pod)
		if got := fmt.Sprint(s, local); got != want {
			t.Errorf("%v: shown, local are %s, want %s", pod, got, want)
		}
	}
	own := device.Pod{UID: "hash", Namespace: "ns", Name: "pod"}
	is(own, "false false")
	plain, other := static("s2"), static("s3")
	plain.Uid, plain.Name, plain.Annotations = "hash2", "pod2", map[string]string{sourceKey: "file"}
	other.Uid, other.Name, other.Annotations = "uid3", "pod3", map[string]string{sourceKey: sourceAPI}
	listed, unreachable := container(), container()
	listed.PodSandboxId = "s1"
	unreachable.PodSandboxId, unreachable.Id, unreachable.Labels = "s9", "c9", map[string]string{"io.kubernetes.pod.uid": "hash9"}
	if _, err := p.Synchronize(context.Background(), []*api.PodSandbox{static("s1"), other}, []*api.Container{listed, unreachable}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-shown.Changed():
	default:
		t.Error("a list is no change")
	}
	is(own, "true true")
	is(device.Pod{UID: "hash", Namespace: "evil", Name: "pod"}, "false true")
	is(device.Pod{UID: "uid3", Namespace: "ns", Name: "pod3"}, "false false")
	is(device.Pod{UID: "hash9", Namespace: "ns", Name: "any"}, "true false") // the runtime has left out its sandbox
	second := device.Pod{UID: "hash2", Namespace: "ns", Name: "pod2"}
	is(second, "false false")
	if err := p.RunPodSandbox(context.Background(), plain); err != nil {
		t.Fatal(err)
	}
	is(second, "true false")
	select {
	case <-shown.Changed():
	default:
		t.Error("a sandbox is no change")
	}
	if err := p.RemovePodSandbox(context.Background(), plain); err != nil {
		t.Fatal(err)
	}
	is(second, "false false")
}

// A static pod without the annotation, whose mirror cannot be read. The allocator has to know of its container.
func TestStaticPod_MirrorIsNotKnown_ContainerIsUnserved(t *testing.T) {
	t.Parallel()
	foreign := container()
	foreign.CDIDevices = []*api.CDIDevice{{Name: cdi.DeviceName(by, "d")}}
	other := sandbox()
	other.Annotations = nil // where there is no Kubernetes, no annotation is no request
	file := sandbox()
	file.Annotations = map[string]string{sourceKey: "file"}
	for name, c := range map[string]struct {
		pod    *api.PodSandbox
		ctr    *api.Container
		want   []device.Running
		starts bool
	}{
		"unknown":                         {file, container(), []device.Running{{ID: "c", Container: main, Sandbox: "s"}}, true},
		"it names another claim's device": {file, foreign, nil, false},
		"no kubelet's pod":                {other, container(), nil, true},
	} {
		p, w := newPlugin(t)
		_, _, err := p.CreateContainer(t.Context(), c.pod, c.ctr)
		if (err == nil) != c.starts || !reflect.DeepEqual(w.unserved, c.want) || len(w.started) > 0 {
			t.Errorf("%s: %v; unserved %v, injected %v", name, err, w.unserved, w.started)
		}
	}
}

// There is no room for the mirror of a static pod: its container does not start without its devices.
func TestStaticPod_MirrorIsRefused_ContainerWaits(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	w.fetch = func(context.Context) error { return device.Refuse(device.PodTooLarge, nil, "no room") }
	s := sandbox()
	s.Annotations = map[string]string{sourceKey: "file"}
	if _, _, err := p.CreateContainer(context.Background(), s, container()); err == nil || !strings.Contains(err.Error(), "no room") {
		t.Errorf("CreateContainer: %v", err)
	}
}
