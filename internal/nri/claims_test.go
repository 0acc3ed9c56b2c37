package nri

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	oci "github.com/opencontainers/runtime-spec/specs-go"
	library "tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
)

// A claimWorld is a plugin of the runtime, an allocator with one container, and the CDI files of its claims.
type claimWorld struct {
	*harness
	t       *testing.T
	plugin  *plugin
	files   *cdi.Files
	dir     string
	outdate int
	used    int // files that are written again
}

func (w *claimWorld) Snapshot() *device.Snapshot                       { return &device.Snapshot{} }
func (w *claimWorld) ChangesSince(uint64, int) ([]device.Change, bool) { return nil, true }
func (w *claimWorld) Updated() <-chan struct{}                         { return nil }
func (w *claimWorld) File(of device.ClaimRequest) (cdi.File, bool)     { return w.files.File(of) }
func (w *claimWorld) Devices(names []string) map[device.ResourceName][]device.ID {
	return w.files.Devices(names)
}
func (w *claimWorld) SetHook(cdi.Hook, int32)         {}
func (w *claimWorld) Used(all ...device.ClaimRequest) { w.used += len(all) }
func (w *claimWorld) Outdated(device.Container)       { w.outdate++ }

// by is the request by which the container has its devices.
var by = device.ClaimRequest{Claim: "claim-1", Request: "gpu"}

const byName = "devmgrd.io/claim=claim-1_gpu_dev-0"

// claiming is a container whose grant a file can say.
func claiming() device.Readiness {
	return device.Readiness{
		State: device.Ready, Pod: device.Pod{UID: "uid", Namespace: "ns", Name: "pod"},
		Demand: device.Demand{Container: main, Env: []string{"FROM_POD"}, Volumes: []string{"/volume"}, Requests: map[device.ResourceName][]device.ClaimRequest{"a.com/x": {by}}},
		Assignment: device.Assignment{Container: main, Shares: []device.Share{{Resource: "a.com/x", IDs: []device.ID{"1"}, Grant: device.Grant{
			Env:    map[string]string{"NEW": "2", "FROM_POD": "2"},
			Nodes:  []device.Node{{HostPath: "/dev/zero", ContainerPath: "/dev/x", Permissions: "r"}},
			Mounts: []device.Mount{{HostPath: "/usr", ContainerPath: "/m", ReadOnly: true}, {HostPath: "/usr", ContainerPath: "/volume"}},
		}}}},
	}
}

// newClaims has the kubelet prepare the container's claim.
func newClaims(t *testing.T, st device.Readiness) *claimWorld {
	t.Helper()
	p, h := newPlugin(t)
	w := &claimWorld{harness: h, t: t, plugin: p, dir: t.TempDir()}
	w.set(st)
	w.files, p.Claims = cdi.New(cdi.Config{Dir: w.dir, Boot: "boot", Allocator: w, Grants: p.grants, Log: slog.New(slog.DiscardHandler)}), w
	w.files.SetHook(cdi.Hidden, 0)
	w.prepare()
	return w
}

func (w *claimWorld) prepare() {
	w.t.Helper()
	var all []cdi.Device
	st := w.Readiness(main)
	for i, of := range st.Demand.ClaimRequests() {
		all = append(all, cdi.Device{Request: of.Request, Name: fmt.Sprint("dev-", i), Resource: "a.com/x", ID: "1"})
	}
	if _, err := w.files.Prepare(w.t.Context(), cdi.Claim{UID: "claim-1", Devices: all, Users: []device.Container{main}}); err != nil {
		w.t.Fatal(err)
	}
}

// container is what the runtime shows of a container for which the kubelet names CDI devices.
func (w *claimWorld) container(names ...string) *api.Container {
	w.t.Helper()
	ctr := container()
	spec := &oci.Spec{Process: &oci.Process{Env: ctr.Env}, Linux: &oci.Linux{}}
	c, err := library.NewCache(library.WithSpecDirs(w.dir), library.WithAutoRefresh(false))
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := c.InjectDevices(spec, names...); err != nil {
		w.t.Fatal(err)
	}
	ctr.Env, ctr.Linux = spec.Process.Env, &api.LinuxContainer{}
	for _, m := range spec.Mounts {
		ctr.Mounts = append(ctr.Mounts, &api.Mount{Destination: m.Destination, Source: m.Source, Type: m.Type, Options: m.Options})
	}
	for _, d := range spec.Linux.Devices {
		ctr.Linux.Devices = append(ctr.Linux.Devices, &api.LinuxDevice{Path: d.Path, Type: d.Type, Major: d.Major, Minor: d.Minor})
	}
	for _, name := range names {
		ctr.CDIDevices = append(ctr.CDIDevices, &api.CDIDevice{Name: name})
	}
	return ctr
}

