//go:build e2e

package chart

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// A thief of the service account's token changes the status of the token's own node only, and of that only extended resources and devmgrd's
// conditions. Of that node's pods the thief changes devmgrd's two conditions. The thief writes ResourceSlices and events of devmgrd for that node
// only, and evicts no pod. devmgrd does not run: its pod waits for a Secret.
func TestChart_StolenToken_ChangesItsOwnNodeOnly(t *testing.T) {
	h := install(t)
	nodes := h.Client().CoreV1().Nodes()
	_, err := nodes.Create(h.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{})
	h.must(err)
	client := h.thief()
	send := func(node string, kind types.PatchType, text string) error {
		_, err := client.CoreV1().Nodes().Patch(h.ctx, node, kind, []byte(text),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}
	patch := func(node, text string) error { return send(node, types.MergePatchType, text) }
	condition := func(kind string) error {
		return send(h.NodeName(), types.StrategicMergePatchType, fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"False","reason":"X"}]}}`, kind))
	}
	change := func(node string) error { return patch(node, `{"status":{"capacity":{"vendor.example/x":"1"}}}`) }
	h.until("the policy is in force", func() bool {
		err := change("other")
		return err != nil && strings.Contains(err.Error(), "its own node only")
	})
	h.must(change(h.NodeName()))
	h.must(patch(h.NodeName(), `{"status":{"capacity":{"vendor.example/x":"1"},"allocatable":{"vendor.example/x":"1"}}}`))
	h.must(condition("DevicesHealthy"))
	for _, kind := range []string{"Ready", "KernelDeadlock"} {
		if err := condition(kind); err == nil || !strings.Contains(err.Error(), "its own conditions only") {
			t.Errorf("condition %s of the own node is changed: %v", kind, err)
		}
	}
	own, err := nodes.Get(h.ctx, h.NodeName(), metav1.GetOptions{})
	h.must(err)
	var foreign []int
	for i, c := range own.Status.Conditions {
		if c.Type != "DevicesHealthy" && c.Type != "DeviceManagerReady" {
			foreign = append(foreign, i)
		}
	}
	for _, change := range []string{ // another copy, the last of which some readers believe; and another order
		fmt.Sprintf(`[{"op":"copy","from":"/status/conditions/%d","path":"/status/conditions/-"}]`, foreign[0]),
		fmt.Sprintf(`[{"op":"move","from":"/status/conditions/%d","path":"/status/conditions/%d"}]`, foreign[0], foreign[1]),
	} {
		if err := send(h.NodeName(), types.JSONPatchType, change); err == nil || !strings.Contains(err.Error(), "its own conditions only") {
			t.Errorf("%s: %v", change, err)
		}
	}
	for what, text := range map[string]string{
		"an address":                `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`,
		"a condition":               `{"status":{"conditions":[]}}`,
		"a field that was not set":  `{"status":{"phase":"Terminated"}}`,
		"a field that is taken off": `{"status":{"nodeInfo":{"kubeletVersion":""}}}`,
		"CPUs":                      `{"status":{"capacity":{"cpu":"1000"}}}`,
		"memory":                    `{"status":{"allocatable":{"memory":null}}}`,
		"a resource of Kubernetes":  `{"status":{"capacity":{"example.kubernetes.io/x":"1"}}}`,
		"a label":                   `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`,
		"an annotation":             `{"metadata":{"annotations":{"vendor.example/x":"1"}}}`,
	} {
		if err := patch(h.NodeName(), text); err == nil || !strings.Contains(err.Error(), "devmgrd may ") {
			t.Errorf("%s of the own node is changed: %v", what, err)
		}
	}
	err = client.CoreV1().Pods(metav1.NamespaceDefault).EvictV1(h.ctx, &policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: "any", Namespace: metav1.NamespaceDefault}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}},
	})
	if !apierrors.IsForbidden(err) {
		t.Errorf("an eviction: %v, want it forbidden", err)
	}
	if _, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(h.ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("listing secrets: %v, want it forbidden", err)
	}
	h.onlyItsOwnPods(client)
	h.onlyItsOwnEvents(client)
	h.onlyItsOwnSlices(client)
	h.must(nodes.Delete(h.ctx, "other", metav1.DeleteOptions{}))
}

// onlyItsOwnPods checks that a thief changes two conditions of the pods of the token's own node, and nothing else of pods.
func (h *harness) onlyItsOwnPods(client clientset.Interface) {
	h.t.Helper()
	pods := h.Client().CoreV1().Pods(metav1.NamespaceDefault)
	pod := func(name, node string) {
		_, err := pods.Create(h.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
			NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "registry.example/none"}},
		}}, metav1.CreateOptions{})
		h.must(err)
		h.t.Cleanup(func() {
			_ = pods.Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
		})
	}
	pod("x-own", h.NodeName())
	pod("x-other", "other")
	patch := func(pod, text string) error {
		_, err := client.CoreV1().Pods(metav1.NamespaceDefault).Patch(h.ctx, pod, types.StrategicMergePatchType, []byte(text),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
		return err
	}
	condition := func(kind string) string {
		return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"False","reason":"X"}]}}`, kind)
	}
	h.until("the policy for pods is in force", func() bool {
		err := patch("x-other", condition("devmgrd.io/DevicesHealthy"))
		return err != nil && strings.Contains(err.Error(), "pods of its own node only")
	})
	for _, kind := range []string{"devmgrd.io/DevicesAssigned", "devmgrd.io/DevicesHealthy"} {
		h.must(patch("x-own", condition(kind)))
	}
	for what, text := range map[string]string{
		"another condition": condition("Ready"),
		"the phase":         `{"status":{"phase":"Succeeded"}}`,
		"the address":       `{"status":{"podIP":"192.0.2.1","podIPs":[{"ip":"192.0.2.1"}]}}`,
		"a label":           `{"metadata":{"labels":{"app":"theirs"}}}`,
		"a finalizer":       `{"metadata":{"finalizers":["vendor.example/x"]}}`,
	} {
		if err := patch("x-own", text); err == nil || !strings.Contains(err.Error(), "devmgrd may ") {
			h.t.Errorf("%s of a pod of the own node is changed: %v", what, err)
		}
	}
	if err := client.CoreV1().Pods(metav1.NamespaceDefault).Delete(h.ctx, "x-own", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		h.t.Errorf("a deletion: %v, want it forbidden", err)
	}
}

