package nri

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// tree makes files, with their directories, and returns the directory above them.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestHasProcesses(t *testing.T) {
	t.Parallel()
	for version, root := range map[string]string{
		"2": tree(t, map[string]string{
			"cgroup.controllers": "",
			"kubepods.slice/kubepods-pod1.slice/cri-containerd-runs.scope/cgroup.events": "populated 1\nfrozen 0\n",
			"kubepods.slice/kubepods-pod1.slice/crio-empty.scope/cgroup.events":          "populated 0\nfrozen 0\n",
		}),
		"1": tree(t, map[string]string{
			"devices/release_agent":                   "",
			"devices/kubepods/pod1/runs/cgroup.procs": "",
		}),
	} {
		for id, want := range map[string]bool{"runs": true, "empty": false, "never-started": false} {
			if got, err := Cgroups(root).HasProcesses(id); got != want || err != nil {
				t.Errorf("version %s: container %s has processes: %v, %v; want %v", version, id, got, err, want)
			}
		}
		if _, err := Cgroups(root).HasProcesses(""); err == nil {
			t.Error("a container without an ID is looked for")
		}
	}
}

// devmgrd in a container sees its own cgroups, unless it is given the host's.
func TestHasProcesses_NotTheHosts(t *testing.T) {
	t.Parallel()
	for name, root := range map[string]string{
		"missing":                filepath.Join(t.TempDir(), "missing"),
		"empty":                  t.TempDir(),
		"version 2, a container": tree(t, map[string]string{"cgroup.controllers": "", "cgroup.events": "populated 1\n", "below/cgroup.events": ""}),
		"version 1, a container": tree(t, map[string]string{"devices/cgroup.procs": "", "devices/below/cgroup.procs": ""}),
	} {
		if runs, err := Cgroups(root).HasProcesses("abc"); err == nil {
			t.Errorf("%s: answered with %v", name, runs)
		}
	}
}

func TestPodsWithProcesses(t *testing.T) {
	t.Parallel()
	const other = "00000000-0000-4000-8000-000000000000"
	for version, root := range map[string]string{
		"2, systemd": tree(t, map[string]string{
			"cgroup.controllers": "",
			"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_a.slice/cgroup.events":      "populated 1\nfrozen 0\n",
			"kubepods.slice/kubepods-pod2_a.slice/cgroup.events":                                         "populated 0\nfrozen 0\n",
			"kubepods.slice/kubepods-pod" + strings.ReplaceAll(other, "-", "_") + ".slice/cgroup.events": "populated 1\nfrozen 0\n",
			"kubepods.slice/kubepods-pod4_a.slice/cgroup.events":                                         "populated 1\nfrozen 0\n",
		}),
		"1, cgroupfs": tree(t, map[string]string{
			"devices/release_agent":                          "",
			"devices/kubepods/pod1-a/cgroup.procs":           "",
			"devices/kubepods/pod1-a/container/cgroup.procs": "17\n",
			"devices/kubepods/pod2-a/container/cgroup.procs": "",
			"devices/kubepods/pod" + other + "/cgroup.procs": "18\n",
			"memory/kubepods/pod1-a/cgroup.procs":            "",
		}),
	} {
		got, err := Cgroups(root).PodsWithProcesses([]device.PodUID{"1-a", "2-a", "3-a", other})
		if pods := slices.Sorted(maps.Keys(got)); err != nil || !slices.Equal(pods, []device.PodUID{other, "1-a"}) {
			t.Errorf("version %s: pods with processes: %v, %v; want 1-a and %s", version, got, err, other)
		}
	}
	if got, err := Cgroups(t.TempDir()).PodsWithProcesses([]device.PodUID{"1-a"}); err == nil {
		t.Errorf("without cgroups of the host: answered with %v", got)
	}
}
