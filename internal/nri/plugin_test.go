package nri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/loops/hostchecks"
)

// A harness stands for the rooms around the plugin: it answers what a test has set.
type harness struct {
	mu          sync.Mutex
	stands      map[device.Container]device.Readiness
	fetch       func(context.Context) error
	synced      []device.Running
	started     []device.Running
	unserved    []device.Running
	stopped     []device.Running
	starting    []device.Running
	barred      error    // what RuntimeStarting answers
	removed     []string // "pod sandbox"
	astray      []string
	still       func() bool // of the last of them
	conflicts   []string
	notStarted  []string
	bound       []device.PodDemand
	dropped     []device.PodUID
	local       []device.PodDemand
	unlisted    []string
	dirs        map[device.PodUID]device.PluginDir
	noDirectory error // what Directory answers
	claims      int   // that have not been taken back
	refused     []string
}

func (w *harness) Refused(c device.Container, why device.Wait, lapsed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = append(w.refused, fmt.Sprintf("%s %s lapsed=%v", c.Name, why.Reason, lapsed))
}

func (w *harness) RuntimeCreating(_ context.Context, r device.Running) device.Readiness {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := w.stands[r.Container]
	if st.State == device.Ready || st.State == device.NoDevices {
		w.claims++
	}
	return st
}

func (w *harness) Readiness(c device.Container) device.Readiness {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stands[c]
}

func (w *harness) RuntimeAborted(device.Running) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.claims--
}

func (w *harness) set(s device.Readiness) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stands = map[device.Container]device.Readiness{main: s}
}

func (w *harness) Fetch(ctx context.Context, _ device.Pod) error { return w.fetch(ctx) }
func (w *harness) Bind(d device.PodDemand)                       { w.bound = append(w.bound, d) }
func (w *harness) DropLocal(uid device.PodUID)                   { w.dropped = append(w.dropped, uid) }
func (w *harness) RuntimeSynced(all []device.Running, local []device.PodDemand) {
	w.synced, w.local = all, local
}
func (w *harness) RuntimeInjected(r device.Running) { w.started = append(w.started, r) }
func (w *harness) RuntimeUnserved(r device.Running) { w.unserved = append(w.unserved, r) }
func (w *harness) RuntimeStopped(r device.Running)  { w.stopped = append(w.stopped, r) }
func (w *harness) RuntimeStarting(_ context.Context, r device.Running) error {
	w.starting = append(w.starting, r)
	return w.barred
}
func (w *harness) RuntimeRemoved(pod device.PodUID, sandbox string) {
	w.removed = append(w.removed, string(pod)+" "+sandbox)
}
func (w *harness) RuntimeLost() {}

func (w *harness) NotRedirected(p device.Pod, container string, still func() bool) {
	w.astray, w.still = append(w.astray, p.String()+"/"+container), still
}

func (w *harness) NotStarted(p device.Pod, container string, times int, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notStarted = append(w.notStarted, fmt.Sprintf("%s/%s %d: %s", p, container, times, why))
}

func (w *harness) NotSynchronized(why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unlisted = append(w.unlisted, why)
}

func (w *harness) Contradiction(p device.Pod, container string, conflicts []string) {
	for _, text := range conflicts {
		w.conflicts = append(w.conflicts, p.String()+"/"+container+": "+text)
	}
}

func (w *harness) Directory(pod device.Pod) (device.PluginDir, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noDirectory != nil {
		return device.PluginDir{}, w.noDirectory
	}
	d := device.PluginDir{Owner: pod, Sockets: "/own/" + string(pod.UID) + "/d", Registry: "/own/" + string(pod.UID) + "/r"}
	if w.dirs == nil {
		w.dirs = map[device.PodUID]device.PluginDir{}
	}
	w.dirs[pod.UID] = d
	return d, nil
}

func (w *harness) OwnDirectory(uid device.PodUID) (device.PluginDir, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	d, has := w.dirs[uid]
	return d, has
}

func (w *harness) PodGone(uid device.PodUID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.dirs, uid)
}

func (w *harness) PodsPresent(present func(device.PodUID) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.dirs, func(uid device.PodUID, _ device.PluginDir) bool { return !present(uid) })
}

var main = device.Container{Pod: "uid", Name: "main"}

