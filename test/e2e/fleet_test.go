//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// condition returns one of the Node's conditions.
func (r *harness) condition(kind corev1.NodeConditionType) (c corev1.NodeCondition) {
	r.t.Helper()
	n := asked(r, func() (*corev1.Node, error) {
		return r.Client().CoreV1().Nodes().Get(r.ctx, r.NodeName(), metav1.GetOptions{})
	})
	for _, one := range n.Status.Conditions {
		if one.Type == kind {
			c = one
		}
	}
	return c
}

// untilCondition waits until a condition has a status and a reason, and returns it.
func (r *harness) untilCondition(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) (c corev1.NodeCondition) {
	r.t.Helper()
	r.until(fmt.Sprintf("%s is %s, %s", kind, status, reason), func() bool {
		c = r.condition(kind)
		return c.Status == status && c.Reason == reason
	})
	return c
}

// What a person with kubectl, or a controller that repairs nodes, sees of the devices and of devmgrd; and the kubelet leaves it there.
func TestNodeConditions_DevicesAndComponents_AreShown(t *testing.T) {
	r := start(t, "--set", "node.expected="+gpu+"=3", "--set", "metrics.devices=true")
	r.untilCondition("DevicesHealthy", corev1.ConditionFalse, "DevicesMissing")
	p := r.plugin(gpu, 3)
	r.run("a", gpu, 1)
	healthy := r.untilCondition("DevicesHealthy", corev1.ConditionTrue, "AllDevicesHealthy")
	if want := gpu + ": 3"; healthy.Message != want {
		t.Errorf("the message is %q, want %q", healthy.Message, want)
	}

	// The fleet's metric has the device's pod.
	held := r.held("a", "main")["main"][0]
	if n := r.metric(fmt.Sprintf(`devmgrd_device_info{container="main",cordoned="no",device=%q,healthy="yes",namespace="default",pod="a",resource_name=%q,state="assigned"}`, held, gpu)); n != 1 {
		t.Errorf("devmgrd_device_info is %v", n)
	}

	p.SetHealth(held, "Unhealthy")
	unhealthy := r.untilCondition("DevicesHealthy", corev1.ConditionFalse, "DeviceUnhealthy")
	if want := fmt.Sprintf("%s: 1 of 3 devices are unhealthy: %s", gpu, held); unhealthy.Message != want {
		t.Errorf("the message is %q, want %q", unhealthy.Message, want)
	}
	p.SetHealth(held, "Healthy")

	// A restart changes nothing, and the kubelet's next status keeps what is there.
	var ready corev1.NodeCondition
	r.briefly("the restart of devmgrd", 10*time.Second, func() time.Duration { // after 15 s the condition would be false
		ready = r.untilCondition("DeviceManagerReady", corev1.ConditionTrue, "ComponentsReady")
		began := time.Now()
		r.must(r.Devmgrd.Kill())
		r.must(r.StartDevmgrd(r.ctx))
		return time.Since(began)
	})
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	again := r.untilCondition("DevicesHealthy", corev1.ConditionTrue, "AllDevicesHealthy")
	if !again.LastTransitionTime.After(unhealthy.LastTransitionTime.Time) {
		t.Errorf("it is true since %v, and was false since %v", again.LastTransitionTime, unhealthy.LastTransitionTime)
	}
	if is := r.condition("DeviceManagerReady"); is.Status != corev1.ConditionTrue || !is.LastTransitionTime.Equal(&ready.LastTransitionTime) {
		t.Errorf("after a restart: %+v, before %+v", is, ready)
	}

	// Without the runtime devmgrd is not ready.
	r.must(r.Runtime.Stop(stopLimit))
	if c := r.untilCondition("DeviceManagerReady", corev1.ConditionFalse, "ComponentsNotReady"); !strings.Contains(c.Message, "nri: ") {
		t.Errorf("the message is %q", c.Message)
	}
	r.must(r.Runtime.Start(r.ctx))
	r.untilCondition("DeviceManagerReady", corev1.ConditionTrue, "ComponentsReady")
}

