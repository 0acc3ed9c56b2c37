//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// times is how often a test does something again: a few times in each test run, or as often as the variable says.
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
		r.must(r.WaitPod(r.soon(), "default", name, func(p *corev1.Pod) (bool, error) {
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

// devmgrd is killed again and again while pods come and go: the Node's capacity never moves, what runs runs on, and the plugin,
// which never registers again, is taken up each time. E2E_RESTARTS=50 does it 50 times.
func TestRestart_Repeated_NumbersStayAndPluginReturns(t *testing.T) {
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
	for i := range n {
		r.must(r.Devmgrd.Kill())
		r.must(r.StartDevmgrd(r.ctx))
		r.until("the plugin is taken up again", func() bool {
			return r.metric(`devmgrd_plugin_up{resource_name="`+gpu+`"}`) == 1
		})
		r.until("the log, which is written in the background, says so", func() bool { return len(comebacks(t, r.Devmgrd.LogPath())) == i+1 })
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
	t.Logf("%d restarts, %d pods served meanwhile; from the start until the plugin serves: median %s, longest %s",
		n, served, back[len(back)/2], back[len(back)-1])
}

// The kubelet restarts with every device in use, and one of them unhealthy: no pod is rejected, no number moves.
// E2E_RESTARTS=20 does it 20 times.
func TestKubelet_Restarts_NoPodIsRejected(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	stayed := r.steady(gpu, 4, 1)
	p.SetHealth(p.Listed()[0].ID, "Unhealthy")
	r.until("one is unhealthy", func() bool { return r.inState(gpu, "assigned") == 4 })
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

// devmgrd is killed at any moments, while pods come and go and the plugin registers again. Afterwards every pod has what it
// had, and everything else is free. E2E_KILLS=200 kills it 200 times; E2E_SEED chooses the moments.
func TestRestart_KilledAtRandom_NothingIsLost(t *testing.T) {
	kills, seed := times(t, "E2E_KILLS", 12), times(t, "E2E_SEED", int(time.Now().UnixNano()>>10&0xffffff))
	t.Logf("%d kills, E2E_SEED=%d", kills, seed)
	dice := rand.New(rand.NewPCG(uint64(seed), 0))
	r := start(t)
	r.must(r.FailClosed(r.soon())) // containers that ask for devices wait for devmgrd
	p := r.plugin(gpu, 6)
	before := map[string]string{"a": r.stays("a", 1), "b": r.stays("b", 2)}

	ctx, stop := context.WithCancel(r.ctx)
	var load sync.WaitGroup
	served := make([]int, 2)
	for i := range served {
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name := fmt.Sprintf("load-%d-%d", i, n)
				// After an interrupted creation it is unknown whether there is a pod to delete.
				if err := r.Create(context.WithoutCancel(ctx), node.Pod(name, gpu, 1, "report", "--then-sleep")); err != nil {
					continue
				}
				limit, cancel := context.WithTimeout(ctx, patience)
				_, err := r.WaitPhase(limit, name, corev1.PodRunning)
				cancel()
				if err == nil {
					served[i]++
				} else if ctx.Err() == nil {
					t.Error(err)
				}
				if err := r.Delete(context.WithoutCancel(ctx), name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range kills {
		time.Sleep(time.Duration(dice.IntN(700)) * time.Millisecond) // the moment is the dice's to choose
		if dice.IntN(3) == 0 {
			load.Go(func() { _ = p.Register() }) // devmgrd may die over it
		}
		r.must(r.Devmgrd.Kill())
		r.must(r.Devmgrd.Start(r.ctx))
	}
	r.must(r.WaitReady(r.soon(), func(status int, _ string) bool { return status == http.StatusOK }))
	r.until("a pod is served", func() bool { return r.metric(`devmgrd_admission_duration_seconds_count`) > 0 })
	stop()
	load.Wait()
	r.states(3, 3, 0)
	for name, had := range before {
		if has := r.again(name); has != had {
			t.Errorf("%s had %s and has %s", name, had, has)
		}
	}
	if n := r.metric("devmgrd_store_damaged_files"); n != 0 {
		t.Errorf("%v state files were taken for damaged", n)
	}
	if got := r.run("rest", gpu, 3).Env["DEVICES"]; strings.Contains(got, before["a"]) {
		t.Errorf("a has %s, and another pod %s", before["a"], got)
	}
	t.Logf("%d pods were served meanwhile", served[0]+served[1])
}

// kill -9, and everything is as it was: the same assignments without another Allocate, the same numbers on the Node.
func TestRestart_Kill9_NothingChanges(t *testing.T) {
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
	r.must(r.Containers.Kill(r.ctx, node.ContainerID(pod)))
	r.must(r.WaitPod(r.soon(), "default", "a", func(now *corev1.Pod) (bool, error) {
		return len(now.Status.ContainerStatuses) > 0 && now.Status.ContainerStatuses[0].RestartCount > 0 &&
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

// watchNumbers follows what the Node shows of a resource; the returned function returns all values seen.
func (r *harness) watchNumbers(resource string) func() []int64 {
	r.t.Helper()
	stop, err := r.WatchShown(r.ctx, resource)
	r.must(err)
	return func() []int64 {
		all := stop()
		if len(all) == 0 {
			r.t.Error("the watch has seen nothing")
		}
		return all
	}
}

// steadyNumbers wants the Node to have shown no other number.
func (r *harness) steadyNumbers(shown []int64, want int64) {
	r.t.Helper()
	for _, n := range shown {
		if n != want {
			r.t.Errorf("the Node showed %d meanwhile, want %d all the time", n, want)
		}
	}
}

// Without devmgrd pods that ask for no device start as usual, and the Node's numbers stay.
func TestRestart_Stopped_OtherPodsStart(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 2)
	r.run("a", gpu, 1)
	r.must(r.Devmgrd.Stop(stopLimit))
	r.run("plain", "", 0)
	capacity, allocatable, err := r.Shown(r.ctx, gpu)
	r.must(err)
	if capacity != 2 || allocatable != 2 {
		t.Errorf("the Node shows %d and %d without devmgrd, want 2", capacity, allocatable)
	}
	r.must(r.StartDevmgrd(r.ctx))
	r.run("b", gpu, 1)
}

// With an API server that is away at the start, everything works that does not need it.
func TestRestart_APIServerAway_DevicesAreServed(t *testing.T) {
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

	r.must(r.Devmgrd.Stop(stopLimit))
	r.must(r.APIServer.Kill())
	r.must(r.Devmgrd.Start(r.ctx))
	r.must(r.WaitReady(r.soon(), func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "registration: ok") && strings.Contains(text, "store: ok") &&
			strings.Contains(text, "nri: ok") && !strings.Contains(text, "pods: ok") && !strings.Contains(text, "node: ok")
	}))
	p := plugintest.Start(t, node.SocketDir, nic, plugintest.Devices(3)...) // registers without an API server
	r.until("the plugin is taken up", func() bool { return p.Calls(plugintest.ListAndWatch) > 0 })

	// Containers that run are put right: each restarts with what it had.
	for _, id := range ids {
		r.must(r.Containers.Kill(r.ctx, id))
	}
	r.until("both containers have restarted", func() bool { return r.restarted(ids) })
	r.until("the container has its device again", func() bool {
		stamps, err := r.Stamps(r.ctx)
		return err == nil && len(stamps) == 1 && stamps[0].Pod == "default/a" && stamps[0].Devices[gpu][0] == before.Env["DEVICES"]
	})

	r.must(r.APIServer.Start(r.ctx))
	r.must(r.WaitAPIServer(r.ctx))
	r.must(r.WaitReady(r.soon(), func(status int, _ string) bool { return status == http.StatusOK }))
	r.must(r.WaitShown(r.soon(), nic, 3))
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

// A second devmgrd fails, names the first, and disturbs nothing.
func TestRestart_SecondDevmgrd_Fails(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1)
	for name, args := range map[string][]string{
		"same-state": {"--set", "metrics.listen="},
		"own-state":  {"--set", "metrics.listen=", "--set", "stateDir=/var/lib/devmgrd-2"},
	} {
		second := r.Another("devmgrd-"+name, args...)
		r.must(second.Start(r.ctx))
		if err := second.Wait(r.soon()); err == nil || !strings.Contains(err.Error(), "exit status 1") {
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

// A pod that is deleted, and whose container the kubelet ends, while devmgrd is away, holds nothing when devmgrd is back.
func TestRestart_PodDeletedMeanwhile_DevicesAreFree(t *testing.T) {
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
