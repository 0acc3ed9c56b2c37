//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/node"
)

// times is how often a test does something again: as often as it is worth in each test run, or as often as somebody asks.
func times(t *testing.T, variable string, usual int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: want a number above zero", variable, text)
	}
	return n
}

// steady starts pods that stay and have all devices between them.
func (r *harness) steady(resource string, pods, each int) (stayed func()) {
	r.t.Helper()
	var all []func()
	for i := range pods {
		name := fmt.Sprintf("steady-%d", i)
		p := node.Pod(name, resource, each, "report", "--then-sleep")
		p.Spec.RestartPolicy = corev1.RestartPolicyAlways
		r.must(r.Create(r.ctx, p))
		r.running(name)
		r.must(r.WaitPod(r.soon(time.Minute), "default", name, func(p *corev1.Pod) (bool, error) {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].Ready, nil
		}))
		all = append(all, r.followPod(name))
	}
	return func() {
		for _, stayed := range all {
			stayed()
		}
	}
}

// devmgrd is killed again and again while pods come and go: the numbers never move, what runs runs on, and the plugin,
// which never registers again, is taken up each time. E2E_RESTARTS=50 does it 50 times.
func TestManyRestarts(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 6)
	stayed := r.steady(gpu, 2, 2)
	numbers := r.watchNumbers(gpu)

	ctx, cancel := context.WithCancel(r.ctx)
	var load sync.WaitGroup
	served := 0
	load.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("load-%d", i)
			if r.Create(ctx, node.Pod(name, gpu, 1, "report", "--then-sleep")) != nil {
				continue
			}
			if _, err := r.WaitPhase(ctx, name, corev1.PodRunning); err == nil {
				served++
			} else if ctx.Err() == nil {
				t.Error(err)
			}
			if err := r.Delete(context.WithoutCancel(ctx), name); err != nil {
				t.Error(err)
			}
		}
	})
	n := times(t, "E2E_RESTARTS", 10)
	for range n {
		r.must(r.Devmgrd.Kill())
		r.must(r.StartDevmgrd(r.ctx))
		r.until("the plugin is taken up again", func() bool {
			return r.metric(`devmgrd_plugin_up{resource_name="`+gpu+`"}`) == 1
		})
	}
	cancel()
	load.Wait()
	stayed()
	for _, n := range numbers() {
		if n != 6 {
			t.Errorf("the Node showed %d meanwhile, want 6 all the time", n)
		}
	}
	if n := len(p.Requests()); p.Calls(plugintest.Allocate) < 2+served {
		t.Errorf("%d pods were served with %d calls", served, n)
	}
	back := comebacks(t, r.Devmgrd.LogPath())
	if len(back) != n {
		t.Errorf("the log tells of %d comebacks, want %d", len(back), n)
	}
	t.Logf("%d restarts, %d pods served meanwhile; from the start until the plugin serves: median %s, longest %s",
		n, served, back[len(back)/2], back[len(back)-1])
}

// comebacks reads from devmgrd's log how long after each start but the first the plugin was serving; ascending.
func comebacks(t *testing.T, path string) []time.Duration {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []time.Duration
	var started time.Time
	for line := range strings.Lines(string(text)) {
		at, err := time.Parse("2006-01-02T15:04:05.000Z", strings.TrimPrefix(strings.Fields(line + " x")[0], "time="))
		switch {
		case err != nil:
		case strings.Contains(line, `msg="devmgrd started"`):
			started = at
		case strings.Contains(line, `msg="plugin serving"`) && !started.IsZero():
			all = append(all, at.Sub(started))
			started = time.Time{}
		}
	}
	if len(all) == 0 {
		t.Fatal("the log tells of no plugin")
	}
	all = all[1:] // the first time it registered
	slices.Sort(all)
	return all
}