// create creates a container, and returns the reason why that is refused.
func (w *claimWorld) create(ctr *api.Container) (*api.ContainerAdjustment, device.Reason) {
	w.t.Helper()
	adj, _, err := w.plugin.CreateContainer(context.Background(), sandbox(), ctr)
	no := new(device.Refusal)
	switch {
	case err == nil:
		return adj, ""
	case !errors.As(err, &no):
		w.t.Fatal(err)
	}
	return adj, no.Reason
}

// The runtime has given the container all that it gets: devmgrd adds nothing but its annotation.
func TestClaim_InjectedByTheRuntime_IsOnlyStamped(t *testing.T) {
	t.Parallel()
	w := newClaims(t, claiming())
	adj, why := w.create(w.container(byName))
	if why != "" {
		t.Fatal(why)
	}
	if len(adj.Env)+len(adj.Mounts)+len(adj.CDIDevices) > 0 || adj.Linux != nil || adj.Annotations[stampKey] != `{"a.com/x":["1"]}` {
		t.Errorf("devmgrd adds %v", adj)
	}
	ctr := w.container(byName)
	if v := viewOf(ctr); v.env["NEW"] != "2" || v.env["FROM_POD"] != "1" || v.mounts["/m"] != "/usr" || v.mounts["/volume"] != "" || v.nodes["/dev/x"] != (cdi.Number{1, 5}) {
		t.Errorf("the runtime adds %+v", v)
	}
}

// What a file cannot say, devmgrd injects, and the guard is gone.
func TestClaim_FileCannotSayIt_IsInjectedByTheHook(t *testing.T) {
	t.Parallel()
	grant := func(st *device.Readiness) *device.Grant { return &st.Assignment.Shares[0].Grant }
	for name, change := range map[string]func(*device.Readiness){
		"an annotation":              func(st *device.Readiness) { grant(st).Annotations = map[string]string{"k": "v"} },
		"a reference in the command": func(st *device.Readiness) { st.Demand.Refs = []string{"NEW"} },
		"two requests": func(st *device.Readiness) {
			st.Demand.Requests["a.com/x"] = []device.ClaimRequest{by, {Claim: "claim-1", Request: "more"}}
		},
		"a request by number": func(st *device.Readiness) {
			st.Assignment.Shares = append(st.Assignment.Shares, device.Share{Resource: "b.com/y", IDs: []device.ID{"1"}})
		},
		"two resources that differ": func(st *device.Readiness) {
			st.Demand.Requests["b.com/y"] = []device.ClaimRequest{by}
			st.Assignment.Shares = append(st.Assignment.Shares, device.Share{Resource: "b.com/y", IDs: []device.ID{"1"}, Grant: device.Grant{Env: map[string]string{"NEW": "3"}}})
		},
		"preparation before each start": func(st *device.Readiness) { st.Assignment.Shares[0].PreStart = true },
		"users of its own":              func(st *device.Readiness) { st.OwnUsers = true },
		"a mount over the runtime's": func(st *device.Readiness) {
			grant(st).Mounts = []device.Mount{{HostPath: "/usr", ContainerPath: "/dev"}}
		},
		"a CDI device that is missing": func(st *device.Readiness) { grant(st).CDI = []string{"a.com/x=missing"} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := claiming()
			st.Demand.Requests = maps.Clone(st.Demand.Requests)
			change(&st)
			w := newClaims(t, st)
			names := []string{byName}
			if len(st.Demand.ClaimRequests()) > 1 {
				names = append(names, "devmgrd.io/claim=claim-1_more_dev-1")
			}
			ctr := w.container(names...)
			if len(guards(ctr)) != len(names) || viewOf(ctr).env["NEW"] != "" {
				t.Fatalf("the runtime adds %v", ctr)
			}
			adj, why := w.create(ctr)
			if why != "" {
				t.Fatal(why)
			}
			if !slices.ContainsFunc(adj.Env, func(e *api.KeyValue) bool { return e.Key == "NEW" }) || adj.Annotations[stampKey] == "" {
				t.Errorf("devmgrd adds %v", adj)
			}
			for _, of := range guards(ctr) {
				if !slices.ContainsFunc(adj.Mounts, func(m *api.Mount) bool {
					at, removed := m.IsMarkedForRemoval()
					return removed && at == cdi.GuardPath(of)
				}) {
					t.Errorf("the guard of %v stays", of)
				}
			}
		})
	}
}

