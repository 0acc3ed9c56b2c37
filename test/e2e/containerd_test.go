//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// containerd is away while pods end: on their own, deleted, and deleted by force. Nothing is lost and nothing leaks.
func TestContainerd_RestartsWhilePodsEnd_NothingLeaks(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 4)
	had := map[string]string{}
	for _, name := range []string{"ends", "deleted", "forced"} {
		had[name] = r.run(name, gpu, 1).Env["DEVICES"]
	}
	had["stays"] = r.stays("stays", 1)
	r.must(r.Runtime.Kill())
	r.must(syscall.Kill(processWith(t, "DEVICES="+had["ends"]), syscall.SIGKILL))
	soon, now := int64(1), int64(0)
	pods := r.Client().CoreV1().Pods(metav1.NamespaceDefault)
	r.must(pods.Delete(r.ctx, "deleted", metav1.DeleteOptions{GracePeriodSeconds: &soon}))
	r.must(pods.Delete(r.ctx, "forced", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	r.until("devmgrd has noticed", func() bool { return r.metric("devmgrd_nri_connected") == 0 })
	if n := r.inState(gpu, "free"); n != 0 {
		t.Errorf("%v devices are free while it is unknown what runs", n)
	}
	r.must(r.Runtime.Start(r.ctx))
	r.must(r.WaitRuntime(r.ctx))
	// The pod's end is the kubelet's, which may have to try again; the devices are ours, and are to follow soon.
	r.must(r.WaitPod(r.soon(), "default", "deleted", func(p *corev1.Pod) (bool, error) { return p == nil, nil }))
	r.states(3, 1, 0)
	if got := r.run("next", gpu, 3).Env["DEVICES"]; strings.Contains(got, had["stays"]) {
		t.Errorf("the next pod has %s, and another one runs with %s", got, had["stays"])
	}
	if after := r.again("stays"); after != had["stays"] {
		t.Errorf("it had %s and has %s", had["stays"], after)
	}
}

// A concealer is an NRI plugin that fails at the end of each container. NRI then hides the end from the plugins after it.
type concealer struct{}

func (concealer) StopContainer(context.Context, *api.PodSandbox, *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, errors.New("not today")
}

func (concealer) RemoveContainer(context.Context, *api.PodSandbox, *api.Container) error {
	return errors.New("not today")
}

// The ends of containers are hidden from devmgrd. The end of their sandbox releases their devices.
func TestContainerEnd_HiddenByAnotherNRIPlugin_ReleasesDevices(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1)
	r.joinsNRI("concealer", "00", concealer{})

	held := r.run("a", gpu, 1).Env["DEVICES"]
	r.must(r.Delete(r.ctx, "a"))
	if got := r.run("b", gpu, 1).Env["DEVICES"]; got != held {
		t.Errorf("pod b has %q, want %q", got, held)
	}
	r.logs("end of a container was not reported") // the other plugin has hidden something
}

// logs waits until devmgrd's log, which is written in the background, has these words.
func (r *harness) logs(words string) {
	r.t.Helper()
	r.until("the log says: "+words, func() bool {
		log, err := os.ReadFile(r.Devmgrd.LogPath())
		return err == nil && strings.Contains(string(log), words)
	})
}

// Another NRI plugin sets a variable that devmgrd sets too, so NRI rejects the container. The pod's events name the other
// plugin and, from devmgrd, the cause. The container starts as soon as the other plugin leaves.
func TestContainer_VariableSetByAnotherNRIPlugin_EventsNameIt(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	for name, index := range map[string]string{"before": "04", "after": "10"} {
		leave := r.meddle(index, &meddler{change: func(*api.Container) *api.ContainerAdjustment {
			a := &api.ContainerAdjustment{}
			a.AddEnv("DEVICES", "another plugin's")
			return a
		}})
		r.must(r.Create(r.ctx, node.Pod(name, gpu, 1, "report", "--then-sleep")))
		r.told(name, index+"-meddler")
		r.until("devmgrd reports the cause", func() bool {
			r.nudge(name)
			events := r.Events(r.ctx, name)
			return strings.Contains(events, "ContainerNotStarted") && strings.Contains(events, "another NRI plugin refuses it, or sets the same variable")
		})
		t.Logf("index %s:\n%s", index, r.Events(r.ctx, name))
		leave()
		r.nudge(name)
		if got := r.running(name).Env["DEVICES"]; !strings.HasPrefix(got, "dev-") {
			t.Errorf("pod %s has %q", name, got)
		}
	}
	_, err := r.WaitPhase(r.ctx, "before", corev1.PodRunning)
	r.must(err)
}

