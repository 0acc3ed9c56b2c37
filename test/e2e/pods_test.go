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
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
)

// asks makes a container that asks for so many devices.
func asks(name string, count int, args ...string) corev1.Container {
	c := corev1.Container{Name: name, Image: cluster.ProbeImage, Args: args}
	if count > 0 {
		c.Resources.Limits = corev1.ResourceList{gpu: resource.MustParse(fmt.Sprint(count))}
	}
	return c
}

// held returns which devices the containers of a pod have or had, by the containers' reports.
func (r *harness) held(pod string, containers ...string) map[string][]string {
	r.t.Helper()
	all := map[string][]string{}
	for _, c := range containers {
		r.until("container "+c+" of pod "+pod+" reports", func() bool {
			log, err := r.PodLogs(r.ctx, metav1.NamespaceDefault, pod, c)
			var got report.Report
			lines := strings.Split(strings.TrimSpace(log), "\n")
			if err != nil || json.Unmarshal([]byte(lines[len(lines)-1]), &got) != nil {
				return false
			}
			all[c] = strings.FieldsFunc(got.Env["DEVICES"], func(r rune) bool { return r == ',' })
			return true
		})
	}
	return all
}

// Init containers hand their devices on; sidecars keep theirs; apps have their own; debug containers have none.
func TestContainersOfAllSorts(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 5)
	always := corev1.ContainerRestartPolicyAlways
	pod := node.Pod("a", "", 0)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	sidecar := asks("sidecar", 1, "report", "--then-sleep")
	sidecar.RestartPolicy = &always
	pod.Spec.InitContainers = []corev1.Container{asks("init", 2, "report"), sidecar, asks("late-init", 1, "report")}
	pod.Spec.Containers = []corev1.Container{
		asks("one", 2, "report", "--then-sleep"), asks("none", 0, "report", "--then-sleep"), asks("two", 1, "report", "--then-sleep"),
	}
	r.must(r.Create(r.ctx, pod))
	_, err := r.WaitPhase(r.soon(time.Minute), "a", corev1.PodRunning)
	r.must(err)
	got := r.held("a", "init", "sidecar", "late-init", "one", "none", "two")
	for c, n := range map[string]int{"init": 2, "sidecar": 1, "late-init": 1, "one": 2, "none": 0, "two": 1} {
		if len(got[c]) != n {
			t.Errorf("container %s has %v, want %d", c, got[c], n)
		}
	}
	if !slices.Contains(got["init"], got["sidecar"][0]) || !slices.Contains(got["init"], got["late-init"][0]) {
		t.Errorf("the init containers' devices were not handed on: %v", got)
	}
	running := slices.Concat(got["sidecar"], got["one"], got["two"])
	slices.Sort(running)
	if len(slices.Compact(running)) != 4 {
		t.Errorf("containers that run side by side share devices: %v", got)
	}
	if n := p.Calls("Allocate"); n != 5 {
		t.Errorf("%d calls of Allocate, want one for each container that asks", n)
	}

	// A debug container comes later and asks for nothing.
	now, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, "a", metav1.GetOptions{})
	r.must(err)
	now.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{
		Name: "debug", Image: cluster.ProbeImage, Args: []string{"report"}, TerminationMessagePolicy: corev1.TerminationMessageReadFile, ImagePullPolicy: corev1.PullNever}}}
	_, err = r.Client().CoreV1().Pods(metav1.NamespaceDefault).UpdateEphemeralContainers(r.ctx, "a", now, metav1.UpdateOptions{})
	r.must(err)
	if got := r.held("a", "debug"); len(got["debug"]) != 0 {
		t.Errorf("the debug container has %v", got)
	}

	// The pod's sandbox is recreated under the same UID: the same devices, and nobody is asked again.
	before := r.held("a", "one", "two")
	stamps, err := r.Stamps(r.ctx)
	r.must(err)
	ids, err := r.RunningContainers(r.ctx, "two")
	r.must(err)
	sandbox, err := r.SandboxOf(r.ctx, ids[0])
	r.must(err)
	r.must(r.KillContainer(r.ctx, sandbox))
	r.until("the containers run in another sandbox, with the same devices", func() bool {
		now, err := r.RunningContainers(r.ctx, "two")
		if err != nil || len(now) != 1 || now[0] == ids[0] {
			return false
		}
		again, err := r.Stamps(r.ctx)
		return err == nil && len(again) == len(stamps) && sameDevices(stamps, again)
	})
	if n := p.Calls("Allocate"); n != 5 {
		t.Errorf("%d calls of Allocate after the sandbox was made anew, want 5; before it they had %v", n, before)
	}
}

