//go:build e2e

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/node"
)

// kill -9, and everything is as it was: the same assignments without another Allocate, the same numbers on the Node.
func TestKill9(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	a := node.Pod("a", gpu, 2, "report", "--then-sleep")
	a.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, a))
	before := r.running("a")
	pod, err := r.WaitPhase(r.ctx, "a", corev1.PodRunning)
	r.must(err)

	numbers := r.watchNumbers(gpu)
	for range 3 {
		r.must(r.Devmgrd.Kill())
		r.must(r.StartDevmgrd(r.ctx))
	}
	r.until("the plugin, which never registers again, is taken up again", func() bool {
		return r.metric(`devmgrd_plugin_up{resource_name="`+gpu+`"}`) == 1
	})

	// The container restarts and gets the same devices.
	r.must(r.KillContainer(r.ctx, node.ContainerID(pod)))
	r.must(r.WaitPod(r.soon(time.Minute), "default", "a", func(now *corev1.Pod) (bool, error) {
		return len(now.Status.ContainerStatuses) > 0 && now.Status.ContainerStatuses[0].RestartCount == 1 &&
			now.Status.ContainerStatuses[0].State.Running != nil, nil
	}))
	if after := r.running("a"); after.Env["DEVICES"] != before.Env["DEVICES"] || before.Env["DEVICES"] == "" {
		t.Errorf("the container had %q and has %q", before.Env["DEVICES"], after.Env["DEVICES"])
	}
	if n := p.Calls(plugintest.Allocate); n != 1 {
		t.Errorf("Allocate was called %d times, want once", n)
	}
	// Another pod gets others.
	if b := r.run("b", gpu, 2); b.Env["DEVICES"] == before.Env["DEVICES"] {
		t.Errorf("both pods have %q", b.Env["DEVICES"])
	}
	for _, n := range numbers() {
		if n != 4 {
			t.Errorf("the Node showed %d meanwhile, want 4 all the time", n)
		}
	}
}

// watchNumbers follows what the Node shows of a resource; the function it returns gives all that was seen.
func (r *harness) watchNumbers(resource string) func() []int64 {
	r.t.Helper()
	w, err := r.Client().CoreV1().Nodes().Watch(r.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + r.NodeName()})
	r.must(err)
	seen := make(chan []int64, 1)
	go func() {
		var all []int64
		for e := range w.ResultChan() {
			if n, ok := e.Object.(*corev1.Node); ok && e.Type != watch.Bookmark {
				c, a := n.Status.Capacity[corev1.ResourceName(resource)], n.Status.Allocatable[corev1.ResourceName(resource)]
				all = append(all, c.Value(), a.Value())
			}
		}
		seen <- all
	}()
	return func() []int64 {
		w.Stop()
		all := <-seen
		if len(all) == 0 {
			r.t.Error("the watch has seen nothing")
		}
		return all
	}
}

// Without devmgrd pods that ask for no device start as usual, and the Node's numbers stay.
func TestDevmgrdStopped(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	r.run("a", gpu, 1)
	r.must(r.Devmgrd.Stop(10 * time.Second))
	r.run("plain", "", 0)
	capacity, allocatable, err := r.Shown(r.ctx, gpu)
	r.must(err)
	if capacity != 2 || allocatable != 2 {
		t.Errorf("the Node shows %d and %d without devmgrd, want 2", capacity, allocatable)
	}
	r.must(r.StartDevmgrd(r.ctx))
	r.run("b", gpu, 1)
}

// An API server that is away at the start keeps nobody from what does not need it.
func TestTheAPIServerIsAwayAtTheStart(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	a := node.Pod("a", gpu, 1, "report", "--then-sleep")
	plain := node.Pod("plain", "", 0, "report", "--then-sleep")
	for _, p := range []*corev1.Pod{a, plain} {
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		r.must(r.Create(r.ctx, p))
	}
	before := r.running("a")
	r.running("plain")
	var ids []string
	for _, name := range []string{"a", "plain"} {
		pod, err := r.WaitPhase(r.ctx, name, corev1.PodRunning)
		r.must(err)
		ids = append(ids, node.ContainerID(pod))
	}

	r.must(r.Devmgrd.Stop(10 * time.Second))
	r.must(r.APIServer.Kill())
	r.must(r.Devmgrd.Start(r.ctx))
	r.must(r.WaitReady(r.soon(20*time.Second), func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "registration: ok") && strings.Contains(text, "store: ok") &&
			strings.Contains(text, "nri: ok") && !strings.Contains(text, "pods: ok") && !strings.Contains(text, "node: ok")
	}))
	p := plugintest.Start(t, node.SocketDir, nic, plugintest.Devices(3)...) // registers without an API server
	r.until("the plugin is taken up", func() bool { return p.Calls(plugintest.ListAndWatch) == 1 })

	// Containers that run are put right: each restarts with what it had.
	for _, id := range ids {
		r.must(r.KillContainer(r.ctx, id))
	}
	r.until("both containers have restarted", func() bool { return r.restarted(ids) })
	r.until("the container has its device again", func() bool {
		stamps, err := r.Stamps(r.ctx)
		return err == nil && len(stamps) == 1 && stamps[0].Pod == "default/a" && stamps[0].Devices[gpu][0] == before.Env["DEVICES"]
	})

	r.must(r.APIServer.Start(r.ctx))
	r.must(r.WaitAPIServer(r.ctx))
	r.must(r.WaitReady(r.soon(30*time.Second), func(status int, _ string) bool { return status == http.StatusOK }))
	r.must(r.WaitShown(r.soon(30*time.Second), nic, 3))
}

