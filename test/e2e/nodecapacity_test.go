//go:build e2e

package e2e

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A plugin has registered with the kubelet too. Both would give its devices out, so the Node gets an event.
func TestNodeCapacity_KubeletWritesItToo_IsReported(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 4)
	rival := plugintest.New(t, "/var/lib/kubelet/device-plugins", gpu, plugintest.Devices(2)...)
	rival.Serve()
	rival.MustRegister()
	r.until("the Node has the event", func() bool {
		events, err := r.Client().CoreV1().Events("default").List(r.ctx, metav1.ListOptions{FieldSelector: "reason=DevicesContested"})
		return err == nil && slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == r.NodeName() && strings.Contains(e.Message, gpu)
		})
	})
	if out := r.says("status"); !strings.Contains(out, "it has ["+gpu+"] too") {
		t.Errorf("devmgrd status says:\n%s", out)
	}
	r.until("the metric says so", func() bool { return r.metric(`devmgrd_node_capacity_contested{resource_name="`+gpu+`"}`) == 1 })
}

// The Node object is deleted. The kubelet recreates it at its next start without devmgrd's capacity, which is published again.
func TestNodeCapacity_NodeRecreated_IsPublishedAgain(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 3)
	r.must(r.Client().CoreV1().Nodes().Delete(r.ctx, r.NodeName(), metav1.DeleteOptions{}))
	r.must(r.WaitReady(r.soon(), func(status int, text string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(text, "node: there is no Node named "+r.NodeName())
	}))
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.must(r.WaitShown(r.soon(), gpu, 3))
	r.must(r.WaitReady(r.soon(), func(status int, _ string) bool { return status == http.StatusOK }))
}

// shortestWindow is how long a Node's number outlasts devices that are listed no longer, and a device of a pod what is no failure yet.
const shortestWindow = 5 * time.Second

// Many plugins list nothing at their start, and all of their devices a moment later. The Node's number does not move, and
// no device counts as failed.
func TestPlugin_FirstListIsEmpty_NothingMovesAndNothingFails(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	r.run("a", gpu, 2)
	stays := r.followPod("a")
	all := p.Listed()
	failures := fmt.Sprintf("devmgrd_device_failures_total{resource_name=%q}", gpu)
	reported := func() int { return strings.Count(r.Events(r.ctx, "a"), "DeviceFailed") }
	round := func() (took time.Duration) {
		numbers, counted, known := r.watchNumbers(gpu), r.metric(failures), reported()
		p.Stop()
		r.until("the plugin is away", func() bool { return r.metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", gpu)) == 0 })
		p.Set()
		began := time.Now()
		p.Serve()
		p.MustRegister()
		r.until("devmgrd has the empty list", func() bool {
			return r.metric(fmt.Sprintf("devmgrd_plugin_up{resource_name=%q}", gpu)) == 1 && r.inState(gpu, "free")+r.inState(gpu, "stale") == 0
		})
		<-time.After(time.Second) // the plugin takes that long
		p.Set(all...)
		r.until("devmgrd has all devices", func() bool { return r.inState(gpu, "free") == 2 })
		took = time.Since(began)
		r.must(r.WaitShown(r.soon(), gpu, 4))
		if shown := numbers(); took < shortestWindow {
			r.steadyNumbers(shown, 4)
			if n := r.metric(failures); n != counted {
				t.Errorf("%v failures are counted, and %v were before", n, counted)
			}
			if n := reported(); n != known {
				t.Errorf("a failure was reported: %s", r.Events(r.ctx, "a"))
			}
		}
		return took
	}
	for range 3 {
		r.briefly("the empty list", shortestWindow, round)
	}
	r.run("b", gpu, 2)
	stays()

	// A device that stays away has failed.
	before := r.metric(failures)
	p.Set(all[2:]...)
	r.told("a", "DeviceFailed")
	r.until("two failures are counted", func() bool { return r.metric(failures) == before+2 })
}

// All devices are in use, and two pods wait for the scheduler. Pods that are bound past the scheduler are rejected by the
// kubelet. They never raise the Node's number, so the scheduler binds none of the two.
func TestPod_BoundPastTheScheduler_LeavesTheNodesNumberAlone(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 8)
	r.run("all", gpu, 8)
	all, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, "all", metav1.GetOptions{})
	r.must(err)
	// A kubelet that has just started admits the oldest pod first, and pods of one second in any order.
	<-time.After(time.Until(all.CreationTimestamp.Add(time.Second)))
	pending := []string{"pending-0", "pending-1"}
	for _, name := range pending {
		r.must(r.Create(r.ctx, node.Pod(name, gpu, 1, "report", "--then-sleep")))
		r.unscheduled(name)
	}
	numbers := r.watchNumbers(gpu)
	for _, count := range []int{1, 1000} {
		for _, restarts := range []bool{false, true} {
			name := fmt.Sprintf("forced-%d-%v", count, restarts)
			if restarts { // a kubelet that has just started reports such a pod as pending for some seconds
				r.must(r.Kubelet.Kill())
			}
			forced := node.Pod(name, gpu, count, "report", "--then-sleep")
			forced.Spec.NodeName = r.NodeName()
			r.must(r.Create(r.ctx, forced))
			if restarts {
				r.must(r.Kubelet.Start(r.ctx))
			}
			r.must(r.WaitPod(r.soon(), metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) {
				return p != nil && p.Status.Phase == corev1.PodFailed && p.Status.Reason == "OutOf"+gpu, nil
			}))
			r.must(r.Delete(r.ctx, name))
		}
	}
	// A pod that asks for nothing shows that the scheduler has had its turn, and that devmgrd has seen what came before.
	r.run("plain", "", 0)
	for _, n := range numbers() {
		if n != 8 {
			t.Errorf("the Node showed %d meanwhile, want 8 all the time", n)
		}
	}
	for _, name := range pending {
		p, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, name, metav1.GetOptions{})
		r.must(err)
		if p.Spec.NodeName != "" {
			t.Errorf("pod %s was bound to %s", name, p.Spec.NodeName)
		}
	}
	r.must(r.Delete(r.ctx, "all"))
	for _, name := range pending {
		r.running(name)
	}
}