func newPlugin(t testing.TB) (*plugin, *harness) {
	w := &harness{fetch: func(context.Context) error { return errors.New("the API server is away") }}
	p := &plugin{ifConnected: func(report func()) { report() }, Connection: New(Config{
		Socket: "unused", Index: "00", Allocator: w, Runtime: w, Pods: w, Notifier: w, Redirect: &Redirect{From: "/k/device-plugins", To: "/d"}, Dirs: w,
		MaxWait: 100 * time.Millisecond, Presence: NewPresence(), Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})}
	if _, err := p.Configure(context.Background(), "", "containerd", "v2.4.2"); err != nil {
		t.Fatal(err)
	}
	return p, w
}

func newChecks() *hostchecks.Checks { return hostchecks.New(slog.New(slog.DiscardHandler)) }

func sandbox() *api.PodSandbox {
	return &api.PodSandbox{Id: "s", Uid: "uid", Namespace: "ns", Name: "pod", Annotations: map[string]string{sourceKey: sourceAPI}}
}

func container() *api.Container {
	return &api.Container{Id: "c", PodSandboxId: "s", Name: "main", Env: []string{"PATH=/bin", "FROM_IMAGE=1", "FROM_POD=1"},
		Mounts: []*api.Mount{{Destination: "/dev/shm", Type: "tmpfs"}, {Destination: "/volume", Type: "bind"}}}
}

func ready() device.Readiness {
	return device.Readiness{State: device.Ready, Demand: device.Demand{Env: []string{"FROM_POD"}}, Assignment: device.Assignment{Container: main, Shares: []device.Share{{
		Resource: "a.com/x", IDs: []device.ID{"1", "2"},
		Grant: device.Grant{
			Env:         map[string]string{"FROM_IMAGE": "2", "FROM_POD": "2", "NEW": "2"},
			Nodes:       []device.Node{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "rw"}, {HostPath: "/dev/zero", ContainerPath: "/dev/y", Permissions: "r"}},
			Mounts:      []device.Mount{{HostPath: "/dev", ContainerPath: "/m", ReadOnly: true}, {HostPath: "/dev", ContainerPath: "/volume"}},
			CDI:         []string{"a.com/x=1"},
			Annotations: map[string]string{"k": "v"},
		}}}}}
}

func busy(done <-chan struct{}) device.Readiness {
	return device.Readiness{State: device.Pending, Done: done, Wait: device.Wait{Reason: device.Allocating, Message: "the allocation is in progress"}}
}

func TestInjection(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	w.set(ready())
	adj, _, err := p.CreateContainer(context.Background(), sandbox(), container())
	if err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	for _, kv := range adj.Env {
		env[kv.Key] = kv.Value
	}
	if want := map[string]string{"FROM_IMAGE": "2", "NEW": "2"}; !reflect.DeepEqual(env, want) {
		t.Errorf("environment %v, want %v", env, want)
	}
	if len(adj.Mounts) != 1 || adj.Mounts[0].Destination != "/m" || strings.Join(adj.Mounts[0].Options, ",") != "rbind,rprivate,ro" {
		t.Errorf("mounts %v", adj.Mounts)
	}
	if len(adj.CDIDevices) != 1 || adj.CDIDevices[0].Name != "a.com/x=1" {
		t.Errorf("CDI devices %v", adj.CDIDevices)
	}
	if d := adj.Linux.Devices; len(d) != 2 || d[0].Path != "/dev/x" || d[0].Major != 1 || d[0].Minor != 3 || d[1].Path != "/dev/y" || d[1].FileMode.Value != 0o666 {
		t.Errorf("devices %v", d)
	}
	// /dev/y may be read only: after the rule that NRI makes itself, one that denies all and one that allows to read.
	if r := adj.Linux.Resources.Devices; len(r) != 2 || r[0].Allow || r[0].Access != "rwm" || !r[1].Allow || r[1].Access != "r" || r[1].Minor.Value != 5 {
		t.Errorf("device rules %v", r)
	}
	var stamp map[string][]string
	if err := json.Unmarshal([]byte(adj.Annotations["devmgrd.io/assignment"]), &stamp); err != nil || !reflect.DeepEqual(stamp, map[string][]string{"a.com/x": {"1", "2"}}) || adj.Annotations["k"] != "v" {
		t.Errorf("annotations %v, %v", adj.Annotations, err)
	}
	if want := []device.Running{{ID: "c", Container: main, Sandbox: "s"}}; !reflect.DeepEqual(w.started, want) {
		t.Errorf("started %v, want %v", w.started, want)
	}
}

