package cli

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/checkpoint"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/store"
)

// keep fills the state file: a pod with an init container that has handed its device on, and one that waits.
func (f *harness) keep() {
	f.t.Helper()
	c := func(name string) device.Container { return device.Container{Pod: "a", Name: name} }
	wants := map[device.ResourceName]int{"a.example/gpu": 1}
	shares := []device.Share{{Resource: "a.example/gpu", IDs: []device.ID{"gpu-0"}, Near: [][]int{{1}}, Grant: device.Grant{Env: map[string]string{"DEV": "gpu-0"}}}}
	a := device.PodRecord{
		Demand: device.PodDemand{Pod: device.Pod{UID: "a", Namespace: "ns", Name: "a"}, Demands: []device.Demand{
			{Container: c("first"), Kind: device.Init, Wants: wants}, {Container: c("main"), Kind: device.App, Wants: wants},
		}},
		Assignments: []device.Assignment{{Container: c("first"), Shares: shares}, {Container: c("main"), Shares: shares}},
	}
	b := device.PodRecord{Demand: device.PodDemand{Pod: device.Pod{UID: "b", Namespace: "ns", Name: "b"}, Demands: []device.Demand{
		{Container: device.Container{Pod: "b", Name: "main"}, Kind: device.App, Wants: wants},
	}}}
	state, err := store.Open(store.Config{Dir: f.state, Log: slog.New(slog.DiscardHandler)})
	f.must(err)
	f.must(state.SaveAll([]device.PodRecord{a, b}, []device.PluginRecord{{Resource: "a.example/gpu", Reported: true, Devices: []device.Device{
		{ID: "gpu-0", Healthy: true}, {ID: "gpu-1", Healthy: true}, {ID: "gpu-2"},
	}}}))
	f.must(state.Close())
}

func TestExport(t *testing.T) {
	f := newFarm(t)
	f.keep()
	theirs := f.kubelet("c main c.example/seat 7", "old main a.example/gpu gpu-1", "b other a.example/gpu gpu-2", "b third a.example/gpu gpu-0")
	before := tree(t, f.dir)
	status, out, errs := f.execute("export", f.file, "--dry-run")
	if after := tree(t, f.dir); status != 0 || !reflect.DeepEqual(after, before) {
		t.Errorf("dry run: status %d, %s; there is %v, and was %v", status, errs, after, before)
	}
	for _, want := range []string{"ns/a", "gpu-0", "c.example/seat stays in the file", "init container first of pod ns/a has devices", "pod ns/b waits"} {
		if !strings.Contains(out, want) {
			t.Errorf("the dry run does not say %q:\n%s", want, out)
		}
	}
	for i, kept := range []string{".before-export", ".before-export-2"} {
		if status, out, errs = f.execute("export", f.file); status != 0 || !strings.Contains(out, "Written to "+f.file) {
			t.Fatalf("export: status %d\n%s%s", status, out, errs)
		}
		if old, err := os.ReadFile(f.file + kept); i == 0 && string(old) != string(theirs) || err != nil {
			t.Errorf("the old file is kept as %s (%v)", old, err)
		}
		got, err := checkpoint.Read(f.file)
		f.must(err)
		var entries []string
		for _, e := range got.Entries {
			entries = append(entries, fmt.Sprint(e.Container.Pod, " ", e.Container.Name, " ", e.Resource, e.Devices))
		}
		if want := []string{
			"a first a.example/gpu[{gpu-0 false [1] 0}]", "a main a.example/gpu[{gpu-0 false [1] 0}]", "b other a.example/gpu[{gpu-2 false [] 0}]", "c main c.example/seat[{7 false [] 0}]",
		}; !slices.Equal(entries, want) {
			t.Errorf("the file has %q, want %q", entries, want)
		}
		if want := map[device.ResourceName][]device.ID{"a.example/gpu": {"gpu-0", "gpu-1"}, "c.example/seat": {"7"}}; !reflect.DeepEqual(got.Healthy, want) {
			t.Errorf("healthy are %v, want %v", got.Healthy, want)
		}
	}
}

func TestExportRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*harness)
		want    string
	}{
		"no state file":    {func(f *harness) { f.must(os.RemoveAll(f.state)) }, "there is no state file in "},
		"the kubelet runs": {func(f *harness) { f.listen(filepath.Join(filepath.Dir(f.file), "kubelet.sock")) }, "the kubelet is running"},
		"devmgrd runs":     {func(f *harness) { f.runDevmgrd() }, "devmgrd is running (pid "},
		"a corrupt file":   {func(f *harness) { f.must(os.WriteFile(f.file, []byte("{}"), 0o600)) }, "move it aside"},
		"no directory":     {func(f *harness) { f.must(os.Remove(filepath.Dir(f.file))) }, "no such file or directory"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFarm(t)
			f.keep()
			test.prepare(f)
			before := tree(t, f.dir)
			if status, _, errs := f.execute("export", f.file); status != 1 || !strings.Contains(errs, test.want) {
				t.Errorf("status %d: %s does not hold %q", status, errs, test.want)
			}
			if after := tree(t, f.dir); !reflect.DeepEqual(after, before) {
				t.Errorf("there is %v, and was %v", after, before)
			}
		})
	}
}

// What has been taken over from a kubelet goes back to one as it came.
func TestImportAndExport(t *testing.T) {
	f := newFarm(t)
	f.pod("a", "a.example/gpu")
	data := f.kubelet("a main a.example/gpu gpu-0", "gone main a.example/gpu gpu-1", "gone main b.example/nic nic-0")
	for _, command := range []string{"import", "export"} {
		if status, out, errs := f.execute(command, f.file); status != 0 {
			t.Fatalf("%s: status %d\n%s%s", command, status, out, errs)
		}
	}
	if got, err := os.ReadFile(f.file); err != nil || string(got) != string(data) {
		t.Errorf("%s became %s (%v)", data, got, err)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(f.file)+".before-devmgrd", checkpoint.Name)); err != nil {
		t.Error(err)
	}
}

func TestMove_WrongArguments_PointToHelp(t *testing.T) {
	for _, args := range [][]string{{"import", "kubelet-checkpoint"}, {"export", "kubelet-checkpoint", "a", "b"}, {"import", "nonsense"}, {"export", "nonsense"}} {
		if status, _, errs := execute(args...); status != 2 || !strings.Contains(errs, "--help") {
			t.Errorf("%q: status %d, %s", args, status, errs)
		}
	}
}
