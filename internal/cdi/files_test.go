package cdi_test

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
	"slices"
	"strings"
	"sync"
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	library "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/devmgrd/devmgrd/internal/cdi"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

const (
	gpu = device.ResourceName("vendor.example/gpu")
	nic = device.ResourceName("vendor.example/nic")
)

// A node is an allocator, what its containers get, and a directory of CDI files.
type node struct {
	t   testing.TB
	dir string

	mu       sync.Mutex
	stands   map[device.Container]device.Readiness
	grants   map[device.Container]map[device.ClaimRequest]cdi.Grant // missing: the container needs devmgrd
	fails    error                                                  // of Grants
	changes  []device.Change
	updated  chan struct{}
	messages strings.Builder
}

func newNode(t testing.TB) *node {
	return &node{t: t, dir: t.TempDir(), stands: map[device.Container]device.Readiness{}, grants: map[device.Container]map[device.ClaimRequest]cdi.Grant{}, updated: make(chan struct{})}
}

func (n *node) Readiness(c device.Container) device.Readiness {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stands[c]
}

func (n *node) Snapshot() *device.Snapshot {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &device.Snapshot{Revision: uint64(len(n.changes))}
	for c, st := range n.stands {
		s.Pods = append(s.Pods, device.PodStatus{PodAllocation: allocation(c), Demands: []device.Demand{st.Demand}})
	}
	return s
}

func (n *node) ChangesSince(revision uint64, _ int) ([]device.Change, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.changes[revision:]), true
}

func (n *node) Updated() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.updated
}

func (n *node) Grants(_ context.Context, st device.Readiness) (map[device.ClaimRequest]cdi.Grant, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.fails != nil {
		return nil, n.fails
	}
	if got := n.grants[st.Assignment.Container]; got != nil {
		return maps.Clone(got), nil
	}
	return nil, errors.New("a file cannot say what it gets")
}

func allocation(c device.Container) *device.PodAllocation {
	return &device.PodAllocation{Pod: device.Pod{UID: c.Pod}, Active: true, Assignments: []device.Assignment{{Container: c}}}
}

// give has a container get something by each request of a claim; nothing: it needs devmgrd.
func (n *node) give(c device.Container, claim device.ClaimUID, env map[string]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	st := device.Readiness{State: device.Ready, Assignment: device.Assignment{Container: c}, Demand: device.Demand{Container: c, Requests: map[device.ResourceName][]device.ClaimRequest{}}}
	delete(n.grants, c)
	for request, value := range env {
		of := device.ClaimRequest{Claim: claim, Request: request}
		st.Demand.Requests[gpu] = append(st.Demand.Requests[gpu], of)
		if value == "" {
			continue
		}
		if n.grants[c] == nil {
			n.grants[c] = map[device.ClaimRequest]cdi.Grant{}
		}
		n.grants[c][of] = grant(value)
	}
	n.stands[c] = st
	n.changeLocked(device.Change{After: allocation(c)})
}

// grant is what a plugin grants: a variable, a mount and a device node.
func grant(value string) cdi.Grant {
	mode, id := fs.FileMode(0o620), uint32(5)
	return cdi.Grant{Edits: cdi.Edits{
		Env:         []string{"GPU=" + value},
		Mounts:      []*specs.Mount{{HostPath: "/usr", ContainerPath: "/opt/gpu", Type: "bind", Options: []string{"rbind", "rprivate", "ro"}}},
		DeviceNodes: []*specs.DeviceNode{{Path: "/dev/gpu0", HostPath: "/dev/zero", FileMode: &mode, UID: &id, GID: &id, Permissions: "r"}},
	}}
}

// end ends a pod: its devices are free.
func (n *node) end(c device.Container) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.stands, c)
	n.changeLocked(device.Change{Before: allocation(c)})
}

func (n *node) changeLocked(c device.Change) {
	c.Revision = uint64(len(n.changes)) + 1
	n.changes = append(n.changes, c)
	close(n.updated)
	n.updated = make(chan struct{})
}

func (n *node) Write(text []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.messages.Write(text)
}

func (n *node) logged(text string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Contains(n.messages.String(), text)
}