func TestContradictions_AreReported(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	st := ready()
	st.Assignment.Shares = append(st.Assignment.Shares, device.Share{
		Resource: "b.com/y", IDs: []device.ID{"1"}, Grant: device.Grant{Env: map[string]string{"NEW": "3"}},
	})
	w.set(st)
	if _, _, err := p.CreateContainer(t.Context(), sandbox(), container()); err != nil {
		t.Fatal(err)
	}
	want := []string{"ns/pod/main: environment variable NEW of b.com/y: another resource of the container sets it differently"}
	if !slices.Equal(w.conflicts, want) {
		t.Errorf("told %q, want %q", w.conflicts, want)
	}
}

func TestPrivilegedContainer_KeepsItsRules(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	w.set(ready())
	c := container()
	c.Linux = &api.LinuxContainer{Resources: &api.LinuxResources{Devices: []*api.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}}}
	adj, _, err := p.CreateContainer(context.Background(), sandbox(), c)
	if err != nil || len(adj.Linux.Devices) != 2 || len(adj.Linux.GetResources().GetDevices()) != 0 {
		t.Errorf("devices %v, rules %v, %v", adj.GetLinux().GetDevices(), adj.GetLinux().GetResources().GetDevices(), err)
	}
}

func TestOldRuntime_UnsupportedGrant_IsRefused(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"v2.1.9": "permissions", "v2.0.4": "CDI", "1.7.29": "CDI", "1.7.30": "permissions", "v2.2.0-rc.1": ""} {
		p, w := newPlugin(t)
		if _, err := p.Configure(context.Background(), "", "containerd", version); err != nil {
			t.Fatal(err)
		}
		st := ready()
		if want == "CDI" {
			st.Assignment.Shares[0].Grant.Nodes = nil
		}
		w.set(st)
		_, _, err := p.CreateContainer(context.Background(), sandbox(), container())
		if (err != nil) != (want != "") || want != "" && !strings.Contains(err.Error(), want) {
			t.Errorf("containerd %s: %v, want an error about %q", version, err, want)
		}
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		prepare func(*harness, *api.PodSandbox)
		want    string // in the error; empty: it passes
		waits   time.Duration
	}{
		{"asks for nothing", func(w *harness, _ *api.PodSandbox) { w.set(device.Readiness{State: device.NoDevices}) }, "", 0},
		{"waits", func(w *harness, _ *api.PodSandbox) {
			w.set(device.Readiness{State: device.Waiting, Wait: device.Wait{Reason: device.NotEnoughDevices, Message: "a.com/x: 1 wanted, 0 of 2 free"}})
		}, "container main of pod ns/pod cannot start yet: NotEnoughDevices: a.com/x: 1 wanted, 0 of 2 free", 0},
		{"in flight for long", func(w *harness, _ *api.PodSandbox) { w.set(busy(make(chan struct{}))) }, "Allocating", 100 * time.Millisecond},
		{"in flight for a moment", func(w *harness, _ *api.PodSandbox) {
			done := make(chan struct{})
			w.set(busy(done))
			time.AfterFunc(50*time.Millisecond, func() { w.set(ready()); close(done) })
		}, "", 50 * time.Millisecond},
		{"unknown, and the API server has it", func(w *harness, _ *api.PodSandbox) {
			w.fetch = func(context.Context) error { w.set(ready()); return nil }
		}, "", 0},
		{"unknown, and the API server is away", func(*harness, *api.PodSandbox) {}, "UnknownPod: the pod is not known: the API server is away", 0},
		{"unknown, and the API server hangs", func(w *harness, _ *api.PodSandbox) {
			w.fetch = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		}, "deadline", 300 * time.Millisecond},
		{"unknown still", func(w *harness, _ *api.PodSandbox) { w.fetch = func(context.Context) error { return nil } }, "UnknownPod", 0},
		{"a static pod", func(_ *harness, s *api.PodSandbox) { s.Annotations[sourceKey] = "file" }, "", 0},
		{"a static pod with a mirror", func(w *harness, s *api.PodSandbox) {
			s.Annotations[sourceKey] = "file"
			w.fetch = func(context.Context) error { w.set(busy(make(chan struct{}))); return nil }
		}, "Allocating", 100 * time.Millisecond},
		{"a static pod with an annotation", func(w *harness, s *api.PodSandbox) {
			s.Annotations = map[string]string{sourceKey: "file", resourcesKey: `{"main":{"a.com/x":1}}`}
			w.set(busy(make(chan struct{})))
		}, "Allocating", 100 * time.Millisecond},
		{"a static pod that the ledger lets go of", func(_ *harness, s *api.PodSandbox) {
			s.Annotations = map[string]string{sourceKey: "file", resourcesKey: `{"main":{"a.com/x":1}}`}
		}, "UnknownPod", 0},
		{"a static pod with an annotation that cannot be read", func(_ *harness, s *api.PodSandbox) {
			s.Annotations = map[string]string{sourceKey: "file", resourcesKey: `{"main":"a.com/x"}`}
		}, "UnknownPod: the pod's requests are not known: annotation devmgrd.io/resources: it cannot be read", 0},
		{"an annotation on a pod of the API server", func(w *harness, s *api.PodSandbox) {
			s.Annotations[resourcesKey] = "not read"
			w.set(device.Readiness{State: device.NoDevices})
		}, "", 0},
		{"no kubelet's pod", func(_ *harness, s *api.PodSandbox) { s.Annotations = nil }, "", 0},
		{"a panic", func(w *harness, _ *api.PodSandbox) { w.fetch = func(context.Context) error { panic("oh") } }, "internal error: oh", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, w := newPlugin(t)
				s := sandbox()
				test.prepare(w, s)
				start := time.Now()
				adj, _, err := p.CreateContainer(context.Background(), s, container())
				if took := time.Since(start); took != test.waits {
					t.Errorf("waited %s, want %s", took, test.waits)
				}
				switch {
				case test.want == "":
					if err != nil || adj == nil {
						t.Errorf("%v, %v; want an adjustment", adj, err)
					}
				case w.claims != 0:
					t.Errorf("%d claims stay after a refusal", w.claims)
				case err == nil || adj != nil || !strings.Contains(err.Error(), test.want):
					t.Errorf("%v, %v; want an error with %q", adj, err, test.want)
				}
			})
		})
	}
}