// The kubelet's mapping and devmgrd's differ: the container is refused, whichever is wrong.
func TestClaim_MappingsDiffer_IsRefused(t *testing.T) {
	t.Parallel()
	nothing := device.Readiness{State: device.NoDevices}
	for name, test := range map[string]struct {
		st      func() device.Readiness
		spoil   func(*claimWorld, *api.Container)
		runtime string
		want    device.Reason
		// renumbered: the file is right, and the runtime has to read it again
		renumbered bool
	}{
		"no CDI device": {spoil: func(w *claimWorld, ctr *api.Container) {
			bare := container()
			ctr.CDIDevices, ctr.Env, ctr.Mounts, ctr.Linux = nil, bare.Env, bare.Mounts, nil
		}, want: device.ClaimMismatch},
		"no CDI device, in a runtime that shows none": {spoil: func(w *claimWorld, ctr *api.Container) {
			bare := container()
			ctr.CDIDevices, ctr.Env, ctr.Mounts, ctr.Linux = nil, bare.Env, bare.Mounts, nil
		}, runtime: "2.2.0", want: device.ClaimMismatch},
		"named, and not applied": {spoil: func(w *claimWorld, ctr *api.Container) { ctr.Env = container().Env }, want: device.ClaimMismatch},
		"a mount is missing": {spoil: func(w *claimWorld, ctr *api.Container) {
			ctr.Mounts = container().Mounts
		}, want: device.ClaimMismatch},
		"a device node is missing": {spoil: func(w *claimWorld, ctr *api.Container) { ctr.Linux = nil }, want: device.ClaimMismatch},
		"a device node has another number": {spoil: func(w *claimWorld, ctr *api.Container) {
			for _, d := range ctr.Linux.Devices {
				d.Minor++
			}
		}, want: device.Allocating, renumbered: true},
		"another claim's": {spoil: func(w *claimWorld, ctr *api.Container) {
			ctr.CDIDevices = append(ctr.CDIDevices, &api.CDIDevice{Name: "devmgrd.io/claim=claim-2_gpu_dev-0"})
		}, want: device.ClaimMismatch},
		"another claim's guard": {spoil: func(w *claimWorld, ctr *api.Container) {
			ctr.Mounts = append(ctr.Mounts, &api.Mount{Destination: cdi.GuardPath(device.ClaimRequest{Claim: "claim-2", Request: "gpu"})})
		}, want: device.ClaimMismatch},
		"an annotation": {spoil: func(w *claimWorld, ctr *api.Container) {
			ctr.Annotations = map[string]string{"cdi.k8s.io/x": "a.com/x=1," + byName}
		}, want: device.ClaimMismatch},
		"a variable of NVIDIA's runtime": {spoil: func(w *claimWorld, ctr *api.Container) {
			ctr.Env = append(ctr.Env, "NVIDIA_VISIBLE_DEVICES=0, "+byName)
		}, want: device.ClaimMismatch},
		"a mount of NVIDIA's runtime": {spoil: func(w *claimWorld, ctr *api.Container) {
			ctr.Mounts = append(ctr.Mounts, &api.Mount{Source: "/dev/null", Destination: "/var/run/nvidia-container-devices//cdi/" + strings.Replace(byName, "=", "/", 1)})
		}, want: device.ClaimMismatch},
		"an older mount of NVIDIA's runtime": {spoil: func(w *claimWorld, ctr *api.Container) {
			ctr.Mounts = append(ctr.Mounts, &api.Mount{Source: "/dev/null", Destination: "/var/run/nvidia-container-devices/" + byName})
		}, want: device.ClaimMismatch},
		"a container without devices": {st: func() device.Readiness { return nothing }, spoil: func(*claimWorld, *api.Container) {}, want: device.ClaimMismatch},
		"the plugin has granted something else since": {spoil: func(w *claimWorld, _ *api.Container) {
			st := claiming()
			st.Assignment.Shares[0].Grant.Env = map[string]string{"NEW": "3"}
			w.set(st)
		}, want: device.Allocating},
		"the file was lost": {spoil: func(w *claimWorld, _ *api.Container) {
			w.files = cdi.New(cdi.Config{Dir: filepath.Join(w.dir, "empty"), Allocator: w, Grants: w.plugin.grants, Log: slog.New(slog.DiscardHandler)})
		}, want: device.Allocating},
		"no claims are served": {spoil: func(w *claimWorld, _ *api.Container) { w.plugin.Claims = nil }, want: device.ClaimMismatch},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newClaims(t, claiming())
			if test.runtime != "" {
				if _, err := w.plugin.Configure(context.Background(), "", "containerd", test.runtime); err != nil {
					t.Fatal(err)
				}
			}
			ctr := w.container(byName)
			if test.st != nil {
				w.set(test.st())
			}
			test.spoil(w, ctr)
			if _, why := w.create(ctr); why != test.want {
				t.Errorf("it is refused for %q, want %q", why, test.want)
			}
			if (test.want == device.Allocating && !test.renumbered) != (w.outdate == 1) || test.renumbered && w.used != 1 {
				t.Errorf("%d times a file is compared, %d times written again", w.outdate, w.used)
			}
		})
	}
}