// open returns the node's files, which do not follow changes.
func (n *node) open(boot string) *cdi.Files {
	n.t.Helper()
	f := cdi.New(cdi.Config{Dir: n.dir, Boot: boot, Allocator: n, Grants: n, Log: slog.New(slog.NewTextHandler(n, nil))})
	f.SetHook(cdi.Hidden, 0)
	return f
}

// run has files follow changes until the test or the returned function ends that.
func (n *node) run(f *cdi.Files) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := f.Run(ctx); err != nil {
			n.t.Error(err)
		}
	}()
	stop = func() { cancel(); <-ended }
	n.t.Cleanup(stop)
	return stop
}

// inject does what a runtime does with the CDI devices of a container. It returns the container's specification.
func (n *node) inject(names ...string) (*oci.Spec, error) {
	n.t.Helper()
	c, err := library.NewCache(library.WithSpecDirs(n.dir), library.WithAutoRefresh(false))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := c.Refresh(); err != nil {
		n.t.Errorf("the library finds mistakes: %v", err)
	}
	spec := &oci.Spec{Process: &oci.Process{User: oci.User{UID: 1000, GID: 1000}}, Linux: &oci.Linux{}}
	_, err = c.InjectDevices(spec, names...)
	return spec, err
}

// gets says what a container gets by CDI devices: its variables, "guard", or the error.
func (n *node) gets(names ...string) string {
	n.t.Helper()
	spec, err := n.inject(names...)
	if err != nil {
		return err.Error()
	}
	for _, m := range spec.Mounts {
		if _, is := cdi.Guarded(m.Destination); is {
			if _, err := os.Stat(m.Source); err == nil {
				n.t.Errorf("the guard's source %s exists", m.Source)
			}
			return strings.Join(append(spec.Process.Env, "guard"), " ")
		}
	}
	return strings.Join(spec.Process.Env, " ")
}

var (
	one = device.Container{Pod: "uid-1", Name: "main"}
	two = device.Container{Pod: "uid-2", Name: "main"}
)

func claim(users ...device.Container) cdi.Claim {
	return cdi.Claim{UID: "claim-1", Users: users, Devices: []cdi.Device{
		{Request: "a", Name: "dev-0", Resource: gpu, ID: "0"}, {Request: "a", Name: "dev-1", Resource: gpu, ID: "1"}, {Request: "b", Name: "dev-2", Resource: nic, ID: "2"},
	}}
}

// requests are those of claim.
var requests = []device.ClaimRequest{{Claim: "claim-1", Request: "a"}, {Claim: "claim-1", Request: "b"}}

const (
	a0, a1, b2 = "devmgrd.io/claim=claim-1_a_dev-0", "devmgrd.io/claim=claim-1_a_dev-1", "devmgrd.io/claim=claim-1_b_dev-2"
)

func prepare(t testing.TB, f *cdi.Files, users ...device.Container) {
	t.Helper()
	names, err := f.Prepare(t.Context(), claim(users...))
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Concat(names...); !slices.Equal(got, []string{a0, a1, b2}) {
		t.Errorf("the kubelet has %v", got)
	}
}