func TestRedirectIsPartOfTheAnswer(t *testing.T) {
	t.Parallel()
	for _, optOut := range []bool{false, true} {
		p, w := newPlugin(t)
		w.set(device.Readiness{State: device.NoDevices})
		s, c := sandbox(), container()
		if optOut {
			s.Annotations[redirectKey] = "false"
		}
		c.Mounts = []*api.Mount{{Type: "bind", Source: "/k/device-plugins", Destination: "/p", Options: []string{"rbind", "rprivate", "rw"}}}
		adj, _, err := p.CreateContainer(context.Background(), s, c)
		if err != nil {
			t.Fatal(err)
		}
		if redirected := len(adj.Mounts) == 1 && adj.Mounts[0].Source == "/d"; redirected == optOut {
			t.Errorf("opted out: %v, mounts %v", optOut, adj.Mounts)
		}
	}
}

// The kubelet maps the owners in the mount that is replaced. NRI does not show that, so the mount in its place gets them mapped too.
func TestRedirect_PluginHasUserNamespace_OwnersAreMapped(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	w.set(device.Readiness{State: device.NoDevices})
	c := container()
	c.Linux = &api.LinuxContainer{Namespaces: []*api.LinuxNamespace{{Type: "user", Path: "/proc/1/ns/user"}}}
	c.Mounts = []*api.Mount{
		{Type: "bind", Source: "/k/device-plugins", Destination: "/p", Options: []string{"rbind", "rprivate", "rw"}},
		{Type: "bind", Source: "/k/device-plugins", Destination: "/q", Options: []string{"idmap", "rbind"}},
		{Type: "bind", Source: "/k", Destination: "/k", Options: []string{"rbind", "ro"}},
	}
	adj, _, err := p.CreateContainer(t.Context(), sandbox(), c)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range adj.Mounts {
		got = append(got, m.Destination+" "+strings.Join(m.Options, ","))
	}
	if want := []string{"/p rbind,rprivate,rw,idmap", "/q idmap,rbind", "/k/device-plugins rbind,rprivate,ro,idmap"}; !slices.Equal(got, want) {
		t.Errorf("redirected to %q, want %q", got, want)
	}
}

