//go:build e2e

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/devmgrd/devmgrd/test/cluster"
)

// beCommand makes the test program the command that it tests, however often that executes itself.
const beCommand = "TESTCLUSTER_BE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(beCommand) != "" {
		os.Exit(execute())
	}
	os.Exit(m.Run())
}

func TestUpAndDown(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "home")
	said := mustRun(t, "up", "--dir", dir)
	t.Cleanup(func() { _ = clusterCommand("down", "--dir", dir).Run() })
	t.Log(said)

	node, err := hostClient(t, filepath.Join(dir, "kubeconfig")).CoreV1().Nodes().Get(t.Context(), cluster.NodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal("use the printed kubeconfig outside:", err)
	}
	releases, err := cluster.Releases("k8s")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := node.Status.NodeInfo.KubeletVersion, "v"+releases[0].Version; got != want {
		t.Errorf("the kubelet is %s, want %s", got, want)
	}
	id, err := os.ReadFile(filepath.Join(dir, "run"))
	if err != nil {
		t.Fatal(err)
	}
	r := runOf(t, func(r cluster.Run) bool { return r.ID == strings.TrimSpace(string(id)) })
	if status := mustRun(t, "status"); !strings.Contains(status, r.ID) {
		t.Errorf("status does not list run %s:\n%s", r.ID, status)
	}
	if name := mustRun(t, "enter", "--run", r.ID, "--", "hostname"); strings.TrimSpace(name) != cluster.NodeName {
		t.Errorf("the host name inside is %q", name)
	}
	if err := clusterCommand("up", "--dir", dir).Run(); err == nil {
		t.Error("up succeeds where a cluster is up already")
	}

	mustRun(t, "down", "--dir", dir)
	if left := r.Leftovers(); len(left) > 0 {
		t.Error("left after down:", left)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("left after down:", dir)
	}
}

// However a run ends, and whenever, nothing of it stays.
func TestNothingIsLeft(t *testing.T) {
	if said := mustRun(t, "build"); said != "" {
		t.Log(said)
	}
	init := func(r cluster.Run) int { return r.Init }
	supervisor := func(r cluster.Run) int { return r.Supervisor }
	for name, c := range map[string]struct {
		moment func(cluster.Run) bool
		victim func(cluster.Run) int
		signal syscall.Signal
	}{
		"supervisor killed at the very beginning": {born, supervisor, syscall.SIGKILL},
		"supervisor killed while it starts":       {starting, supervisor, syscall.SIGKILL},
		"supervisor killed when it is ready":      {ready, supervisor, syscall.SIGKILL},
		"supervisor interrupted while it starts":  {starting, supervisor, syscall.SIGINT},
		"supervisor interrupted when it is ready": {ready, supervisor, syscall.SIGINT},
		"init killed": {ready, init, syscall.SIGKILL},
	} {
		t.Run(name, func(t *testing.T) {
			server := clusterCommand("serve", "--dir", t.TempDir())
			var said bytes.Buffer
			server.Stdout, server.Stderr = &said, &said
			if err := server.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { // has ended already, if nothing has failed
				server.Process.Signal(syscall.SIGINT)
				server.Wait()
			})
			ours := func(r cluster.Run) bool { return r.Supervisor == server.Process.Pid }
			r := runOf(t, func(r cluster.Run) bool { return ours(r) && c.moment(r) })
			if err := syscall.Kill(c.victim(r), c.signal); err != nil {
				t.Fatal(err)
			}
			t.Logf("serve ended: %v", server.Wait()) // also waits for the janitor, which shares its output

			if left := r.Leftovers(); len(left) > 0 {
				t.Errorf("left: %s\n%s", strings.Join(left, ", "), said.String())
			}
		})
	}
}

// A run whose janitor was killed too is cleaned up by the next run.
func TestNextRunSweeps(t *testing.T) {
	server := clusterCommand("serve", "--dir", t.TempDir())
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	r := runOf(t, func(r cluster.Run) bool { return r.Supervisor == server.Process.Pid && ready(r) })
	for _, pid := range append(children(r.Supervisor), r.Supervisor) { // janitor and init
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	_ = server.Wait()
	if len(r.Leftovers()) == 0 {
		t.Fatal("nothing is left without a clean-up")
	}

	next := clusterCommand("serve", "--dir", t.TempDir())
	var said bytes.Buffer
	next.Stdout, next.Stderr = &said, &said
	if err := next.Start(); err != nil {
		t.Fatal(err)
	}
	runOf(t, func(r cluster.Run) bool { return r.Supervisor == next.Process.Pid })
	left := r.Leftovers()
	if err := next.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = next.Wait()
	if len(left) > 0 {
		t.Errorf("left after the next run has begun: %s\n%s", left, said.String())
	}
}

func born(r cluster.Run) bool { return r.ID != "" }

// starting is when the program inside has started programs.
func starting(r cluster.Run) bool {
	return slices.ContainsFunc(children(r.Init), func(program int) bool { return len(children(program)) > 3 })
}

func ready(r cluster.Run) bool {
	_, err := os.Stat(r.Kubeconfig())
	return err == nil
}

// runOf waits for a living run.
func runOf(t *testing.T, wanted func(cluster.Run) bool) cluster.Run {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute) // as a cluster may
	defer cancel()
	var found cluster.Run
	err := wait.PollUntilContextCancel(ctx, 2*time.Millisecond, true, func(context.Context) (bool, error) {
		runs, err := cluster.Runs()
		for _, r := range runs {
			if wanted(r) {
				found = r
				return true, nil
			}
		}
		return false, err
	})
	if err != nil {
		t.Fatal("wait for the run:", err)
	}
	return found
}

// children are the child processes of a process, of all its threads.
func children(pid int) []int {
	var found []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		content, _ := os.ReadFile(list)
		for _, word := range strings.Fields(string(content)) {
			if child, err := strconv.Atoi(word); err == nil {
				found = append(found, child)
			}
		}
	}
	return found
}

func clusterCommand(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), beCommand+"=1")
	return cmd
}

func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	output, err := clusterCommand(args...).CombinedOutput()
	if err != nil {
		t.Fatalf("cluster %s: %v\n%s", strings.Join(args, " "), err, output)
	}
	return string(output)
}

func hostClient(t *testing.T, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
