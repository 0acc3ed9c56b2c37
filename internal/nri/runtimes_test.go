package nri

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Runtimes as they introduce themselves.
var (
	containerd17 = [2]string{"containerd", "1.7.35"}
	containerd20 = [2]string{"containerd", "v2.0.14"}
	containerd21 = [2]string{"containerd", "v2.1.9"}
	containerd22 = [2]string{"containerd", "v2.2.9"}
	crio133      = [2]string{"cri-o", "1.33.13"}
	crio136      = [2]string{"cri-o", "1.36.3"}
)

// createOn creates a container with the given devices in NRI's own adaptation under a runtime's name. It returns the adjustment of all
// plugins, or the refusal.
func createOn(t *testing.T, runtime [2]string, st device.Readiness, pod *api.PodSandbox, ctr *api.Container) (*api.ContainerAdjustment, error) {
	t.Helper()
	r, socket := runtimeNamed(t, runtime[0], runtime[1], func() ([]*api.PodSandbox, []*api.Container) { return nil, nil })
	l := connect(t, socket, startLimit)
	l.list(t)
	l.set(st)
	var answer *api.CreateContainerResponse
	var err error
	plugintest.Eventually(t, "the runtime asks devmgrd", func() bool { // it includes a plugin a moment after it has synchronized it
		answer, err = r.CreateContainer(context.Background(), &api.CreateContainerRequest{Pod: pod, Container: ctr})
		return err != nil || len(answer.GetAdjust().GetAnnotations()) > 0
	})
	return answer.GetAdjust(), err
}

// readyWith returns the devices of a container with one grant.
func readyWith(g device.Grant) device.Readiness {
	return device.Readiness{State: device.Ready, Assignment: device.Assignment{Container: main, Shares: []device.Share{{Resource: "a.com/x", IDs: []device.ID{"1"}, Grant: g}}}}
}

// CRI-O creates the kubelet's device nodes without a mode, so that users other than root can open them. containerd uses the host's.
func TestRuntimes_DeviceNode_HasTheModeOfTheKubelets(t *testing.T) {
	t.Parallel()
	g := device.Grant{Nodes: []device.Node{{HostPath: "/dev/null", ContainerPath: "/dev/x", Permissions: "rw"}}}
	for runtime, has := range map[[2]string]bool{containerd22: true, crio136: false} {
		adj, err := createOn(t, runtime, readyWith(g), sandbox(), container())
		if err != nil {
			t.Fatal(err)
		}
		if nodes := adj.GetLinux().GetDevices(); len(nodes) != 1 || nodes[0].GetPath() != "/dev/x" || (nodes[0].GetFileMode() != nil) != has {
			t.Errorf("%v: nodes %v, with a mode: %v", runtime, nodes, has)
		}
	}
}

// The files that CRI-O keeps for a sandbox are no volumes of the pod: a plugin's mounts replace and cover them.
func TestRuntimes_MountOverTheRuntimesFiles_IsMade(t *testing.T) {
	t.Parallel()
	const files = "/run/containers/storage/overlay-containers/s/userdata/"
	ctr := container()
	ctr.Mounts = []*api.Mount{
		{Destination: "/dev/shm", Type: "bind", Source: files + "shm"},
		{Destination: "/etc/hostname", Type: "bind", Source: files + "hostname"},
		{Destination: "/etc/hosts", Type: "bind", Source: "/var/lib/kubelet/pods/uid/etc-hosts"},
	}
	dir := t.TempDir()
	var g device.Grant
	for _, at := range []string{"/dev", "/etc/hostname", "/etc/hosts"} {
		g.Mounts = append(g.Mounts, device.Mount{HostPath: dir, ContainerPath: at})
	}
	adj, err := createOn(t, crio136, readyWith(g), sandbox(), ctr)
	if err != nil {
		t.Fatal(err)
	}
	var at []string
	for _, m := range adj.GetMounts() {
		at = append(at, m.GetDestination())
	}
	slices.Sort(at)
	if want := []string{"-/dev/shm", "/dev", "/etc/hostname"}; !slices.Equal(at, want) {
		t.Errorf("mounts at %q, want %q", at, want)
	}
}

// A runtime that ignores the command line of an answer would start the container with the text $(GPU).
func TestRuntimes_VariableInCommandLine_IsReplacedOrRefused(t *testing.T) {
	t.Parallel()
	st := readyWith(device.Grant{Env: map[string]string{"GPU": "7"}})
	st.Demand.Refs = []string{"GPU"}
	for runtime, works := range map[[2]string]bool{containerd17: false, containerd20: false, containerd21: false, containerd22: true, crio133: false, crio136: true} {
		ctr := container()
		ctr.Args = []string{"run", "$(GPU)"}
		adj, err := createOn(t, runtime, st, sandbox(), ctr)
		switch {
		case works && (err != nil || !slices.Equal(adj.GetArgs(), []string{"", "run", "7"}) && !slices.Equal(adj.GetArgs(), []string{"run", "7"})):
			t.Errorf("%v: the command line is %q (%v)", runtime, adj.GetArgs(), err)
		case !works && (err == nil || !strings.Contains(err.Error(), "PluginError") || !strings.Contains(err.Error(), "command line")):
			t.Errorf("%v: %v, want a refusal", runtime, err)
		}
		ctr.Args = []string{"run", "$(OTHER)"}
		if _, err := createOn(t, runtime, st, sandbox(), ctr); err != nil {
			t.Errorf("%v: a command line without the variable is refused: %v", runtime, err)
		}
	}
}