func TestSynchronize_ReportsAllContainers(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	c := container()
	c.Annotations = map[string]string{stampKey: `{"a.com/x":["1"]}`}
	orphan := &api.Container{Id: "o", PodSandboxId: "gone", Name: "x", Labels: map[string]string{podUIDKey: "u2"}, Annotations: map[string]string{stampKey: "not JSON"}}
	c.Mounts = []*api.Mount{{Type: "bind", Source: "/k/device-plugins", Destination: "/p"}} // made while we were away
	led := container()
	led.State, led.CreatedAt = api.ContainerState_CONTAINER_CREATED, 7
	led.Id, led.Mounts = "led", []*api.Mount{{Type: "bind", Source: "/d", Destination: "/p"}}
	// NRI 0.12.5 adds empty entries when it splits a short list.
	if _, err := p.Synchronize(context.Background(), []*api.PodSandbox{{}, sandbox()}, []*api.Container{c, {}, orphan, led, {}}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"ns/pod/main"}; !slices.Equal(w.astray, want) {
		t.Errorf("not redirected: %q, want %q", w.astray, want)
	}
	want := []device.Running{
		{ID: "c", Container: main, Sandbox: "s", Stamp: map[device.ResourceName][]device.ID{"a.com/x": {"1"}}},
		{ID: "o", Container: device.Container{Pod: "u2", Name: "x"}, Sandbox: "gone"},
		{ID: "led", Container: main, Sandbox: "s", Made: time.Unix(0, 7), Idle: true},
	}
	if !reflect.DeepEqual(w.synced, want) {
		t.Errorf("synced %+v, want %+v", w.synced, want)
	}
	// In the events that end a container the pod may be missing.
	c.Annotations[sandboxUIDKey] = "uid"
	if _, err := p.StopContainer(context.Background(), nil, c); err != nil {
		t.Fatal(err)
	}
	if err := p.RemoveContainer(context.Background(), sandbox(), c); err != nil {
		t.Fatal(err)
	}
	if want := []device.Running{{ID: "c", Container: main, Sandbox: "s"}, {ID: "c", Container: main, Sandbox: "s"}}; !reflect.DeepEqual(w.stopped, want) {
		t.Errorf("stopped %v, want %v", w.stopped, want)
	}
}

// A container that ends while the runtime makes its list is in it, and no report of its end may follow.
func TestSynchronize_EndedContainers_AreLeftOut(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	var all []*api.Container
	for id, c := range map[string]*api.Container{
		"stopped":               {State: api.ContainerState_CONTAINER_STOPPED},
		"containerd 2.3: ended": {State: api.ContainerState_CONTAINER_UNKNOWN, FinishedAt: 7},
		"unknown":               {State: api.ContainerState_CONTAINER_UNKNOWN, FinishedAt: time.Time{}.UnixNano()},
	} {
		c.Id, c.PodSandboxId, c.Name = id, "s", "main"
		all = append(all, c)
	}
	if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{sandbox()}, all); err != nil {
		t.Fatal(err)
	}
	if len(w.synced) != 1 || w.synced[0].ID != "unknown" {
		t.Errorf("synced %+v, want only the container that may run", w.synced)
	}
	if !p.Presence.sandboxes.has("uid") {
		t.Error("the pod has no sandbox")
	}
}

