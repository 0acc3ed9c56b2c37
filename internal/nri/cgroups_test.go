package nri

import (
	"errors"
	"fmt"
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

func TestContainersWithProcesses(t *testing.T) {
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
		got, err := Cgroups(root).ContainersWithProcesses([]string{"empty", "runs", "never-started", ""})
		if want := map[string]bool{"runs": true, "": true}; err != nil || !maps.Equal(got, want) { // any may be one without an ID
			t.Errorf("version %s: containers with processes: %v, %v; want %v", version, got, err, want)
		}
	}
}

// devmgrd in a container sees its own cgroups, unless it is given the host's.
func TestContainersWithProcesses_NotTheHosts(t *testing.T) {
	t.Parallel()
	for name, root := range map[string]string{
		"missing":                filepath.Join(t.TempDir(), "missing"),
		"empty":                  t.TempDir(),
		"version 2, a container": tree(t, map[string]string{"cgroup.controllers": "", "cgroup.events": "populated 1\n", "below/cgroup.events": ""}),
		"version 1, a container": tree(t, map[string]string{"devices/cgroup.procs": "", "devices/below/cgroup.procs": ""}),
	} {
		if runs, err := Cgroups(root).ContainersWithProcesses([]string{"abc"}); err == nil {
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

// ofUser hands a directory of a tree to a user, as systemd does with the cgroup of a user's session.
func ofUser(t *testing.T, path string) {
	t.Helper()
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := errors.Join(os.Chmod(path, 0o755), os.Chown(path, 65534, 65534)); err != nil {
			t.Fatal(err)
		}
	}
}

// Users name cgroups as they like in those that systemd delegates to them: after another's pod, which has ended, or by thousands.
func TestCgroups_OfAUser_ProveNothingAndCostNothing(t *testing.T) {
	t.Parallel()
	const uid, container, session = "11111111-2222-3333-4444-555555555555", "0123456789abcdef", "user.slice/user-1000.slice/user@1000.service/"
	files := map[string]string{"cgroup.controllers": "", "kubepods.slice/kubepods-besteffort.slice/cgroup.events": "populated 0\n"}
	for _, name := range []string{
		"pod" + uid, "kubepods/pod" + uid, "kubepods/burstable/pod" + uid, "kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
		"cri-containerd-" + container + ".scope", "kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/" + container,
	} {
		files[session+name+"/cgroup.events"] = "populated 1\n"
	}
	for i := range 2000 {
		files[fmt.Sprintf("%sc%d/cgroup.events", session, i)] = "populated 0\n"
	}
	root := tree(t, files)
	ofUser(t, filepath.Join(root, session))
	if got, err := Cgroups(root).PodsWithProcesses([]device.PodUID{uid}); err != nil || len(got) > 0 {
		t.Errorf("pods with processes: %v, %v", got, err)
	}
	if found, err := Cgroups(root).ContainersWithProcesses([]string{container}); err != nil || found[container] {
		t.Errorf("the container has processes: %v, %v", found, err)
	}
	looked := 0
	if err := Cgroups(root).walk(func(string) error { looked++; return nil }); err != nil || looked > 10 {
		t.Errorf("looked at %d cgroups, %v", looked, err)
	}
}

// A container that may write its cgroup makes cgroups below it, and names them after another's container.
func TestContainersWithProcesses_CgroupsBelowAContainer_ProveNothing(t *testing.T) {
	t.Parallel()
	const pod = "kubepods.slice/kubepods-pod1.slice/"
	root := tree(t, map[string]string{
		"cgroup.controllers": "",
		pod + "cri-containerd-mine.scope/cri-containerd-another.scope/cgroup.events": "populated 1\n",
		pod + "crio-runs.scope/container/cgroup.events":                              "populated 1\n",
		pod + "crio-runs.scope/cgroup.events":                                        "populated 1\n",
	})
	if got, err := Cgroups(root).ContainersWithProcesses([]string{"runs", "another"}); err != nil || !maps.Equal(got, map[string]bool{"runs": true}) {
		t.Errorf("containers with processes: %v, %v", got, err)
	}
}

// The kubelet's root is wherever its setting cgroupRoot says, and in each hierarchy of cgroup v1.
func TestPodsWithProcesses_RootOfTheKubelet(t *testing.T) {
	t.Parallel()
	const uid, under = "11111111-2222-3333-4444-555555555555", "11111111_2222_3333_4444_555555555555"
	for _, pod := range []string{
		"kubepods/pod" + uid, "kubepods/burstable/pod" + uid, "a/b/kubepods/besteffort/pod" + uid,
		"kubepods.slice/kubepods-pod" + under + ".slice", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under + ".slice",
		"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + under + ".slice",
		"system.slice/docker-0123.scope/kubelet/kubepods/pod" + uid, // devmgrd and the kubelet are in different containers
	} {
		for version, files := range map[string]map[string]string{
			"2":         {"cgroup.controllers": "", pod + "/cgroup.events": "populated 1\n"},
			"1":         {"devices/release_agent": "", "pids/" + pod + "/0/cgroup.procs": "17\n", "memory/" + pod + "/0/cgroup.procs": ""},
			"1, hybrid": {"devices/release_agent": "", "devices/" + pod + "/0/cgroup.procs": "17\n", "unified/cgroup.controllers": "", "unified/system.slice/cgroup.events": ""},
		} {
			got, err := Cgroups(tree(t, files)).PodsWithProcesses([]device.PodUID{uid})
			if _, has := got[uid]; err != nil || !has {
				t.Errorf("version %s, %s: %v, %v", version, pod, got, err)
			}
		}
	}
}