// The kubelet names the plugin's CDI devices as well: they are injected once.
func TestClaim_CDIDevicesOfThePlugin_AreInjectedOnce(t *testing.T) {
	t.Parallel()
	st := claiming()
	grant := &st.Assignment.Shares[0].Grant
	grant.CDI, grant.Annotations = []string{"a.com/x=1"}, map[string]string{"k": "v"}
	w := newClaims(t, st)
	ctr := w.container(byName)
	ctr.CDIDevices = append(ctr.CDIDevices, &api.CDIDevice{Name: "a.com/x=1"})
	adj, why := w.create(ctr)
	if why != "" || len(adj.CDIDevices) > 0 || adj.Annotations["k"] != "v" {
		t.Errorf("devmgrd adds %v, %s", adj, why)
	}
	if adj, why := w.create(w.container(byName)); why != "" || len(adj.CDIDevices) != 1 {
		t.Errorf("to a container without it devmgrd adds %v, %s", adj, why)
	}
}

// A container that was created while devmgrd was away has the devices of its CDI devices.
func TestSynchronize_CreatedAlone_HasItsDevices(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v2.4.2", "2.2.0"} {
		w := newClaims(t, claiming())
		if _, err := w.plugin.Configure(context.Background(), "", "containerd", version); err != nil {
			t.Fatal(err)
		}
		alone := w.container(byName)
		bare := container()
		bare.Id = "bare"
		if version == "2.2.0" {
			alone.CDIDevices = nil
		}
		if _, err := w.plugin.Synchronize(context.Background(), []*api.PodSandbox{sandbox()}, []*api.Container{alone, bare}); err != nil {
			t.Fatal(err)
		}
		all := w.synced
		if len(all) != 2 || !slices.Equal(all[0].Stamp["a.com/x"], []device.ID{"1"}) || all[1].Stamp != nil {
			t.Errorf("%s: the allocator hears of %+v", version, all)
		}
	}
}

// assigned is a kubelet that has assigned devices to the container main.
func assigned(to device.Choice) Kubelets {
	all := &device.Kubelets{Pods: map[device.PodUID]map[string]device.Choice{main.Pod: {main.Name: to}}}
	return func() *device.Kubelets { return all }
}

// A container that the kubelet's device manager has served, before devmgrd came to the node, has those devices. devmgrd's own word counts more.
func TestSynchronize_MadeBeforeDevmgrdCame_HasTheKubeletsDevices(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	p.Kubelets = assigned(device.Choice{"a.com/x": {"7"}})
	bare, stamped, other := container(), container(), container()
	stamped.Annotations = map[string]string{stampKey: `{"a.com/x":["1"]}`}
	other.Name = "other"
	if _, err := p.Synchronize(context.Background(), []*api.PodSandbox{sandbox()}, []*api.Container{bare, stamped, other}); err != nil {
		t.Fatal(err)
	}
	var got []device.ID
	for _, r := range w.synced {
		got = append(got, r.Stamp["a.com/x"]...)
	}
	if want := []device.ID{"7", "1"}; !slices.Equal(got, want) {
		t.Errorf("devices %q, want %q: %+v", got, want, w.synced)
	}
}

