//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// containerd loses sight of a container whose processes cannot be killed, as processes in a driver's uninterruptible
// sleep: its shim hangs while containerd restarts, or is killed. The device stays with the processes although their pod is
// deleted by force.
func TestContainer_LostByContainerd_KeepsItsDeviceWhileItsProcessesLive(t *testing.T) {
	for name, lose := range map[string]func(r *harness, shim int){
		"shim hangs while containerd and devmgrd restart": func(r *harness, shim int) {
			r.must(r.Devmgrd.Kill())
			r.must(r.Containerd.Kill())
			r.must(syscall.Kill(shim, syscall.SIGSTOP))
			r.t.Cleanup(func() { _ = syscall.Kill(shim, syscall.SIGCONT) })
			r.must(r.Containerd.Start(r.ctx))
			r.must(r.WaitContainerd(r.ctx))
			r.must(r.StartDevmgrd(r.ctx))
		},
		"shim is killed": func(r *harness, shim int) {
			r.must(syscall.Kill(shim, syscall.SIGKILL))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			r.plugin(gpu, 1)
			process := processWith(t, r.run("a", gpu, 1).Env["DEVICES"])
			shim := parent(t, process)
			thaw := freeze(t, process)
			lose(r, shim)
			r.until("containerd has lost sight of it", func() bool { ids, err := r.RunningContainers(r.ctx, "main"); return err == nil && len(ids) == 0 })
			now := int64(0)
			r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &now}))
			r.must(r.Create(r.ctx, node.Pod("b", gpu, 1, "report", "--then-sleep")))
			r.told("b", "NotEnoughDevices")
			r.until("the operator is told", func() bool {
				log, err := os.ReadFile(r.Devmgrd.LogPath())
				return err == nil && strings.Contains(string(log), "processes outlive their pod")
			})
			r.states(0, 1, 0)
			if out := r.says("assignments"); strings.Contains(out, "default/b") || !alive(process) {
				t.Fatalf("process %d lives: %v; assignments:\n%s", process, alive(process), out)
			}
			thaw()
			_, err := r.WaitPhase(r.soon(2*time.Minute), "b", corev1.PodRunning)
			r.must(err)
			if alive(process) {
				t.Error("the process of pod a lives")
			}
		})
	}
}

// freeze keeps a pod's processes from running, until the function that it returns is called. Even SIGKILL waits.
func freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	cgroups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, path, found := strings.Cut(string(cgroups), ":freezer:")
	if !found {
		t.Fatalf("no freezer of cgroup version 1 in %s", cgroups)
	}
	path, _, _ = strings.Cut(path, "\n")
	state := filepath.Join("/sys/fs/cgroup/freezer", filepath.Dir(path), "freezer.state")
	set := func(value string) error { return os.WriteFile(state, []byte(value), 0) }
	if err := set("FROZEN"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set("THAWED") })
	return func() {
		if err := set("THAWED"); err != nil {
			t.Fatal(err)
		}
	}
}

// parent returns the parent of a process: of a container's first process it is the shim.
func parent(t *testing.T, pid int) (parent int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if _, err := fmt.Sscanf(rest, "%c %d", new(rune), &parent); err != nil {
		t.Fatal(err)
	}
	return parent
}

// alive reports whether a process exists and has not ended.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}