func TestPrepare_GrantOfOneRequest_IsInTheFile(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": "0,1"})
	f := n.open("boot")
	prepare(t, f, one)
	spec, err := n.inject(a0, a1)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(spec.Process.Env, []string{"GPU=0,1"}) {
		t.Errorf("variables %v", spec.Process.Env)
	}
	if len(spec.Mounts) != 1 || spec.Mounts[0].Source != "/usr" || spec.Mounts[0].Destination != "/opt/gpu" || !slices.Equal(spec.Mounts[0].Options, []string{"rbind", "rprivate", "ro"}) {
		t.Errorf("mounts %+v", spec.Mounts)
	}
	nodes := map[string]oci.LinuxDevice{}
	for _, d := range spec.Linux.Devices {
		nodes[d.Path] = d
	}
	if d := nodes["/dev/gpu0"]; len(nodes) != 2 || d.Major != 1 || d.Minor != 5 || *d.FileMode != 0o620 || *d.UID != 5 || *d.GID != 5 {
		t.Errorf("device nodes %+v", nodes)
	}
	if d := nodes["/dev/null"]; d.Major != 1 || d.Minor != 3 || *d.FileMode != 0o666 || *d.UID != 0 {
		t.Errorf("/dev/null is %+v", d)
	}
	var rules []string
	for _, r := range spec.Linux.Resources.Devices {
		rules = append(rules, r.Access)
	}
	if !slices.Equal(rules, []string{"r", "rw", "rw"}) {
		t.Errorf("rules %v", rules)
	}
	if got := n.gets(b2); got != "guard" {
		t.Errorf("by a request that no container uses a container gets %q", got)
	}
	files, err := os.ReadDir(n.dir)
	if err != nil || len(files) != 2 {
		t.Errorf("%d files, %v", len(files), err)
	}
	for _, e := range files {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
}

// The containers of a request get different things, or something that a file cannot say.
func TestPrepare_FileCannotSayIt_IsGuard(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		first, second map[string]string
		want          [2]string // by request
	}{
		"equal":                    {map[string]string{"a": "x"}, map[string]string{"a": "x"}, [2]string{"GPU=x", "guard"}},
		"different":                {map[string]string{"a": "x"}, map[string]string{"a": "y"}, [2]string{"guard", "guard"}},
		"different requests":       {map[string]string{"a": "x"}, map[string]string{"b": "y"}, [2]string{"GPU=x", "GPU=y"}},
		"one needs devmgrd":        {map[string]string{"a": "x"}, map[string]string{"a": ""}, [2]string{"guard", "guard"}},
		"the other one needs it":   {map[string]string{"a": ""}, map[string]string{"a": "x"}, [2]string{"guard", "guard"}},
		"one has both":             {map[string]string{"a": "", "b": ""}, map[string]string{"b": "y"}, [2]string{"guard", "guard"}},
		"a user without its state": {map[string]string{"a": "x"}, nil, [2]string{"GPU=x", "guard"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.give(one, "claim-1", test.first)
			if test.second != nil {
				n.give(two, "claim-1", test.second)
			}
			f := n.open("boot")
			prepare(t, f, one, two)
			if got := [2]string{n.gets(a0, a1), n.gets(b2)}; got != test.want {
				t.Errorf("containers get %q, want %q", got, test.want)
			}
		})
	}
}

// A file changes once at most: to the guard.
func TestFile_GrantChanges_BecomesGuard(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*node, *cdi.Files){
		"another pod gets something else": func(n *node, _ *cdi.Files) { n.give(two, "claim-1", map[string]string{"a": "y"}) },
		"another pod needs devmgrd":       func(n *node, _ *cdi.Files) { n.give(two, "claim-1", map[string]string{"a": ""}) },
		"the plugin grants something else": func(n *node, _ *cdi.Files) {
			n.give(one, "claim-1", map[string]string{"a": "y"})
		},
		"the hook has found a difference": func(n *node, f *cdi.Files) {
			n.mu.Lock()
			n.grants[one] = nil
			n.mu.Unlock()
			f.Outdated(one)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.give(one, "claim-1", map[string]string{"a": "x"})
			f := n.open("boot")
			n.run(f)
			prepare(t, f, one)
			n.give(one, "claim-1", map[string]string{"a": "x"}) // nothing new
			change(n, f)
			plugintest.Eventually(t, "the file is a guard", func() bool { return n.gets(a0) == "guard" })
			if one, there := f.File(device.ClaimRequest{Claim: "claim-1", Request: "a"}); !there || !one.Guard {
				t.Errorf("the hook reads %+v", one)
			}
			n.give(one, "claim-1", map[string]string{"a": "x"})
			n.end(two)
			prepare(t, f, one)
			if got := n.gets(a0); got != "guard" {
				t.Errorf("afterwards containers get %q", got)
			}
		})
	}
}

// The files stay until the devices are free, whatever the kubelet says.
func TestFile_LastPodEnds_IsRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": "x"})
	n.give(two, "claim-1", map[string]string{"a": "x"})
	f := n.open("boot")
	n.run(f)
	prepare(t, f, one, two)
	f.Unprepared("claim-1")
	n.end(one)
	n.give(device.Container{Pod: "uid-3", Name: "main"}, "claim-3", map[string]string{"a": "x"}) // comes after the end in the order of changes
	if got := n.gets(a0); got != "GPU=x" {
		t.Errorf("while a pod has the devices: %q", got)
	}
	n.end(two)
	plugintest.Eventually(t, "the files are gone", func() bool {
		left, err := os.ReadDir(n.dir)
		return err == nil && len(left) == 0 && f.Missing(requests[:1])
	})
	// The pod has ended before the kubelet was answered.
	prepare(t, f, one)
	f.Unprepared("claim-1")
	if left, err := os.ReadDir(n.dir); err != nil || len(left) > 0 {
		t.Errorf("%d files are left, %v", len(left), err)
	}
}