// thief returns a client with a token of devmgrd's service account.
func (h *harness) thief() clientset.Interface {
	h.t.Helper()
	config := rest.AnonymousClientConfig(h.RESTConfig())
	config.BearerToken = h.token()
	client, err := clientset.NewForConfig(config)
	h.must(err)
	return client
}

// onlyItsOwnEvents checks that a thief writes events of devmgrd on the token's own node only, on pods and on that Node, and overwrites no others.
// packaging/kubernetes has the policy, and test/tools/k8s plays it.
func (h *harness) onlyItsOwnEvents(client clientset.Interface) {
	h.t.Helper()
	const prefix = "devmgrd may write events "
	event := func(name, component, host string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: metav1.NamespaceDefault, Name: "x"},
			Source:         corev1.EventSource{Component: component, Host: host}, ReportingController: component, ReportingInstance: host,
			Reason: "X", Message: "x", Type: corev1.EventTypeNormal,
		}
	}
	own, events, all := h.NodeName(), client.CoreV1().Events(metav1.NamespaceDefault), h.Client().CoreV1().Events(metav1.NamespaceDefault)
	dry := []string{metav1.DryRunAll}
	create := func(e *corev1.Event) error {
		_, err := events.Create(h.ctx, e, metav1.CreateOptions{DryRun: dry})
		return err
	}
	h.until("the policy for events is in force", func() bool {
		err := create(event("x", "devmgrd", "other"))
		return err != nil && strings.Contains(err.Error(), prefix)
	})
	h.must(create(event("x", "devmgrd", own)))
	onNode := event("x", "devmgrd", own)
	onNode.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "other"}
	for what, e := range map[string]*corev1.Event{"the scheduler's": event("x", "default-scheduler", own), "one on another Node": onNode} {
		if err := create(e); err == nil || !strings.Contains(err.Error(), prefix) {
			h.t.Errorf("%s event is created: %v", what, err)
		}
	}
	for _, e := range []*corev1.Event{event("x-component", "default-scheduler", ""), event("x-node", "devmgrd", "other")} {
		_, err := all.Create(h.ctx, e, metav1.CreateOptions{})
		h.must(err)
		forged := fmt.Sprintf(`{"message":"forged","source":{"component":"devmgrd","host":%q},"reportingComponent":"devmgrd","reportingInstance":%q}`, own, own)
		_, err = events.Patch(h.ctx, e.Name, types.StrategicMergePatchType, []byte(forged), metav1.PatchOptions{DryRun: dry})
		if err == nil || !strings.Contains(err.Error(), prefix) {
			h.t.Errorf("event %s is changed: %v", e.Name, err)
		}
		h.must(all.Delete(h.ctx, e.Name, metav1.DeleteOptions{}))
	}
}