// A CDI device wins over a plain grant at its path on every runtime that injects CDI devices, also without device rules.
func TestRuntimes_CDIDeviceAndPlainGrant_CDIDeviceWins(t *testing.T) {
	specs := t.TempDir()
	if err := os.WriteFile(filepath.Join(specs, "a.json"), []byte(`{"cdiVersion": "0.6.0", "kind": "a.com/x", "devices": [{"name": "1", "containerEdits": {
		"deviceNodes": [{"path": "/dev/x", "hostPath": "/dev/null", "permissions": "rw"}], "mounts": [{"hostPath": "/tmp", "containerPath": "/m"}]}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	before := cdiDirs // of all tests: this one is not parallel
	cdiDirs = []string{specs}
	t.Cleanup(func() { cdiDirs = before })
	grant := func(host string) device.Readiness {
		return readyWith(device.Grant{CDI: []string{"a.com/x=1"}, Nodes: []device.Node{{HostPath: host, ContainerPath: "/dev/x", Permissions: "rwm"}},
			Mounts: []device.Mount{{HostPath: "/usr", ContainerPath: "/m"}, {HostPath: "/usr", ContainerPath: "/other"}}})
	}
	for runtime, rules := range map[[2]string]bool{containerd17: false, containerd21: false, containerd22: true, crio136: true} {
		adj, err := createOn(t, runtime, grant("/dev/null"), sandbox(), container())
		if err != nil {
			t.Fatalf("%v: %v", runtime, err)
		}
		if m := adj.GetMounts(); len(adj.GetLinux().GetDevices()) != 0 || len(m) != 1 || m[0].GetDestination() != "/other" {
			t.Errorf("%v: nodes %v and mounts %v take the CDI device's place", runtime, adj.GetLinux().GetDevices(), m)
		}
		// Another device at the same path: without rules the container could not be allowed to use it.
		if _, err := createOn(t, runtime, grant("/dev/zero"), sandbox(), container()); (err == nil) != rules || err != nil && !strings.Contains(err.Error(), "/dev/x") {
			t.Errorf("%v: another device at the CDI device's path: %v", runtime, err)
		}
	}
}

// A release that does not report its OCI runtimes' support may have one that ignores the option: the container would start with mounts
// that it cannot read.
func TestRuntimes_MountInUserNamespace_IsMappedOrRefused(t *testing.T) {
	t.Parallel()
	st := readyWith(device.Grant{Mounts: []device.Mount{{HostPath: t.TempDir(), ContainerPath: "/m"}}})
	for runtime, works := range map[[2]string]bool{containerd17: false, containerd20: true, containerd22: true, crio133: true, crio136: true, {"other", "9.9"}: false} {
		ctr := container()
		ctr.Linux = &api.LinuxContainer{Namespaces: []*api.LinuxNamespace{{Type: "user", Path: "/proc/1/ns/user"}}}
		adj, err := createOn(t, runtime, st, sandbox(), ctr)
		switch {
		case works && (err != nil || len(adj.GetMounts()) != 1 || !slices.Contains(adj.Mounts[0].Options, "idmap")):
			t.Errorf("%v: the mounts are %v (%v)", runtime, adj.GetMounts(), err)
		case !works && (err == nil || !strings.Contains(err.Error(), "PluginError") || !strings.Contains(err.Error(), "user namespace")):
			t.Errorf("%v: %v, want a refusal", runtime, err)
		}
	}
}

// CRI-O takes a container's name from the kubelet's label. Without Kubernetes it is in an annotation of CRI-O, or missing: then the
// container must not start without the devices that its pod's annotation requests.
func TestRuntimes_ContainerWithoutName_IsFoundOrRefused(t *testing.T) {
	t.Parallel()
	for metadata, starts := range map[string]bool{`{"name":"a","attempt":1}`: true, "": false, "{": false} {
		p, w := newPlugin(t)
		c := container()
		c.Name, c.Annotations = "", map[string]string{crioMetadataKey: metadata}
		named := running(static("s1"), c).Container
		w.stands = map[device.Container]device.Readiness{named: {State: device.NoDevices}}
		_, _, err := p.CreateContainer(t.Context(), static("s1"), c)
		if (err == nil) != starts {
			t.Errorf("metadata %q: %v", metadata, err)
		}
		if starts && named.Name != "a" {
			t.Errorf("the container is named %q", named.Name)
		}
	}
}

// CRI-O reports nothing of a container that it could not create. The next one of that name is the report.
func TestRuntimes_ContainerIsNotCreated_EndIsReportedOnce(t *testing.T) {
	t.Parallel()
	for runtime, reports := range map[[2]string]bool{containerd22: false, crio136: true} {
		for _, st := range []device.Readiness{ready(), {State: device.NoDevices}, {State: device.Unknown}} {
			for i := range st.Assignment.Shares {
				st.Assignment.Shares[i].Grant.Nodes, st.Assignment.Shares[i].Grant.CDI = nil, nil
			}
			p, w := newPlugin(t)
			if _, err := p.Configure(t.Context(), "", runtime[0], runtime[1]); err != nil {
				t.Fatal(err)
			}
			w.set(st)
			pod := sandbox()
			if st.State == device.Unknown { // a static pod, which starts all the same
				pod.Annotations[sourceKey] = "file"
			}
			create := func(id string) *api.Container {
				c := container()
				c.Id = id
				if _, _, err := p.CreateContainer(t.Context(), pod, c); err != nil {
					t.Fatal(err)
				}
				return c
			}
			create("1")
			overruled := &api.ValidateContainerAdjustmentRequest{Pod: pod, Container: create("2"), Adjust: &api.ContainerAdjustment{}}
			if err := p.ValidateContainerAdjustment(t.Context(), overruled); (err == nil) == (st.State == device.Ready) {
				t.Fatal(err)
			}
			if err := p.StartContainer(t.Context(), pod, create("3")); err != nil {
				t.Fatal(err)
			}
			create("4")
			w.set(device.Readiness{State: device.Waiting})
			for range 2 {
				c := container()
				c.Id = "5"
				if _, _, err := p.CreateContainer(t.Context(), pod, c); err == nil {
					t.Fatal("a container that waits is created")
				}
			}
			var got, want []string
			for _, c := range w.stopped {
				got = append(got, c.ID)
			}
			if reports {
				want = []string{"1", "2", "4"}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%v, %v: the ends of %q are reported, want %q", runtime, st.State, got, want)
			}
			if n := len(p.answers.all); reports && n > 1 {
				t.Errorf("%v: %d answers are kept", runtime, n)
			}
		}
	}
}

// containerd 2.1 to 2.3 name a container that they restore from a checkpoint "containerd". Its label has the name.
func TestRuntimes_RestoredContainerWithAnotherName_GetsItsDevices(t *testing.T) {
	t.Parallel()
	p, w := newPlugin(t)
	w.set(ready())
	c := container()
	c.Name, c.Labels = "containerd", map[string]string{nameKey: main.Name}
	adj, _, err := p.CreateContainer(t.Context(), sandbox(), c)
	if err != nil || len(adj.GetAnnotations()[stampKey]) == 0 {
		t.Errorf("the answer is %v (%v), without the devices", adj, err)
	}
}

// containerd 2.1 to 2.3 report no start of a restored container. An annotation of its pod, which other runtimes copy, says nothing.
func TestRuntimes_RestoredContainer_HasNoStart(t *testing.T) {
	t.Parallel()
	for _, restored := range []bool{true, false} {
		p, w := newPlugin(t)
		pod, c := sandbox(), container()
		c.Annotations = map[string]string{restoredKey: "true"}
		if !restored {
			pod.Annotations[restoredKey] = "true"
		}
		for id := range 5 {
			w.set(ready())
			c.Id = fmt.Sprint("c", id)
			if _, _, err := p.CreateContainer(t.Context(), pod, c); err != nil {
				t.Fatal(err)
			}
			if w.started[id].Restored != restored {
				t.Errorf("created as restored: %v, want %v", !restored, restored)
			}
		}
		if restored != (len(w.notStarted) == 0) {
			t.Errorf("restored: %v, and reported as not started: %q", restored, w.notStarted)
		}
	}
}

// The stub's table of releases wants a v before the version, which CRI-O's does not have. Nothing depends on it.
func TestRuntimes_VersionOfCRIO_IsNoWarning(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	l := logger{slog.New(slog.NewTextHandler(&text, nil))}
	l.Warnf(t.Context(), "failed to infer runtime NRI version: %v", "x")
	if text.Len() > 0 {
		t.Errorf("logged %s", text.String())
	}
	l.Warnf(t.Context(), "another")
	if !strings.Contains(text.String(), "WARN") {
		t.Errorf("logged %q, want a warning", text.String())
	}
}

// What a release cannot do is reported with the runtime's name, for status and page.
func TestRuntimes_Limits(t *testing.T) {
	t.Parallel()
	for runtime, want := range map[[2]string]int{containerd17: 4, containerd20: 4, containerd21: 3, containerd22: 0, crio133: 4, crio136: 0} {
		_, socket := runtimeNamed(t, runtime[0], runtime[1], func() ([]*api.PodSandbox, []*api.Container) { return nil, nil })
		l := connect(t, socket, startLimit)
		l.list(t)
		limits := l.connection.Limits()
		if len(limits) != want || want > 0 && limits[0].Release != runtime[0]+" "+runtime[1] {
			t.Errorf("%v: the limits %q, want %d", runtime, limits, want)
		}
	}
	if limits := (&Connection{}).Limits(); limits != nil {
		t.Errorf("without a runtime: %q", limits)
	}
}
