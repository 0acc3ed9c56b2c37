//go:build e2e

package e2e

import (
	"context"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/node"
)

// After a reboot pods come back before their plugins do. The kubelet would fail them permanently; here they wait.
func TestWait_PluginMissing_PodStartsWhenItReturns(t *testing.T) {
	r := start(t)
	bound := func(p *corev1.Pod) *corev1.Pod { // as if scheduled before the reboot
		p.Spec.NodeName = r.NodeName()
		return p
	}
	never := bound(node.Pod("never", gpu, 1, "report"))
	always := bound(node.Pod("always", gpu, 1, "report", "--then-sleep"))
	always.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, never))
	r.must(r.Create(r.ctx, always))
	none := int32(0)
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job", Namespace: metav1.NamespaceDefault},
		Spec: batchv1.JobSpec{
			BackoffLimit: &none,
			Template:     corev1.PodTemplateSpec{Spec: bound(node.Pod("", gpu, 1, "report")).Spec},
		},
	}
	_, err := r.Client().BatchV1().Jobs(job.Namespace).Create(r.ctx, job, metav1.CreateOptions{})
	r.must(err)
	var jobPod string
	r.until("the job has its pod", func() bool {
		pods, err := r.Client().CoreV1().Pods(job.Namespace).List(r.ctx, metav1.ListOptions{LabelSelector: "job-name=job"})
		if err != nil || len(pods.Items) != 1 {
			return false
		}
		jobPod = pods.Items[0].Name
		return true
	})
	for _, name := range []string{"never", "always", jobPod} {
		r.refused(name, "PluginMissing: no device plugin has registered vendor.example/gpu")
	}
	r.told("never", "Warning WaitingForDevices: PluginMissing: no device plugin has registered vendor.example/gpu")
	if n := r.metric(`devmgrd_pods_waiting{reason="PluginMissing"}`); n != 3 {
		t.Errorf("%v pods wait for a plugin, want 3", n)
	}

	// All of them start. The kubelet asks again after 10 to 15 s.
	r.plugin(gpu, 3)
	_, err = r.WaitPhase(r.soon(time.Minute), "never", corev1.PodSucceeded)
	r.must(err)
	r.running("always")
	r.told("always", "Normal DevicesAssigned: container main has vendor.example/gpu [dev-")
	_, err = r.WaitPhase(r.soon(time.Minute), jobPod, corev1.PodSucceeded)
	r.must(err)
	r.until("the job is complete", func() bool {
		j, err := r.Client().BatchV1().Jobs(job.Namespace).Get(r.ctx, "job", metav1.GetOptions{})
		return err == nil && j.Status.Succeeded == 1 && j.Status.Failed == 0
	})
}

// One plugin that never answers delays the pods that request its devices, and no others.
func TestWait_PluginHangs_OthersStart(t *testing.T) {
	r := start(t)
	hung := r.plugin(gpu, 8, func(p *plugintest.Plugin) { p.Before(plugintest.Allocate, plugintest.Hang) })
	r.plugin(nic, 8)
	const pods = 5
	median := func(prefix, resource string, count int) time.Duration {
		var took []time.Duration
		for i := range pods {
			name := prefix + string(rune('0'+i))
			began := time.Now()
			r.must(r.Create(r.ctx, node.Pod(name, resource, count, "sleep")))
			_, err := r.WaitPhase(r.soon(time.Minute), name, corev1.PodRunning)
			r.must(err)
			took = append(took, time.Since(began))
		}
		for i := range pods {
			r.must(r.Delete(r.ctx, prefix+string(rune('0'+i))))
		}
		slices.Sort(took)
		return took[pods/2]
	}
	plain, device := median("plain-before-", "", 0), median("nic-before-", nic, 1)
	for _, name := range []string{"stuck-1", "stuck-2", "stuck-3"} {
		r.must(r.Create(r.ctx, node.Pod(name, gpu, 1, "sleep")))
		r.refused(name, "Allocating")
	}
	plainNow, deviceNow := median("plain-during-", "", 0), median("nic-during-", nic, 1)
	t.Logf("median from creation to running, of %d each: without devices %s before and %s with a hung plugin; with another plugin's device %s and %s",
		pods, plain.Round(time.Millisecond), plainNow.Round(time.Millisecond), device.Round(time.Millisecond), deviceNow.Round(time.Millisecond))
	if hung.Calls(plugintest.Allocate) == 0 {
		t.Error("the hung plugin was never asked")
	}
	// The plugin comes to its senses: its pods start.
	hung.Before(plugintest.Allocate, func(context.Context) error { return nil })
	hung.Kill()
	hung.Serve()
	hung.MustRegister()
	for _, name := range []string{"stuck-1", "stuck-2", "stuck-3"} {
		_, err := r.WaitPhase(r.soon(time.Minute), name, corev1.PodRunning)
		r.must(err)
	}
}
