package registry_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

func timeouts(d time.Duration) func(*registry.Config) {
	return func(c *registry.Config) { c.AllocateTimeout, c.PreferredTimeout, c.PreStartTimeout = d, d, d }
}

// wantRefusal checks the reason of an error, and that its sentence names the resource and the parts.
func wantRefusal(t *testing.T, err error, reason device.Reason, parts ...string) {
	t.Helper()
	var r *device.Refusal
	if !errors.As(err, &r) {
		t.Errorf("err = %v, want a refusal", err)
		return
	}
	if r.Reason != reason {
		t.Errorf("reason = %s, want %s (%v)", r.Reason, reason, err)
	}
	for _, p := range append(parts, "vendor.example/") {
		if !strings.Contains(r.Message, p) {
			t.Errorf("message %q does not say %q", r.Message, p)
		}
	}
}

func TestAllocate(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(2)...)
	p.OnAllocate = plugintest.Grants(&plugintest.Answer{
		Envs:        map[string]string{"GPU": "0"},
		Mounts:      []*pluginapi.Mount{{ContainerPath: "/lib/gpu", HostPath: "/opt/gpu", ReadOnly: true}},
		Devices:     []*pluginapi.DeviceSpec{{HostPath: "/dev/gpu0", Permissions: "mrw"}, {HostPath: "/dev/a", ContainerPath: "/dev/b", Permissions: "r"}},
		Annotations: map[string]string{"vendor.example/note": "hello"},
		CdiDevices:  []*pluginapi.CDIDevice{{Name: "vendor.example/gpu=0"}},
	})
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(2))

	got, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"dev-000000", "dev-000001"})
	if err != nil {
		t.Fatal(err)
	}
	want := device.Grant{
		Env:         map[string]string{"GPU": "0"},
		Mounts:      []device.Mount{{ContainerPath: "/lib/gpu", HostPath: "/opt/gpu", ReadOnly: true}},
		Nodes:       []device.Node{{HostPath: "/dev/gpu0", Permissions: "mrw"}, {ContainerPath: "/dev/b", HostPath: "/dev/a", Permissions: "r"}},
		Annotations: map[string]string{"vendor.example/note": "hello"},
		CDI:         []string{"vendor.example/gpu=0"},
	}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("grant = %+v\nwant    %+v", got, want)
	}
	seen := p.Requests()[slices.IndexFunc(p.Requests(), func(r plugintest.Request) bool { return r.Method == plugintest.Allocate })]
	if !slices.Equal(seen.IDs, []string{"dev-000000", "dev-000001"}) {
		t.Errorf("IDs = %q", seen.IDs)
	}
	for key, value := range map[string]string{
		"devmgrd-pod-namespace": "default", "devmgrd-pod-name": "train", "devmgrd-pod-uid": "uid-1", "devmgrd-container-name": "main",
	} {
		if v := seen.Metadata.Get(key); len(v) != 1 || v[0] != value {
			t.Errorf("metadata %s = %q, want %q", key, v, value)
		}
	}
	if f.metric("device_plugin_alloc_duration_seconds", gpu) != 1 {
		t.Error("the call was not measured")
	}
}

// An answer with one empty container is good: the devices need nothing.
func TestAllocateEmptyAnswer(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	p.OnAllocate = plugintest.Grants(&plugintest.Answer{})
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(1))
	if _, err := f.Allocate(t.Context(), pod, container, gpu, nil); err != nil {
		t.Error(err)
	}
}