// A container that has one resource by devmgrd may have another by the kubelet, with which its plugin stayed until now.
func TestSynchronize_StampedAndServedByTheKubelet_HasBoth(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pod, stamp string
		want       device.Choice
	}{
		{"", `{"a.com/x":["1"]}`, device.Choice{"a.com/x": {"1"}, "a.com/y": {"7"}}},
		{"", `{"a.com/x":{"count":2,"sha256":"abc"}}`, device.Choice{"a.com/y": {"7"}}},
		{`{"a.com/x":["1"],"a.com/z":["2"]}`, `{"a.com/x":["1"],"a.com/z":["2"]}`, device.Choice{"a.com/x": {"8"}, "a.com/y": {"7"}, "a.com/z": {"2"}}}, // a copy, which the pod's author wrote
	} {
		p, w := newPlugin(t)
		p.Kubelets = assigned(device.Choice{"a.com/x": {"8"}, "a.com/y": {"7"}})
		pod, ctr := sandbox(), container()
		pod.Annotations[stampKey] = test.pod
		ctr.Annotations = map[string]string{stampKey: test.stamp}
		if _, err := p.Synchronize(context.Background(), []*api.PodSandbox{pod}, []*api.Container{ctr}); err != nil {
			t.Fatal(err)
		}
		if len(w.synced) != 1 || !maps.EqualFunc(w.synced[0].Stamp, test.want, slices.Equal) {
			t.Errorf("%s: the allocator hears of %+v, want %v", test.stamp, w.synced, test.want)
		}
	}
}

// Device nodes are looked up when the container is created: numbers change with a driver.
func TestGrants_DeviceNode_HasNoNumber(t *testing.T) {
	t.Parallel()
	got, err := NewGrants(nil, slog.New(slog.DiscardHandler)).Grants(t.Context(), claiming())
	if err != nil {
		t.Fatal(err)
	}
	n := got[by].Edits.DeviceNodes
	if len(n) != 1 || n[0].Major != 0 || n[0].Type != "" || n[0].HostPath != "/dev/zero" || n[0].Path != "/dev/x" || n[0].Permissions != "r" || *n[0].FileMode != 0o666 {
		t.Errorf("the file has %+v", n)
	}
	if e := got[by].Edits.Env; !slices.Equal(e, []string{"NEW=2"}) {
		t.Errorf("variables %v", e)
	}
	if _, err := os.Stat("/dev/zero"); err != nil || strings.Contains(fmt.Sprint(got), "/volume") {
		t.Errorf("the pod's volume is covered: %v", got)
	}
}

// The plugin grants nothing but a CDI device of its own, and the kubelet does not name it: devmgrd adds it. The test is not parallel: it sets the directories.
func TestClaim_CDIDeviceOfThePluginOnly_IsNeverMissing(t *testing.T) {
	before := cdiDirs
	t.Cleanup(func() { cdiDirs = before })
	cdiDirs = []string{t.TempDir()}
	spec := `{"cdiVersion":"0.5.0","kind":"a.com/x","devices":[{"name":"1","containerEdits":{"deviceNodes":[{"path":"/dev/theirs","hostPath":"/dev/zero"}]}}]}`
	if err := os.WriteFile(filepath.Join(cdiDirs[0], "x.json"), []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	st := claiming()
	st.Assignment.Shares[0].Grant = device.Grant{CDI: []string{"a.com/x=1"}}
	for _, version := range []string{"2.1.0", "2.2.0", "v2.4.2"} {
		for _, given := range []bool{false, true} {
			w := newClaims(t, st)
			if _, err := w.plugin.Configure(context.Background(), "", "containerd", version); err != nil {
				t.Fatal(err)
			}
			ctr := w.container(byName)
			if given {
				ctr.Linux.Devices = append(ctr.Linux.Devices, &api.LinuxDevice{Path: "/dev/theirs", Type: "c", Major: 1, Minor: 5})
				ctr.CDIDevices = append(ctr.CDIDevices, &api.CDIDevice{Name: "a.com/x=1"})
			}
			if version != "v2.4.2" {
				ctr.CDIDevices = nil
			}
			adj, why := w.create(ctr)
			if why != "" || (len(adj.CDIDevices) == 0) != given {
				t.Errorf("%s, given %v: %v, %s", version, given, adj, why)
			}
		}
	}
}

// A container with a guard that is refused is one that the runtime has looked for, too.
func TestClaim_GuardedAndRefused_FileIsWrittenAgain(t *testing.T) {
	t.Parallel()
	st := claiming()
	st.Assignment.Shares[0].Grant.Annotations = map[string]string{"k": "v"}
	w := newClaims(t, st)
	ctr := w.container(byName)
	w.set(busy(nil))
	if _, _, err := w.plugin.CreateContainer(context.Background(), sandbox(), ctr); err == nil || w.used != 1 {
		t.Errorf("%v, %d files are written again", err, w.used)
	}
}
