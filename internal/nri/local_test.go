package nri

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestResourcesAnnotation(t *testing.T) {
	type wants = map[string]map[device.ResourceName]int
	for text, want := range map[string]wants{
		`{}`: {},
		`{"a":{"x.com/d":2,"x.com/e":1},"b":{"x.com/d":0},"c":{}}`: {"a": {"x.com/d": 2, "x.com/e": 1}},
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
		`{"a":{"x.com/d":-1}}`:     `container "a": -1 of x.com/d`,
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
	return &api.PodSandbox{Id: id, Uid: "hash", Namespace: "ns", Name: "pod", Annotations: map[string]string{
		sourceKey: "file", resourcesKey: `{"b":{"a.com/x":1},"a":{"a.com/x":2}}`}}
}

// A local pod is bound when its sandbox is made and dropped with its last sandbox: it may have a new one before the old
// one is removed.
func TestLocalPods(t *testing.T) {
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

// Without Kubernetes every pod may say what it asks for, and those that do not ask for nothing.
func TestNoAPIServer(t *testing.T) {
	p, w := newPlugin(t)
	p.pods = nil
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