// A container that was created without devmgrd is reported for as long as it runs.
func TestNotRedirected_UntilItEnds(t *testing.T) {
	t.Parallel()
	ours := func(id, sandbox string) *api.Container {
		c := container()
		c.Id, c.PodSandboxId = id, sandbox
		c.Mounts = []*api.Mount{{Type: "bind", Source: "/k/device-plugins", Destination: "/p"}}
		return c
	}
	ended := ours("ended", "s")
	ended.State = api.ContainerState_CONTAINER_STOPPED
	for name, end := range map[string]func(*plugin) error{
		"stopped": func(p *plugin) error { _, err := p.StopContainer(t.Context(), sandbox(), ours("c", "s")); return err },
		"removed": func(p *plugin) error { return p.RemoveContainer(t.Context(), nil, ours("c", "s")) },
		"sandbox": func(p *plugin) error { return p.RemovePodSandbox(t.Context(), sandbox()) },
		"no longer listed": func(p *plugin) error {
			_, err := p.Synchronize(t.Context(), []*api.PodSandbox{sandbox()}, []*api.Container{ended})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, w := newPlugin(t)
			if _, err := p.Synchronize(t.Context(), []*api.PodSandbox{sandbox()}, []*api.Container{ours("c", "s"), ended}); err != nil {
				t.Fatal(err)
			}
			want := []device.PodContainer{{Pod: device.Pod{UID: "uid", Namespace: "ns", Name: "pod"}, Name: "main"}}
			if got := p.notRedirected.list(); !slices.Equal(got, want) || p.notRedirected.count() != 1 || len(w.astray) != 1 || !w.still() {
				t.Errorf("%v, %v times, %q; want %v", got, p.notRedirected.count(), w.astray, want)
			}
			if _, err := p.StopContainer(t.Context(), sandbox(), ours("another", "s")); err != nil || !w.still() {
				t.Errorf("another one's end: %v, still %v", err, w.still())
			}
			if err := end(p); err != nil || len(p.notRedirected.list()) != 0 || p.notRedirected.count() != 0 || w.still() {
				t.Errorf("it has ended, and %v are left, %v", p.notRedirected.list(), err)
			}
		})
	}
}

func TestStartContainer(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	if err := p.StartContainer(t.Context(), sandbox(), container()); err != nil {
		t.Error(err)
	}
	for _, of := range []map[string]string{nil, {stampKey: `{"a.com/x":["1"]}`}} { // CRI-O copies the pod's annotations
		pod, ctr := sandbox(), container()
		pod.Annotations, ctr.Annotations = of, map[string]string{stampKey: `{"a.com/x":["1"]}`}
		if err := p.StartContainer(t.Context(), pod, ctr); err != nil {
			t.Error(err)
		}
		if n := len(w.starting) - 1; (len(w.starting[n].Stamp) == 1) != (of == nil) {
			t.Errorf("a container of a pod with the annotations %v starts with the stamp %v", of, w.starting[n].Stamp)
		}
	}
	w.starting = w.starting[:1]
	w.barred = errors.New("its devices are gone")
	err := p.StartContainer(t.Context(), nil, container())
	if err == nil || !strings.Contains(err.Error(), "container main") || !strings.Contains(err.Error(), "its devices are gone") {
		t.Errorf("%v, want the ledger's error", err)
	}
	if want := (device.Running{ID: "c", Container: main, Sandbox: "s"}); len(w.starting) != 2 || !reflect.DeepEqual(w.starting[0], want) {
		t.Errorf("starting %+v, want %+v", w.starting, want)
	}
}

func TestRemovePodSandbox_ReportsItsContainers(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	for _, event := range []func(context.Context, *api.PodSandbox) error{p.StopPodSandbox, p.RemovePodSandbox} {
		if err := event(t.Context(), sandbox()); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"uid s"}; !slices.Equal(w.removed, want) {
		t.Errorf("removed %q, want %q", w.removed, want)
	}
}

// A mount source that is missing is made for what a plugin has just granted, and is a refusal for what it granted before an
// earlier start: the plugin has to make it again.
func TestMountSourceGone_OfARememberedGrant_IsNotMade(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	gone := filepath.Join(t.TempDir(), "file")
	st := ready()
	st.Assignment.Shares[0].Grant = device.Grant{Mounts: []device.Mount{{HostPath: gone, ContainerPath: "/m"}}}
	w.set(st)
	_, _, err := p.CreateContainer(t.Context(), sandbox(), container())
	if err == nil || !strings.Contains(err.Error(), "HostDeviceMissing") || !strings.Contains(err.Error(), gone) {
		t.Errorf("the answer is %v", err)
	}
	if want := []string{"main HostDeviceMissing lapsed=true"}; !slices.Equal(w.refused, want) || w.claims != 0 {
		t.Errorf("the ledger heard %q, and %d claims stand", w.refused, w.claims)
	}
	if _, err := os.Lstat(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the source was made: %v", err)
	}
	st.Fresh = true
	w.set(st)
	if _, _, err := p.CreateContainer(t.Context(), sandbox(), container()); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(gone); err != nil || !info.IsDir() {
		t.Errorf("the source of a fresh grant was not made: %v", err)
	}
}