// onlyItsOwnSlices checks that a thief writes ResourceSlices of the token's own node only, and only those that devmgrd writes.
func (h *harness) onlyItsOwnSlices(client clientset.Interface) {
	h.t.Helper()
	slice := func(name, node, driver, pool string) *resourceapi.ResourceSlice {
		return &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: pool, Generation: 1, ResourceSliceCount: 1},
		}}
	}
	own, slices, all := h.NodeName(), client.ResourceV1().ResourceSlices(), h.Client().ResourceV1().ResourceSlices()
	dry := []string{metav1.DryRunAll}
	create := func(s *resourceapi.ResourceSlice) error {
		_, err := slices.Create(h.ctx, s, metav1.CreateOptions{DryRun: dry})
		return err
	}
	h.until("the policy for slices is in force", func() bool {
		err := create(slice("x", "other", "devmgrd.io", "other/vendor.example/x/0"))
		return err != nil && strings.Contains(err.Error(), "of its own node only")
	})
	h.must(create(slice("x", own, "devmgrd.io", own+"/vendor.example/x/0")))
	for what, s := range map[string]*resourceapi.ResourceSlice{
		"another driver's":           slice("x", own, "driver.example", own+"/vendor.example/x/0"),
		"one in another node's pool": slice("x", own, "devmgrd.io", "other/vendor.example/x/0"),
	} {
		if err := create(s); err == nil || !strings.Contains(err.Error(), "devmgrd may write ResourceSlices ") {
			h.t.Errorf("%s slice is created: %v", what, err)
		}
	}
	for _, s := range []*resourceapi.ResourceSlice{
		slice("x-node", "other", "devmgrd.io", "other/vendor.example/x/0"), slice("x-driver", own, "driver.example", own+"/vendor.example/x/0"),
	} {
		made, err := all.Create(h.ctx, s, metav1.CreateOptions{})
		h.must(err)
		made.Labels = map[string]string{"x": "x"}
		if _, err := slices.Update(h.ctx, made, metav1.UpdateOptions{DryRun: dry}); err == nil || !strings.Contains(err.Error(), "devmgrd may write ") {
			h.t.Errorf("slice %s is changed: %v", s.Name, err)
		}
		if err := slices.Delete(h.ctx, s.Name, metav1.DeleteOptions{DryRun: dry}); err == nil || !strings.Contains(err.Error(), "devmgrd may write ") {
			h.t.Errorf("slice %s is deleted: %v", s.Name, err)
		}
		h.must(all.Delete(h.ctx, s.Name, metav1.DeleteOptions{}))
	}
}
