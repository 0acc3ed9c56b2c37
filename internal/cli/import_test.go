package cli

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube/kubetest"
	"github.com/devmgrd/devmgrd/internal/store"
)

// A harness is a node on which nothing runs: an API server, a kubelet's directory, and a place for the state file.
type harness struct {
	t     *testing.T
	api   *kubetest.Server
	dir   string
	state string
	file  string // the kubelet's
	args  []string
}

func newFarm(t *testing.T) *harness {
	dir := t.TempDir()
	f := &harness{t: t, api: kubetest.New(t), dir: dir, state: filepath.Join(dir, "state"), file: filepath.Join(dir, "device-plugins", checkpoint.Name)}
	f.api.Put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	kubeconfig := filepath.Join(dir, "kubeconfig")
	f.must(os.WriteFile(kubeconfig, []byte(fmt.Sprintf("clusters: [{name: c, cluster: {server: %q}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n",
		"http://"+f.api.Client().Get().URL().Host)), 0o600))
	f.must(os.WriteFile(filepath.Join(dir, "config.yaml"), nil, 0o600))
	f.must(os.Mkdir(filepath.Dir(f.file), 0o750))
	f.args = []string{"--config", filepath.Join(dir, "config.yaml"), "--set", "nodeName=n1", "--set", "stateDir=" + f.state,
		"--set", "kubernetes.kubeconfig=" + kubeconfig, "--set", "plugins.kubeletDir=" + filepath.Dir(f.file)}
	return f
}

func (f *harness) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// execute runs a command about the kubelet's file.
func (f *harness) execute(command, file string, more ...string) (status int, stdout, stderr string) {
	return execute(append(append([]string{command, "kubelet-checkpoint", file}, f.args...), more...)...)
}

// kubelet has a kubelet write its file: pod, container, resource and device of each line.
func (f *harness) kubelet(lines ...string) []byte {
	f.t.Helper()
	var records []device.PodRecord
	listed := map[device.ResourceName]device.Inventory{}
	for _, line := range lines {
		w := strings.Fields(line)
		c, r, d := device.Container{Pod: device.PodUID(w[0]), Name: w[1]}, device.ResourceName(w[2]), device.ID(w[3])
		records = append(records, device.PodRecord{Assignments: []device.Assignment{{Container: c, Shares: []device.Share{{
			Resource: r, IDs: []device.ID{d}, Grant: device.Grant{Env: map[string]string{"DEV": w[3]}},
		}}}}})
		listed[r] = device.Inventory{Resource: r, Devices: append(listed[r].Devices, device.Device{ID: d, Healthy: true})}
	}
	var offered []device.Inventory
	for _, i := range listed {
		offered = append(offered, i)
	}
	content, err := checkpoint.FromState(records, offered)
	f.must(err)
	data, err := content.Encode()
	f.must(err)
	f.must(os.WriteFile(f.file, data, 0o600))
	return data
}

// pod puts a pod into the API, with its name as UID and a container main that asks for one of each of these.
func (f *harness) pod(name string, resources ...string) {
	main := corev1.Container{Name: "main", Env: []corev1.EnvVar{{Name: "OWN"}}, Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{}}}
	for _, r := range resources {
		main.Resources.Limits[corev1.ResourceName(r)] = resource.MustParse("1")
	}
	f.api.Put(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{main}}})
}

func (f *harness) saved() store.State {
	f.t.Helper()
	b, err := store.Read(f.state, slog.New(slog.DiscardHandler))
	f.must(err)
	return b
}