// A new node has a taint until the Node's condition says that all expected devices are there: the condition is at no moment true before, and the pod
// for which an autoscaler has added the node is scheduled when they can be requested. The test removes the taint, as a controller does that watches the condition.
func TestNodeConditions_StartupGate_PodIsScheduledWhenAllDevicesAreThere(t *testing.T) {
	r := start(t, "--set", "node.expected="+gpu+"=3")
	taint := func(value string) {
		t.Helper()
		_, err := r.Client().CoreV1().Nodes().Patch(r.ctx, r.NodeName(), types.MergePatchType, []byte(`{"spec": {"taints": `+value+`}}`), metav1.PatchOptions{})
		r.must(err)
	}
	t.Cleanup(func() {
		_, _ = r.Client().CoreV1().Nodes().Patch(context.WithoutCancel(r.ctx), r.NodeName(), types.MergePatchType, []byte(`{"spec": {"taints": null}}`), metav1.PatchOptions{})
	})
	taint(`[{"key": "readiness.k8s.io/devices", "effect": "NoSchedule"}]`)
	r.must(r.Create(r.ctx, node.Pod("a", gpu, 2, "report", "--then-sleep")))

	p := r.serve(gpu, 2) // one device is missing
	r.until("the Node shows the devices", func() bool { return r.WaitShown(r.soon(), gpu, 2) == nil })
	r.untilCondition("DevicesHealthy", corev1.ConditionFalse, "DevicesMissing")
	r.unscheduled("a")
	// From here on: before, the Node may have had the condition of a former test.
	statuses, err := r.Client().CoreV1().Nodes().Watch(r.ctx, metav1.SingleObject(metav1.ObjectMeta{Name: r.NodeName()}))
	r.must(err)
	defer statuses.Stop()
	p.Set(append(p.Listed(), &plugintest.Device{ID: "dev-000002", Health: plugintest.Healthy})...)
	for event := range statuses.ResultChan() {
		n, is := event.Object.(*corev1.Node)
		if !is || !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == "DevicesHealthy" && c.Status == corev1.ConditionTrue
		}) {
			continue
		}
		if shown := n.Status.Allocatable[gpu]; shown.Value() != 3 {
			t.Errorf("the condition is true while the Node has %s devices", shown.String())
		}
		break
	}
	taint("null")
	r.running("a")
}

// A device is taken out of service by the Node's annotation, as from a repository: set, changed and removed, also while devmgrd is
// away, with a mistake, and next to the command.
func TestCordon_ByAnnotation_DeviceIsOutOfService(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 4)
	ids := make([]string, 0, 4)
	for _, d := range p.Listed() {
		ids = append(ids, d.ID)
	}
	annotate := func(value any) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"devmgrd.io/cordon": value}}})
		r.must(err)
		_, err = r.Client().CoreV1().Nodes().Patch(r.ctx, r.NodeName(), types.MergePatchType, patch, metav1.PatchOptions{})
		r.must(err)
	}
	shows := func(n int64) {
		t.Helper()
		r.must(r.WaitShown(r.soon(), gpu, n))
	}

	annotate(fmt.Sprintf("%s: {%s: ticket 4711, %s: dust}", gpu, ids[0], ids[1]))
	shows(2)
	r.says("devices "+gpu, ids[0], "cordoned", "by the Node's annotation: ticket 4711", ids[1], "cordoned", "dust")
	r.fails("uncordon "+gpu+"/"+ids[0], 1, "is cordoned by the Node's annotation devmgrd.io/cordon; remove it there")
	r.says("cordon "+gpu+"/"+ids[1]+" --reason fan", ids[1], "cordoned", "fan")

	// The pod gets one of the others, and the fourth pod does not fit.
	a := r.run("a", gpu, 2)
	for _, id := range ids[:2] {
		if strings.Contains(fmt.Sprint(a.Env), id) {
			t.Errorf("pod a has the cordoned device %s", id)
		}
	}
	r.must(r.Create(r.ctx, node.Pod("b", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("b")

	// A mistake changes nothing.
	annotate(gpu + ": " + ids[0])
	r.until("the Node has the event", func() bool { return strings.Contains(r.Events(r.ctx, r.NodeName()), "InvalidCordonAnnotation") })
	r.says("devices "+gpu, ids[0], "cordoned", ids[1], "cordoned")

	// It is changed while devmgrd is away: the first is free, the second is still the operator's.
	r.must(r.Devmgrd.Kill())
	annotate(fmt.Sprintf(`{%q: [%q]}`, gpu, ids[1]))
	r.must(r.StartDevmgrd(r.ctx))
	r.running("b")
	if got := r.held("b", "main")["main"]; len(got) != 1 || got[0] != ids[0] {
		t.Errorf("pod b has %v, want %s", got, ids[0])
	}
	annotate(nil)
	r.until("the operator's cordon is there alone", func() bool {
		out, _, _ := r.devmgrd("devices", gpu)
		return strings.Contains(out, "cordoned") && !strings.Contains(out, "annotation")
	})
	shows(3)
	r.says("uncordon "+gpu+"/"+ids[1], ids[1], "free")
	shows(4)
}