// restarted reports whether two containers run, and none of those with these IDs.
func (r *harness) restarted(old []string) bool {
	ids, err := r.RunningContainers(r.ctx, "main")
	if err != nil || len(ids) != len(old) {
		return false
	}
	for _, id := range ids {
		for _, was := range old {
			if id == was {
				return false
			}
		}
	}
	return true
}

// A second devmgrd is told who the first is, and disturbs nothing.
func TestASecondDevmgrd(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1)
	for name, args := range map[string][]string{
		"same-state": {"--set", "metrics.listen="},
		"own-state":  {"--set", "metrics.listen=", "--set", "stateDir=/var/lib/devmgrd-2"},
	} {
		second := r.Another("devmgrd-"+name, args...)
		r.must(second.Start(r.ctx))
		if err := second.Wait(r.soon(20 * time.Second)); err == nil || !strings.Contains(err.Error(), "exit status 1") {
			t.Errorf("%s: the second one ended with %v, want exit status 1", name, err)
		}
		text, err := os.ReadFile(second.LogPath())
		r.must(err)
		if want := "pid " + itoa(r.Devmgrd.Pid()); !strings.Contains(string(text), want) {
			t.Errorf("%s: the message does not name the first one (%s):\n%s", name, want, text)
		}
	}
	r.run("a", gpu, 1)
}

// The state file is gone, and containers run: their stamps tell what they hold, and nobody else gets it.
func TestALostStateFile(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	before := map[string]string{}
	for _, name := range []string{"a", "b"} {
		pod := node.Pod(name, gpu, 1, "report", "--then-sleep")
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		r.must(r.Create(r.ctx, pod))
		before[name] = r.running(name).Env["DEVICES"]
	}
	r.must(r.Delete(r.ctx, "a")) // so that the lowest is free, and b's is not
	r.must(r.Devmgrd.Kill())
	r.must(os.Remove(filepath.Join(node.StateDir, "state.db")))
	r.must(r.StartDevmgrd(r.ctx))
	p.MustRegister() // nobody remembers it
	for _, name := range []string{"c", "d"} {
		if got := r.run(name, gpu, 1).Env["DEVICES"]; got == before["b"] {
			t.Errorf("%s has %s, with which b runs", name, got)
		}
	}
	pod, err := r.WaitPhase(r.ctx, "b", corev1.PodRunning)
	r.must(err)
	r.must(r.KillContainer(r.ctx, node.ContainerID(pod)))
	r.must(r.WaitPod(r.soon(time.Minute), "default", "b", func(now *corev1.Pod) (bool, error) {
		return len(now.Status.ContainerStatuses) > 0 && now.Status.ContainerStatuses[0].RestartCount == 1 &&
			now.Status.ContainerStatuses[0].State.Running != nil, nil
	}))
	if after := r.running("b").Env["DEVICES"]; after != before["b"] {
		t.Errorf("b had %s and has %s", before["b"], after)
	}
	if n := r.metric(`devmgrd_devices{resource_name="` + gpu + `",state="quarantined"}`); n != 0 {
		t.Errorf("%v devices are set aside still", n)
	}
}

// A pod that is deleted, and whose container the kubelet ends, while devmgrd is away, holds nothing when devmgrd is back.
func TestAPodIsDeletedWithoutUs(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1)
	device := r.run("a", gpu, 1).Env["DEVICES"]
	r.must(r.Devmgrd.Kill())
	r.must(r.Delete(r.ctx, "a"))
	if left, err := r.RunningContainers(r.ctx, "main"); err != nil || len(left) != 0 {
		t.Fatalf("the pod's container has not ended: %v (%v)", left, err)
	}
	r.must(r.StartDevmgrd(r.ctx))
	r.until("the device is free", func() bool { return r.inState(gpu, "free") == 1 && r.inState(gpu, "assigned") == 0 })
	if got := r.run("b", gpu, 1).Env["DEVICES"]; got != device || device == "" {
		t.Errorf("the next pod has %q, the one before had %q", got, device)
	}
}