// tree is what is below a directory: names, and what is in files. The lock of the state file is none of it: who looks into them
// takes it.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if e != nil && e.Name() == "lock" {
			return err
		}
		if err == nil && e.Type().IsRegular() {
			data, err := os.ReadFile(path)
			all[path] = string(data)
			return err
		}
		all[path] = e.Type().String()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestImport(t *testing.T) {
	f := newFarm(t)
	f.pod("a", "a.example/gpu", "c.example/seat")
	f.args = append(f.args, "--set", "plugins.ignoredResources=c.example/*")
	data := f.kubelet("a main a.example/gpu gpu-0", "gone main a.example/gpu gpu-1", "a main c.example/seat 7")

	before := tree(t, f.dir)
	status, out, errs := f.execute("import", f.file, "--dry-run")
	if after := tree(t, f.dir); status != 0 || !reflect.DeepEqual(after, before) {
		t.Errorf("dry run: status %d, %s; there is %v, and was %v", status, errs, after, before)
	}
	for _, want := range []string{"ns/a", "gpu-0", "?/gone", "no such pod is active", "c.example/seat stays with the kubelet", "Nothing has been changed"} {
		if !strings.Contains(out, want) {
			t.Errorf("the dry run does not say %q:\n%s", want, out)
		}
	}

	aside := filepath.Dir(f.file) + ".before-devmgrd"
	if status, out, errs = f.execute("import", f.file); status != 0 || !strings.Contains(out, "is now "+aside) {
		t.Fatalf("import: status %d\n%s%s", status, out, errs)
	}
	state := f.saved()
	if len(state.Pods) != 2 || len(state.Plugins) != 1 || state.Plugins[0].Resource != "a.example/gpu" || len(state.Plugins[0].Devices) != 2 || !state.Plugins[0].Reported {
		t.Fatalf("the state file has %+v", state)
	}
	a := state.Pods[0]
	if a.Demand.Pod.Name != "a" || !reflect.DeepEqual(a.Demand.Demands[0].Env, []string{"OWN"}) || a.Assignments[0].Imported.IsZero() ||
		a.Assignments[0].Shares[0].Grant.Env["DEV"] != "gpu-0" {
		t.Errorf("the state file has a as %+v", a)
	}
	// The old directory is as it was, and the new one has only what stays with the kubelet.
	if got, err := os.ReadFile(filepath.Join(aside, checkpoint.Name)); err != nil || string(got) != string(data) {
		t.Errorf("the kubelet's file has changed: %s (%v)", got, err)
	}
	left, err := checkpoint.Read(f.file)
	f.must(err)
	if len(left.Entries) != 1 || !reflect.DeepEqual(left.Resources(), []device.ResourceName{"c.example/seat"}) {
		t.Errorf("there stays with the kubelet: %+v", left)
	}
	if note, err := os.ReadFile(filepath.Join(filepath.Dir(f.file), "devmgrd.txt")); err != nil || !strings.Contains(string(note), aside) {
		t.Errorf("the note says %q (%v)", note, err)
	}
	if info, err := os.Stat(filepath.Dir(f.file)); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("the new directory has mode %v (%v)", info.Mode(), err)
	}

	// Once more, from where it is now.
	status, out, errs = f.execute("import", filepath.Join(aside, checkpoint.Name))
	if status != 0 || strings.Count(out, "already in the state file") != 2 || !strings.Contains(out, "is left alone: it is not in plugins.kubeletDir") || !reflect.DeepEqual(f.saved(), state) {
		t.Errorf("again: status %d\n%s%s", status, out, errs)
	}
}

// A static pod's devices are adopted under its own UID, which the kubelet's file has, the runtime shows, and its mirror pod names.
func TestImport_StaticPod_KeepsItsDevices(t *testing.T) {
	const uid = "0123456789abcdef0123456789abcdef"
	f := newFarm(t)
	f.pod("static", "a.example/gpu")
	mirror := f.api.Pod("ns", "static")
	mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: uid}
	f.api.Put(mirror)
	f.kubelet(uid + " main a.example/gpu gpu-0")

	if status, _, errs := f.execute("import", f.file); status != 0 {
		t.Fatalf("status %d\n%s", status, errs)
	}
	saved := f.saved().Pods
	if want := (device.Pod{UID: uid, Namespace: "ns", Name: "static"}); len(saved) != 1 || saved[0].Demand.Pod != want || len(saved[0].Assignments) != 1 {
		t.Errorf("saved: %+v, want an assignment of %s", saved, want)
	}
}

func TestImportOfConflicts(t *testing.T) {
	f := newFarm(t)
	f.pod("a", "a.example/gpu", "b.example/nic")
	f.kubelet("a main a.example/gpu gpu-0", "b main a.example/gpu gpu-0")
	before := tree(t, f.dir)
	status, _, errs := f.execute("import", f.file)
	if status != 1 || strings.Count(errs, "devmgrd: ") != 3 || !strings.Contains(errs, "requests 1 of b.example/nic") || !strings.Contains(errs, "a.example/gpu/gpu-0") {
		t.Errorf("status %d\n%s", status, errs)
	}
	if after := tree(t, f.dir); !reflect.DeepEqual(after, before) {
		t.Errorf("there is %v, and was %v", after, before)
	}
}