func TestAllocateBadAnswers(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	var answer atomic.Pointer[plugintest.AllocateResponse]
	p.OnAllocate = func(context.Context, *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
		return answer.Load(), nil
	}
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(1))

	one := func(a *plugintest.Answer) []*plugintest.Answer { return []*plugintest.Answer{a} }
	for name, c := range map[string]struct {
		answer []*plugintest.Answer
		says   string
	}{
		"no container":        {nil, "answers for 0 containers and was asked for 1"},
		"two containers":      {[]*plugintest.Answer{{}, {}}, "answers for 2 containers and was asked for 1"},
		"env without name":    {one(&plugintest.Answer{Envs: map[string]string{"": "x"}}), `envs[""]`},
		"env with equals":     {one(&plugintest.Answer{Envs: map[string]string{"A=B": "x"}}), `envs["A=B"]`},
		"env with NUL":        {one(&plugintest.Answer{Envs: map[string]string{"A": "x\x00"}}), `envs["A"]`},
		"mount to nowhere":    {one(&plugintest.Answer{Mounts: []*pluginapi.Mount{{HostPath: "/a"}}}), `mounts[0]: container_path ""`},
		"relative mount":      {one(&plugintest.Answer{Mounts: []*pluginapi.Mount{{ContainerPath: "/a", HostPath: "b"}}}), `mounts[0]: host_path "b"`},
		"relative device":     {one(&plugintest.Answer{Devices: []*pluginapi.DeviceSpec{{HostPath: "dev/a", Permissions: "rw"}}}), `devices[0]: host_path "dev/a"`},
		"no device":           {one(&plugintest.Answer{Devices: []*pluginapi.DeviceSpec{{Permissions: "rw"}}}), `devices[0]: host_path ""`},
		"no permissions":      {one(&plugintest.Answer{Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/a"}}}), `devices[0]: permissions ""`},
		"other permissions":   {one(&plugintest.Answer{Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/a", Permissions: "rx"}}}), `devices[0]: permissions "rx"`},
		"short CDI name":      {one(&plugintest.Answer{CdiDevices: []*pluginapi.CDIDevice{{Name: "gpu0"}}}), `cdi_devices[0]: name "gpu0"`},
		"too large":           {one(&plugintest.Answer{Envs: map[string]string{"A": "b", "BIG": strings.Repeat("x", 5<<20)}}), `the largest entry is envs["BIG"] with 5242947`},
		"a long bad name":     {one(&plugintest.Answer{Envs: map[string]string{strings.Repeat("=", 200_000): ""}}), "the name contains '=' or NUL"},
		"nameless annotation": {one(&plugintest.Answer{Annotations: map[string]string{"": "x"}}), `annotations[""]`},
	} {
		t.Run(name, func(t *testing.T) {
			answer.Store(&plugintest.AllocateResponse{ContainerResponses: c.answer})
			_, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"dev-000000"})
			wantRefusal(t, err, device.PluginError, "Allocate", c.says)
			if n := len(err.Error()); n > 1000 {
				t.Errorf("the message has %d bytes", n)
			}
		})
	}
}

// A grant's annotations pass the runtime's own list of allowed ones by, so those that steer the runtime are refused here.
func TestAllocate_SteeringAnnotation_IsRefusedUnlessAllowed(t *testing.T) {
	t.Parallel()
	f := start(t, func(c *registry.Config) {
		c.AllowedAnnotations = []string{"run.oci.keep_original_groups", "io.katacontainers.config.agent.*"}
	})
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	var key atomic.Pointer[string]
	p.OnAllocate = func(context.Context, *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
		return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{{Annotations: map[string]string{"vendor.com/a": "b", *key.Load(): "x"}}}}, nil
	}
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(1))
	for name, allowed := range map[string]bool{
		"vendor.com/slot": true, "cdi.k8s.io/vendor": true, "io.kubernetes.other": true, "run.oci.keep_original_groups": true, "io.katacontainers.config.agent.trace": true,
		"run.oci.handler": false, "run.oci.keep_original_groups.not": false, "io.katacontainers.config.hypervisor.path": false, "io.kubernetes.cri-o.TrySkipVolumeSELinuxLabel": false,
		"io.kubernetes.cri.container-type": false, "io.containerd.image.name": false, "org.systemd.property.CPUWeight": false, "org.criu.config": false,
		"dev.gvisor.flag.debug": false, "com.github.containers.virtcontainers.pkg.oci.bundle_path": false, "devmgrd.io/assignment": false,
	} {
		key.Store(&name)
		g, err := f.Allocate(t.Context(), pod, container, gpu, []device.ID{"dev-000000"})
		if allowed {
			if err != nil || len(g.Annotations) != 2 {
				t.Errorf("%s: %v, %v", name, g, err)
			}
			continue
		}
		wantRefusal(t, err, device.PluginError, "annotations[\""+name+"\"]", "plugins.allowedAnnotations")
	}
}

func TestAllocateRefusals(t *testing.T) {
	t.Parallel()
	f := start(t, grace(time.Hour))
	_, err := f.Allocate(t.Context(), pod, container, gpu, nil)
	wantRefusal(t, err, device.PluginMissing, "no plugin has registered")

	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
	p.Before(plugintest.Allocate, plugintest.Fail("no paper"))
	_, err = f.Allocate(t.Context(), pod, container, gpu, nil)
	wantRefusal(t, err, device.PluginError, "Allocate", "no paper")

	p.Stop()
	f.eventually("the offer is stale", f.is(device.Stale))
	_, err = f.Allocate(t.Context(), pod, container, gpu, nil)
	wantRefusal(t, err, device.PluginStale, p.Endpoint)

	lost := start(t, grace(time.Millisecond), known(device.PluginRecord{Resource: gpu, Endpoint: "gone.sock"}))
	lost.eventually("the offer is lost", lost.is(device.Lost))
	_, err = lost.Allocate(t.Context(), pod, container, gpu, nil)
	wantRefusal(t, err, device.PluginMissing, "gone.sock")
}

// A plugin that dies in the middle of a call is away, not at fault.
func TestAllocatePluginDies(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
	p.Before(plugintest.Allocate, plugintest.Hang)
	failed := make(chan error, 1)
	go func() {
		_, err := f.Allocate(context.Background(), pod, container, gpu, nil)
		failed <- err
	}()
	f.eventually("the call is there", func() bool { return p.Calls(plugintest.Allocate) == 1 })
	p.Kill()
	wantRefusal(t, <-failed, device.PluginStale)
}

// So is one that is replaced in the middle of a call.
func TestAllocatePluginReplaced(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
	p.Before(plugintest.Allocate, plugintest.Hang)
	failed := make(chan error, 2) // one in the call, one waiting for its turn
	for range 2 {
		go func() {
			_, err := f.Allocate(context.Background(), pod, container, gpu, nil)
			failed <- err
		}()
	}
	f.eventually("the call is there", func() bool { return p.Calls(plugintest.Allocate) == 1 })
	p.MustRegister()
	for range 2 {
		wantRefusal(t, <-failed, device.PluginStale)
	}
}

// A plugin that hangs costs only those who ask for its resource, and them no longer than the deadline.
func TestAllocateHangs(t *testing.T) {
	t.Parallel()
	f := start(t, timeouts(time.Second))
	hung := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	hung.Before(plugintest.Allocate, plugintest.Hang)
	const other = "vendor.example/other"
	plugintest.Start(t, f.dir, other, plugintest.Devices(1)...)
	f.eventually("both serve", func() bool { return f.servesNumber(1)() && f.Offers()[other].Reported })

	failed := make(chan error, 1)
	go func() {
		_, err := f.Allocate(context.Background(), pod, container, gpu, nil)
		failed <- err
	}()
	f.eventually("the call is there", func() bool { return hung.Calls(plugintest.Allocate) == 1 })
	if _, err := f.Allocate(t.Context(), pod, container, other, nil); err != nil {
		t.Errorf("the other resource: %v", err)
	}
	_, err := f.Allocate(t.Context(), pod, container, gpu, nil) // behind the first; it gets the turn, or its own time is up
	wantRefusal(t, err, device.PluginSlow, "1s")
	wantRefusal(t, <-failed, device.PluginSlow, "1s")
	if f.offer().State != device.Serving {
		t.Errorf("state = %s", f.offer().State)
	}
}

// If the caller's context ends, Allocate returns the context's error.
func TestAllocateCancelled(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(1)...)
	f.eventually("the plugin serves", f.servesNumber(1))
	p.Before(plugintest.Allocate, plugintest.Hang)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 2) // one in the call, one waiting for its turn
	for range 2 {
		go func() {
			_, err := f.Allocate(ctx, pod, container, gpu, nil)
			failed <- err
		}()
	}
	f.eventually("the call is there", func() bool { return p.Calls(plugintest.Allocate) == 1 })
	cancel()
	for range 2 {
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
	}
}