// devmgrd restarts: the files of this boot stay as they are, guards name the new process, and others go.
func TestNew_FilesOfEarlierProcesses(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": "x"})
	prepare(t, n.open("boot"), one)
	if err := os.WriteFile(filepath.Join(n.dir, "vendor.json"), []byte(`{"cdiVersion":"0.5.0","kind":"vendor.example/gpu","devices":[{"name":"0","containerEdits":{"env":["A=B"]}}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	// The guard is of a process that has ended.
	path := filepath.Join(n.dir, "devmgrd.io-claim_claim-1_b.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var guard specs.Spec
	if err := json.Unmarshal(text, &guard); err != nil {
		t.Fatal(err)
	}
	null := guard.Devices[0].ContainerEdits.DeviceNodes[0]
	null.Type, null.Major, null.Minor, null.HostPath = "", 0, 0, "/proc/4194305/root/dev/null"
	if text, err = json.Marshal(guard); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := n.gets(b2); !strings.Contains(got, "/proc/4194305/root/dev/null") || !strings.Contains(got, "no such file") {
		t.Errorf("while devmgrd is away a container with a guard gets %q", got)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "devmgrd.io-claim_claim-2_a.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := n.open("boot")
	stop := n.run(f)
	f.SetHook(cdi.Visible, 0)
	plugintest.Eventually(t, "the guard names this process", func() bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), fmt.Sprintf("/proc/%d/root/dev/null", os.Getpid()))
	})
	if a, b := n.gets(a0), n.gets(b2); a != "GPU=x" || b != "guard" {
		t.Errorf("containers get %q and %q", a, b)
	}
	if of, _ := f.File(device.ClaimRequest{Claim: "claim-1", Request: "a"}); of.Guard || !of.Grant.Equal(grant("x")) {
		t.Errorf("the hook reads %+v", of)
	}
	if got := f.Devices([]string{a0, b2, "vendor.example/gpu=0"}); len(got) != 2 || !slices.Equal(got[gpu], []device.ID{"0", "1"}) || !slices.Equal(got[nic], []device.ID{"2"}) {
		t.Errorf("the devices are %v", got)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "devmgrd.io-claim_claim-2_a.json")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an unreadable file is left: %v", err)
	}
	stop()
	// The machine was booted, and the directory is on a disk.
	if f = n.open("next boot"); !f.Missing(requests[:1]) || n.gets("vendor.example/gpu=0") != "A=B" {
		t.Error("a file of the former boot is left, or another one's is gone")
	}
	if got := n.gets(a0); !strings.Contains(got, "unresolvable") {
		t.Errorf("by a file of the former boot a container gets %q", got)
	}
}

// Others remove or change files, or their directory.
func TestRun_FilesChangedByOthers_AreWrittenAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.dir = filepath.Join(n.dir, "cdi")
	n.give(one, "claim-1", map[string]string{"a": "x"})
	f := n.open("boot")
	n.run(f)
	prepare(t, f, one)
	path := filepath.Join(n.dir, "devmgrd.io-claim_claim-1_a.json")
	for name, spoil := range map[string]func() error{
		"removed": func() error { return os.Remove(path) },
		"changed": func() error {
			text, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "GPU=x", "GPU=all")), 0o600))
		},
		"emptied": func() error { return os.Truncate(path, 0) },
		"renamed": func() error { return os.Rename(path, filepath.Join(n.dir, "x.txt")) },
		"directory removed": func() error { // in one step: a file may be back before the directory is empty
			gone := n.dir + ".gone"
			return errors.Join(os.Rename(n.dir, gone), os.RemoveAll(gone))
		},
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		plugintest.Eventually(t, name+": the file is back", func() bool {
			text, err := os.ReadFile(path)
			return err == nil && strings.Contains(string(text), "GPU=x")
		})
	}
	if !n.logged("was changed or removed") {
		t.Error("nothing is logged")
	}
}

// The runtime remembers the device nodes of a file that it has read. After a use it has to read the file again.
func TestUsed_FileIsWrittenAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": "x"})
	f := n.open("boot")
	n.run(f)
	prepare(t, f, one)
	path := filepath.Join(n.dir, "devmgrd.io-claim_claim-1_b.json")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Used(device.ClaimRequest{Claim: "claim-1", Request: "b"}, device.ClaimRequest{Claim: "claim-2", Request: "b"})
	plugintest.Eventually(t, "it is another file", func() bool {
		now, err := os.Stat(path)
		return err == nil && !os.SameFile(before, now)
	})
	if got := n.gets(b2); got != "guard" {
		t.Errorf("a container gets %q", got)
	}
}

// The directory cannot be written: the kubelet is refused, with a reason, and is answered later.
func TestPrepare_DirectoryCannotBeWritten_Fails(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.dir = filepath.Join(n.dir, "cdi")
	if err := os.WriteFile(n.dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.give(one, "claim-1", map[string]string{"a": "x"})
	f := n.open("boot")
	if _, err := f.Prepare(t.Context(), claim(one)); err == nil || !strings.Contains(err.Error(), "(dra.cdiDir)") || !f.Missing(requests[:1]) {
		t.Errorf("Prepare: %v", err)
	}
	if err := os.Remove(n.dir); err != nil {
		t.Fatal(err)
	}
	prepare(t, f, one)
	// Files that are there are written again later, and readiness says so meanwhile.
	if err := errors.Join(os.RemoveAll(n.dir), os.WriteFile(n.dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	n.run(f)
	plugintest.Eventually(t, "readiness says so", func() bool { return f.Check() != nil })
	if err := os.Remove(n.dir); err != nil {
		t.Fatal(err)
	}
	plugintest.Eventually(t, "the files are back", func() bool { return f.Check() == nil && n.gets(a0) == "GPU=x" })
}

// One container may use both requests, also one of a later pod: the plugin is asked for all of its devices at once.
func TestPrepare_OneResourceByTwoRequests_AreGuards(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": "x"})
	n.give(two, "claim-1", map[string]string{"b": "y"})
	c := claim(one, two)
	c.Devices[2].Resource = gpu
	if _, err := n.open("boot").Prepare(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	if a, b := n.gets(a0), n.gets(b2); a != "guard" || b != "guard" {
		t.Errorf("containers get %q and %q", a, b)
	}
}

// Devices of two resources have one name, and IDs and values have characters that YAML cannot say.
func TestPrepare_OddNamesAndValues(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"plain ä\t": "GPU=plain ä\t", "\x7f": "guard", "\u0080": "guard", "nel\u0085x": "guard", "\uffff": "guard"} {
		n := newNode(t)
		n.give(one, "claim-1", map[string]string{"a": value})
		f := n.open("boot")
		c := cdi.Claim{UID: "claim-1", Users: []device.Container{one}, Devices: []cdi.Device{
			{Request: "a", Name: "0", Resource: gpu, ID: "a\x7fb\u0085"}, {Request: "a", Name: "0", Resource: nic, ID: "0"},
		}}
		names, err := f.Prepare(t.Context(), c)
		if err != nil || len(names) != 2 {
			t.Fatalf("%q: %v, %v", value, names, err)
		}
		if got := n.gets(slices.Concat(names...)...); got != want {
			t.Errorf("%q: a container gets %q, want %q", value, got, want)
		}
		if got := n.open("boot").Devices(names[0])[gpu]; !slices.Equal(got, []device.ID{"a\x7fb\u0085"}) {
			t.Errorf("read again, it has %q", got)
		}
	}
}

// A pod that shares a claim waits while the first one ends: the kubelet has the claim prepared, and does not ask again.
func TestFile_SharerWaits_StaysUntilUnprepared(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": "x"})
	f := n.open("boot")
	n.run(f)
	prepare(t, f, one)
	n.end(one)
	n.give(two, "claim-1", map[string]string{"a": "x"})
	f.Outdated(two)
	if got := n.gets(a0); got != "GPU=x" {
		t.Errorf("the other pod's container gets %q", got)
	}
	n.end(two)
	f.Unprepared("claim-1")
	plugintest.Eventually(t, "the files are gone", func() bool { return f.Missing(requests[:1]) && strings.Contains(n.gets(a0), "unresolvable") })
}

// devmgrd ends, or the host does not answer in time: that says nothing of a container.
func TestFile_NoAnswer_GrantStays(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": "x"})
	f := n.open("boot")
	prepare(t, f, one)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	n.fails = context.DeadlineExceeded
	f.Outdated(one)
	if err := f.Run(ended); err != nil {
		t.Error(err)
	}
	if _, err := f.Prepare(ended, claim(one)); !errors.Is(err, context.Canceled) {
		t.Errorf("Prepare: %v", err)
	}
	n.run(f)
	f.Outdated(one)
	f.Used(requests...)
	f.SetHook(cdi.Visible, 0)
	plugintest.Eventually(t, "the files have been compared", func() bool { return n.gets(b2) == "guard" })
	if got := n.gets(a0); got != "GPU=x" {
		t.Errorf("a container gets %q", got)
	}
}

// While the hook sees no containers, none with a guard is created.
func TestGuard_HookIsAway_NotCreated(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": ""})
	f := n.open("boot")
	stop := n.run(f)
	prepare(t, f, one)
	for _, hook := range []cdi.Hook{cdi.Visible, cdi.Away, cdi.Hidden} {
		f.SetHook(hook, 0)
		plugintest.Eventually(t, fmt.Sprint("as of hook ", hook), func() bool {
			got := n.gets(a0)
			return hook == cdi.Away && strings.Contains(got, "devmgrd-is-away") || hook != cdi.Away && got == "guard"
		})
	}
	stop()
	if got := n.gets(a0); !strings.Contains(got, "devmgrd-is-away") {
		t.Errorf("when devmgrd has ended a container gets %q", got)
	}
	next := cdi.New(cdi.Config{Dir: n.dir, Boot: "boot", Allocator: n, Grants: n, Log: slog.New(slog.DiscardHandler)})
	if got := n.gets(a0); !strings.Contains(got, "devmgrd-is-away") || next.Missing(requests) {
		t.Errorf("before it is connected a container gets %q", got)
	}
}

// The kubelet was told nothing of the plugin's CDI devices: devmgrd adds them.
func TestPrepare_Untold_PluginsDevicesNeedDevmgrd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.give(one, "claim-1", map[string]string{"a": "x"})
	n.grants[one][requests[0]] = cdi.Grant{Names: []string{"vendor.example/gpu=0"}}
	for _, untold := range []bool{false, true} {
		n.dir = t.TempDir()
		c := claim(one)
		c.Untold = untold
		names, err := n.open("boot").Prepare(t.Context(), c)
		if err != nil || slices.Contains(names[0], "vendor.example/gpu=0") == untold {
			t.Errorf("the kubelet has %q, %v", names, err)
		}
		if got := n.gets(a0); (got == "guard") != untold {
			t.Errorf("a container gets %q", got)
		}
	}
}

// Drafts of a process that was killed are removed.
func TestNew_Drafts_AreRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	draft := filepath.Join(n.dir, "devmgrd.io-claim_claim-1_a.json.draft")
	if err := os.WriteFile(draft, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.open("boot")
	if _, err := os.Stat(draft); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it is left: %v", err)
	}
}

// The kubelet's first request for a claim writes a file; each later one, after a restart of the kubelet, finds it.
func BenchmarkPrepare(b *testing.B) {
	for _, first := range []bool{true, false} {
		b.Run(map[bool]string{true: "first", false: "again"}[first], func(b *testing.B) {
			n := newNode(b)
			f := n.open("boot")
			for i := 0; b.Loop(); i++ {
				claim := device.ClaimUID("11111111-2222-3333-4444-555555555555")
				if first {
					claim = device.ClaimUID(fmt.Sprintf("11111111-2222-3333-4444-%012d", i))
				}
				main := device.Container{Pod: device.PodUID(claim), Name: "main"}
				n.give(main, claim, map[string]string{"r": "yes"})
				if _, err := f.Prepare(b.Context(), cdi.Claim{UID: claim, Users: []device.Container{main}, Devices: []cdi.Device{{Request: "r", Name: "d0", Resource: gpu, ID: "0"}}}); err != nil {
					b.Fatal(err)
				}
				f.Unprepared(claim)
			}
		})
	}
}
