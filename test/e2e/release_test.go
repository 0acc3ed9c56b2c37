//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// A pod that is deleted by force has gone for the API server, and its container lives: whatever happens to devmgrd and its
// state file, no other pod gets its devices before the container has ended.
func TestPod_DeletedByForce_KeepsDevicesUntilItsContainerEnds(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 2)
	first := r.run("a", gpu, 1).Env["DEVICES"]
	r.must(r.Kubelet.Kill()) // nothing ends the container
	now := int64(0)
	r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	r.must(r.WaitPod(r.ctx, metav1.NamespaceDefault, "a", func(p *corev1.Pod) (bool, error) { return p == nil, nil }))
	r.must(r.Create(r.ctx, node.Pod("b", gpu, 2, "report", "--then-sleep")))
	r.told("b", "NotEnoughDevices")
	r.states(1, 1, 0)
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.ctx))
	r.states(1, 1, 0) // by the state file
	r.must(r.Devmgrd.Kill())
	r.must(os.Remove(stateFile))
	r.must(r.StartDevmgrd(r.ctx))
	p.MustRegister()
	r.states(1, 0, 1) // by its stamp
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.ctx))
	r.states(1, 0, 1)
	stamps, err := r.Stamps(r.ctx)
	r.must(err)
	if len(stamps) != 1 || stamps[0].Devices[gpu][0] != first {
		t.Fatalf("there run %+v", stamps)
	}
	r.must(r.Kubelet.Start(r.ctx)) // ends it
	if got := r.running("b").Env["DEVICES"]; !strings.Contains(got, first) {
		t.Errorf("b has %s", got)
	}
	r.states(0, 2, 0)
}

// The API server is away while pods end. Their devices stay theirs until it says so, and not longer; but those of one that is being deleted, if
// devmgrd has heard of that: the kubelet starts no further container of it.
func TestPods_EndWithoutAPIServer_KeepTheirDevices(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 3)
	had := map[string]string{}
	for _, name := range []string{"ends", "deleted"} {
		had[name] = r.run(name, gpu, 1).Env["DEVICES"]
	}
	r.stays("stays", 1)
	long := int64(300)
	r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "deleted", metav1.DeleteOptions{GracePeriodSeconds: &long}))
	r.must(r.APIServer.Kill())
	for _, name := range []string{"ends", "deleted"} {
		if pid := processWith(t, "DEVICES="+had[name]); pid > 0 { // it may have ended at the order
			r.must(syscall.Kill(pid, syscall.SIGKILL))
		}
	}
	r.until("both have ended", func() bool { ids, err := r.RunningContainers(r.ctx, "main"); return err == nil && len(ids) == 1 })
	if n := r.inState(gpu, "assigned"); n < 2 {
		t.Errorf("%v devices are assigned, want 2 at least: one container may be made again", n)
	}
	r.must(r.APIServer.Start(r.ctx))
	r.must(r.WaitAPIServer(r.ctx))
	r.states(2, 1, 0)
	r.run("next", gpu, 2)
}

// Pods that have ended in any way give their devices back, also while their objects stay; a pod recreated under the same
// name is another pod.
func TestPods_EndInAnyWay_ReleaseDevices(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 4)
	free := fmt.Sprintf(`devmgrd_devices{resource_name=%q,state="free"}`, gpu)
	unstartable := node.Pod("unstartable", gpu, 1) // containerd reports nothing of a container without a first process
	unstartable.Spec.Containers[0].Command = []string{"/no-such-command"}
	r.must(r.Create(r.ctx, unstartable))
	r.must(r.Create(r.ctx, node.Pod("succeeds", gpu, 1, "exit", "0")))
	r.must(r.Create(r.ctx, node.Pod("fails", gpu, 1, "exit", "3")))
	r.run("evicted", gpu, 1)
	for name, phase := range map[string]corev1.PodPhase{"succeeds": corev1.PodSucceeded, "fails": corev1.PodFailed, "unstartable": corev1.PodFailed} {
		_, err := r.WaitPhase(r.soon(), name, phase)
		r.must(err)
	}
	r.until("three devices are free", func() bool { return r.metric(free) == 3 })
	r.must(r.Client().PolicyV1().Evictions(metav1.NamespaceDefault).Evict(r.ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "evicted", Namespace: metav1.NamespaceDefault}}))
	r.until("all devices are free", func() bool { return r.metric(free) == 4 })

	// A pod's image cannot be pulled. It is deleted, and its volume is in use: its phase stays what it is.
	hangs := node.Pod("hangs", gpu, 1)
	hangs.Spec.Containers[0].Image = "127.0.0.1:1/none"
	hangs.Spec.Volumes = append(hangs.Spec.Volumes, corev1.Volume{Name: "held", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}})
	hangs.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "held", MountPath: "/held"}}
	r.must(r.Create(r.ctx, hangs))
	volume := fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~empty-dir/held", r.uid("hangs"))
	r.must(r.WaitPod(r.soon(), metav1.NamespaceDefault, "hangs", func(p *corev1.Pod) (bool, error) {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting.Reason == "ErrImagePull", nil
	}))
	r.until("it has a device", func() bool { return r.metric(free) == 3 })
	user, err := os.Open(volume)
	r.must(err)
	r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "hangs", metav1.DeleteOptions{}))
	r.until("its device is free", func() bool { return r.metric(free) == 4 })
	r.says("explain default/hangs", "ended", "it is being deleted")
	r.must(user.Close())
	r.must(r.Delete(r.ctx, "hangs"))

	r.run("again", gpu, 3)
	was := r.uid("again")
	r.must(r.Delete(r.ctx, "again"))
	if got := r.run("again", gpu, 3); got.Env["DEVICES"] != "dev-000000,dev-000001,dev-000002" || r.uid("again") == was {
		t.Errorf("the recreated pod has %q", got.Env["DEVICES"])
	}

	// The kubelet fails a pod that does not fit in at its admission. It never ran, and holds nothing for long.
	r.must(r.Delete(r.ctx, "again"))
	tooLarge := node.Pod("rejected", gpu, 1, "sleep")
	tooLarge.Spec.NodeName = r.NodeName()
	tooLarge.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("9Ti")
	r.must(r.Create(r.ctx, tooLarge))
	_, err = r.WaitPhase(r.soon(), "rejected", corev1.PodFailed)
	r.must(err)
	r.until("all devices are free again", func() bool { return r.metric(free) == 4 })
	r.says("explain default/rejected", "State:", "refused", "Reason:", "OutOfmemory", "Since:", "Ends:", "spec.nodeName")

	// So it does with a pod that is bound past the scheduler and asks for more devices than the Node shows.
	beyond := node.Pod("beyond", gpu, 5, "sleep")
	beyond.Spec.NodeName = r.NodeName()
	r.must(r.Create(r.ctx, beyond))
	_, err = r.WaitPhase(r.soon(), "beyond", corev1.PodFailed)
	r.must(err)
	r.says("explain default/beyond", "State:", "refused", "Reason:", "OutOf"+gpu, "requested: 5", "capacity: 4")
	for _, name := range []string{"rejected", "beyond"} {
		r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, name, metav1.DeleteOptions{}))
	}
}