// The kubelet restarts with every device in use, and one of them unhealthy: no pod is rejected, no number moves.
// E2E_RESTARTS=20 does it 20 times.
func TestTheKubeletRestarts(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	stayed := r.steady(gpu, 4, 1)
	p.SetHealth(p.Listed()[0].ID, "Unhealthy")
	r.until("one is sick", func() bool { return r.inState(gpu, "assigned") == 4 })
	numbers := r.watchNumbers(gpu)
	n := times(t, "E2E_RESTARTS", 4)
	for range n {
		r.must(r.Kubelet.Kill())
		r.must(r.Kubelet.Start(r.ctx))
		r.must(r.WaitNodeReady(r.ctx))
		// It has admitted all pods again when it serves what they say.
		r.until("the kubelet has taken up all pods", func() bool {
			_, err := r.PodLogs(r.ctx, "default", "steady-3", "main")
			return err == nil
		})
	}
	stayed()
	for _, n := range numbers() {
		if n != 4 {
			t.Errorf("the Node showed %d meanwhile, want 4 all the time", n)
		}
	}
	t.Logf("%d restarts of the kubelet with all devices in use: no pod was rejected", n)
}

// A plugin has registered with the kubelet too. Both would give its devices out, so whoever looks after the node is told.
func TestTheKubeletManagesItToo(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 4)
	rival := plugintest.New(t, "/var/lib/kubelet/device-plugins", gpu, plugintest.Devices(2)...)
	rival.Serve()
	rival.MustRegister()
	r.until("it is told on the Node", func() bool {
		events, err := r.Client().CoreV1().Events("default").List(r.ctx, metav1.ListOptions{FieldSelector: "reason=DevicesContested"})
		return err == nil && len(events.Items) == 1 && events.Items[0].InvolvedObject.Name == r.NodeName() && strings.Contains(events.Items[0].Message, gpu)
	})
	r.must(r.WaitReady(r.soon(20*time.Second), func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "node: another writer keeps changing the node's capacity of ["+gpu+"]")
	}))
	if n := r.metric(`devmgrd_node_capacity_contested{resource_name="` + gpu + `"}`); n != 1 {
		t.Errorf("devmgrd_node_capacity_contested is %v, want 1", n)
	}
}

// Where nothing keeps it from that, a container is created while devmgrd is away, without its devices. When devmgrd is
// back its owner is told, and as health.onMissingDevices says the pod is evicted.
func TestAContainerStartsWithoutUs(t *testing.T) {
	for _, policy := range []string{"event", "evict"} {
		t.Run(policy, func(t *testing.T) {
			r := start(t, "--set", "health.onMissingDevices="+policy)
			r.plugin(gpu, 2)
			r.run("good", gpu, 1)
			r.must(r.Devmgrd.Kill())
			if bare := r.run("bare", gpu, 1); bare.Env["DEVICES"] != "" {
				t.Fatalf("it has %q", bare.Env["DEVICES"])
			}
			r.must(r.StartDevmgrd(r.ctx))
			r.told("bare", "Warning StartedWithoutDevices: container main was started while devmgrd was away")
			if n := r.metric("devmgrd_started_without_devices_total"); n != 1 {
				t.Errorf("%v containers were found without devices, want 1", n)
			}
			if policy == "evict" {
				r.must(r.WaitPod(r.soon(30*time.Second), "default", "bare", func(p *corev1.Pod) (bool, error) { return p == nil, nil }))
			}
			if _, err := r.WaitPhase(r.soon(time.Minute), "good", corev1.PodRunning); err != nil {
				t.Error(err)
			}
			if events := r.Events(r.ctx, "good"); strings.Contains(events, "StartedWithoutDevices") {
				t.Errorf("told of a pod that has its device: %s", events)
			}
		})
	}
}

// Somebody deletes the Node object. A kubelet makes it again at its next start, without our numbers, and they come back.
func TestTheNodeIsMadeAnew(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 3)
	r.must(r.Client().CoreV1().Nodes().Delete(r.ctx, r.NodeName(), metav1.DeleteOptions{}))
	r.must(r.WaitReady(r.soon(20*time.Second), func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "node: there is no Node named "+r.NodeName())
	}))
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.must(r.WaitShown(r.soon(30*time.Second), gpu, 3))
	r.must(r.WaitReady(r.soon(20*time.Second), func(status int, _ string) bool { return status == http.StatusOK }))
}