// The runtime's own restart is a pause: nothing is lost, and containers start again afterwards.
func TestContainerd_Restarts_NothingIsLost(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	r.run("a", gpu, 1)
	r.must(r.Runtime.Kill())
	r.until("devmgrd has noticed", func() bool { return r.metric("devmgrd_nri_connected") == 0 })
	r.must(r.Runtime.Start(r.ctx))
	r.must(r.WaitRuntime(r.ctx))
	r.until("devmgrd is connected again", func() bool { return r.metric("devmgrd_nri_connected") == 1 })
	r.run("b", gpu, 1)
	r.must(r.Delete(r.ctx, "a"))
	r.run("c", gpu, 1)
}

// containerd loses sight of a container whose processes cannot be killed, as processes in a driver's uninterruptible
// sleep: its shim hangs while containerd restarts, or is killed. The device stays with the processes although their pod is
// deleted by force.
func TestContainer_LostByContainerd_KeepsItsDeviceWhileItsProcessesLive(t *testing.T) {
	for name, lose := range map[string]func(r *harness, shim int){
		"shim hangs while containerd and devmgrd restart": func(r *harness, shim int) {
			r.must(r.Devmgrd.Kill())
			r.must(r.Runtime.Kill())
			r.must(syscall.Kill(shim, syscall.SIGSTOP))
			r.t.Cleanup(func() { _ = syscall.Kill(shim, syscall.SIGCONT) })
			r.must(r.Runtime.Start(r.ctx))
			r.must(r.WaitRuntime(r.ctx))
			r.must(r.StartDevmgrd(r.ctx))
		},
		"shim is killed": func(r *harness, shim int) {
			r.must(syscall.Kill(shim, syscall.SIGKILL))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t)
			r.worn = true // the shim stays, and its pod with it
			r.plugin(gpu, 1)
			process := processWith(t, "DEVICES="+r.run("a", gpu, 1).Env["DEVICES"])
			shim := parent(t, process)
			thaw := freeze(t, process)
			lose(r, shim)
			r.must(r.Create(r.ctx, node.Pod("b", gpu, 1, "report", "--then-sleep"))) // for the scheduler: a busy device soon leaves the Node
			r.until("containerd has lost sight of it", func() bool { ids, err := r.RunningContainers(r.ctx, "main"); return err == nil && len(ids) == 0 })
			now := int64(0)
			r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &now}))
			r.told("b", "DeviceBusy")
			r.logs("devices of an ended pod are not proved free")
			r.until("the device is busy", func() bool { return r.inState(gpu, "busy") == 1 })
			r.says("devices", "busy", fmt.Sprintf("process %d", process), "has not ended")
			if out := r.says("assignments"); strings.Contains(out, "default/b") || !alive(process) {
				t.Fatalf("process %d lives: %v; assignments:\n%s", process, alive(process), out)
			}
			thaw()
			_, err := r.WaitPhase(r.soon(), "b", corev1.PodRunning)
			r.must(err)
			if alive(process) {
				t.Error("the process of pod a lives")
			}
		})
	}
}

// freeze keeps a process from running, and SIGKILL waiting, until the function that it returns is called.
func freeze(t *testing.T, pid int) (thaw func()) {
	t.Helper()
	warm, err := node.Freeze(pid)
	if err != nil {
		t.Fatal(err)
	}
	thaw = func() {
		if err := warm(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(thaw)
	return thaw
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