// Plugins were written for a kubelet that asks one thing at a time.
func TestAllocateOneAtATime(t *testing.T) {
	t.Parallel()
	f := start(t)
	p := plugintest.New(t, f.dir, gpu, plugintest.Devices(1)...)
	var inside, most atomic.Int32
	p.OnAllocate = func(context.Context, *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
		if n := inside.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer inside.Add(-1)
		return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{{}}}, nil
	}
	p.Serve()
	p.MustRegister()
	f.eventually("the plugin serves", f.servesNumber(1))
	var calls sync.WaitGroup
	for range 50 {
		calls.Go(func() {
			if _, err := f.Allocate(context.Background(), pod, container, gpu, nil); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	if most.Load() != 1 {
		t.Errorf("%d calls at the same time", most.Load())
	}
}

func TestPreStart(t *testing.T) {
	t.Parallel()
	f := start(t, timeouts(time.Second))
	p := plugintest.Start(t, f.dir, gpu, plugintest.Devices(3)...)
	f.eventually("the plugin serves", f.servesNumber(3))
	all := []device.ID{"dev-000000", "dev-000001", "dev-000002"}
	call := func() error { return f.PreStart(t.Context(), pod, container, gpu, all) }
	if err := call(); err != nil {
		t.Fatal(err)
	}
	requests := p.Requests()
	last := requests[len(requests)-1]
	if last.Method != plugintest.PreStart || fmt.Sprint(last.IDs) != fmt.Sprint(all) || last.Metadata.Get("devmgrd-pod-uid")[0] != "uid-1" {
		t.Errorf("request = %+v", last)
	}
	p.Before(plugintest.PreStart, plugintest.Fail("reset failed"))
	wantRefusal(t, call(), device.PreStartFailed, "PreStartContainer", "reset failed")
	p.Before(plugintest.PreStart, plugintest.Hang)
	wantRefusal(t, call(), device.PluginSlow, "PreStartContainer", "1s")
	p.Stop()
	f.eventually("the offer is stale", f.is(device.Stale))
	wantRefusal(t, call(), device.PluginStale)
}