// Nothing is touched where something is not as it should be, and the message says what.
func TestImportRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*harness)
		want    string
		status  int
	}{
		"no file":          {func(f *harness) { f.must(os.Remove(f.file)) }, "no such file", 1},
		"a corrupt file":   {func(f *harness) { f.must(os.WriteFile(f.file, []byte("{}"), 0o600)) }, "corrupt", 1},
		"the kubelet runs": {func(f *harness) { f.listen(filepath.Join(filepath.Dir(f.file), "kubelet.sock")) }, "the kubelet is running", 1},
		"devmgrd runs":     {func(f *harness) { f.runDevmgrd() }, fmt.Sprintf("devmgrd is running (pid %d)", os.Getpid()), 1},
		"no API server":    {func(f *harness) { f.api.Stop() }, "is the API server reachable?", 1},
		"another node":     {func(f *harness) { f.args = append(f.args, "--set", "nodeName=n2") }, "is nodeName right", 1},
		"no Kubernetes":    {func(f *harness) { f.args = append(f.args, "--set", "kubernetes.mode=none") }, "kubernetes.mode is none", 1},
		"wrong settings":   {func(f *harness) { f.args = append(f.args, "--set", "x=y") }, "there is no such key", 2},
		"damaged state file": {func(f *harness) {
			f.must(os.Mkdir(f.state, 0o700))
			f.must(os.WriteFile(filepath.Join(f.state, "state.db"), nil, 0o600))
		}, "cannot be read", 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFarm(t)
			f.pod("a", "a.example/gpu")
			f.kubelet("a main a.example/gpu gpu-0")
			test.prepare(f)
			before := tree(t, f.dir)
			status, _, errs := f.execute("import", f.file)
			if status != test.status || !strings.Contains(errs, test.want) {
				t.Errorf("status %d, want %d: %s does not hold %q", status, test.status, errs, test.want)
			}
			if after := tree(t, f.dir); !reflect.DeepEqual(after, before) {
				t.Errorf("there is %v, and was %v", after, before)
			}
		})
	}
}

// A rehearsal may be while the kubelet runs.
func TestRehearsal(t *testing.T) {
	f := newFarm(t)
	f.pod("a", "a.example/gpu")
	f.kubelet("a main a.example/gpu gpu-0")
	f.listen(filepath.Join(filepath.Dir(f.file), "kubelet.sock"))
	status, out, errs := f.execute("import", f.file, "--dry-run")
	if status != 0 || !strings.Contains(out, "NOTE: the kubelet is running") || !strings.Contains(out, "ns/a") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
}

// listen listens on a socket until the test ends, or the listener is closed.
func (f *harness) listen(socket string) net.Listener {
	f.t.Helper()
	l, err := net.Listen("unix", socket)
	f.must(err)
	f.t.Cleanup(func() { l.Close() })
	return l
}

func (f *harness) runDevmgrd() {
	f.t.Helper()
	state, err := store.Open(store.Config{Dir: f.state, Log: slog.New(slog.DiscardHandler)})
	f.must(err)
	f.t.Cleanup(func() { state.Close() })
}

// A file elsewhere is only read, and the kubelet's directory stays.
func TestImportFromElsewhere(t *testing.T) {
	f := newFarm(t)
	f.pod("a", "a.example/gpu")
	data := f.kubelet("a main a.example/gpu gpu-0")
	copied := filepath.Join(f.dir, "copy")
	f.must(os.WriteFile(copied, data, 0o600))
	status, out, errs := f.execute("import", copied)
	if status != 0 || !strings.Contains(out, "is left alone: it is not in plugins.kubeletDir") || len(f.saved().Pods) != 1 {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
	if _, err := os.Stat(f.file); err != nil {
		t.Error(err)
	}
}

// import lists a plugin that waits to be called: the kubelet calls it automatically.
func TestImport_WaitingPlugins_AreListed(t *testing.T) {
	f := newFarm(t)
	f.kubelet()
	registry := filepath.Join(f.dir, "plugins_registry")
	f.must(os.Mkdir(registry, 0o755))
	f.listen(filepath.Join(registry, "p.sock"))
	status, out, errs := f.execute("import", f.file, "--dry-run")
	if status != 0 || !strings.Contains(out, "a plugin waits at "+filepath.Join(registry, "p.sock")+" for the kubelet's call") {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
}