func sameDevices(a, b []node.Stamp) bool {
	text := func(all []node.Stamp) string {
		var lines []string
		for _, s := range all {
			lines = append(lines, fmt.Sprint(s.Container, s.Devices))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	return text(a) == text(b)
}

// Pods that have ended in any way give their devices back, also while their objects stay; a pod recreated under the same
// name is another pod.
func TestPodsEnd(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 3)
	free := fmt.Sprintf(`devmgrd_devices{resource_name=%q,state="free"}`, gpu)
	r.must(r.Create(r.ctx, node.Pod("succeeds", gpu, 1, "exit", "0")))
	r.must(r.Create(r.ctx, node.Pod("fails", gpu, 1, "exit", "3")))
	r.run("evicted", gpu, 1)
	for name, phase := range map[string]corev1.PodPhase{"succeeds": corev1.PodSucceeded, "fails": corev1.PodFailed} {
		_, err := r.WaitPhase(r.soon(time.Minute), name, phase)
		r.must(err)
	}
	r.until("two devices are free", func() bool { return r.metric(free) == 2 })
	r.must(r.Client().PolicyV1().Evictions(metav1.NamespaceDefault).Evict(r.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "evicted", Namespace: metav1.NamespaceDefault}}))
	r.until("all devices are free", func() bool { return r.metric(free) == 3 })

	r.run("again", gpu, 3)
	was := r.uid("again")
	r.must(r.Delete(r.ctx, "again"))
	if got := r.run("again", gpu, 3); got.Env["DEVICES"] != "dev-000000,dev-000001,dev-000002" || r.uid("again") == was {
		t.Errorf("the pod made anew has %q", got.Env["DEVICES"])
	}

	// The kubelet fails a pod that does not fit in at its admission. It never ran, and holds nothing for long.
	r.must(r.Delete(r.ctx, "again"))
	tooLarge := node.Pod("rejected", gpu, 1, "sleep")
	tooLarge.Spec.NodeName = r.NodeName()
	tooLarge.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("9Ti")
	r.must(r.Create(r.ctx, tooLarge))
	_, err := r.WaitPhase(r.soon(time.Minute), "rejected", corev1.PodFailed)
	r.must(err)
	r.until("all devices are free again", func() bool { return r.metric(free) == 3 })
	r.says("explain default/rejected", "State:", "refused", "Reason:", "OutOfmemory", "Since:", "Ends:", "spec.nodeName")

	// So it does with a pod that is bound past the scheduler and asks for more devices than the Node shows.
	beyond := node.Pod("beyond", gpu, 4, "sleep")
	beyond.Spec.NodeName = r.NodeName()
	r.must(r.Create(r.ctx, beyond))
	_, err = r.WaitPhase(r.soon(time.Minute), "beyond", corev1.PodFailed)
	r.must(err)
	r.says("explain default/beyond", "State:", "refused", "Reason:", "OutOf"+gpu, "requested: 4", "capacity: 3")
	for _, name := range []string{"rejected", "beyond"} {
		r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, name, metav1.DeleteOptions{}))
	}
}

func (r *harness) uid(name string) types.UID {
	r.t.Helper()
	pod, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(context.WithoutCancel(r.ctx), name, metav1.GetOptions{})
	r.must(err)
	return pod.UID
}
