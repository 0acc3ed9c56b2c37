//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
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
	_, err = r.WaitPhase(r.soon(), "never", corev1.PodSucceeded)
	r.must(err)
	r.running("always")
	r.told("always", "Normal DevicesAssigned: container main has vendor.example/gpu [dev-")
	_, err = r.WaitPhase(r.soon(), jobPod, corev1.PodSucceeded)
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
	const pods = 3
	median := func(prefix, resource string, count int) time.Duration {
		var took []time.Duration
		for i := range pods {
			name := prefix + string(rune('0'+i))
			began := time.Now()
			r.must(r.Create(r.ctx, node.Pod(name, resource, count, "sleep")))
			_, err := r.WaitPhase(r.soon(), name, corev1.PodRunning)
			r.must(err)
			took = append(took, time.Since(began))
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
		_, err := r.WaitPhase(r.soon(), name, corev1.PodRunning)
		r.must(err)
	}
}

// A GPU is partitioned differently between a pod's binding and its allocation, and for long: the pod is evicted and its Job
// creates another one, which another node serves.
func TestGiveUp_LayoutChanged_JobRunsElsewhere(t *testing.T) {
	r := start(t, "--set", "wait.giveUpAfter=NotEnoughDevices=20s") // so that the pod is seen before
	p := r.plugin(gpu, 2)
	p.Before(plugintest.Allocate, func(context.Context) error { // the pod is bound by then
		p.Set(plugintest.Devices(1)...)
		return errors.New("the GPU is partitioned differently")
	})
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "moves", Namespace: metav1.NamespaceDefault},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: node.Pod("", gpu, 2, "report").Spec}},
	}
	_, err := r.Client().BatchV1().Jobs(job.Namespace).Create(r.ctx, job, metav1.CreateOptions{})
	r.must(err)
	t.Cleanup(func() { r.in(t).removeJob(job.Name) })
	var pods []corev1.Pod
	list := func() {
		pods = asked(r, func() (*corev1.PodList, error) {
			return r.Client().CoreV1().Pods(job.Namespace).List(r.ctx, metav1.ListOptions{LabelSelector: "job-name=" + job.Name})
		}).Items
	}
	r.until("the Job's pod is bound to this node", func() bool { list(); return len(pods) == 1 && pods[0].Spec.NodeName == r.NodeName() })
	first := pods[0].Name
	r.says("explain default/"+first, "NotEnoughDevices", "else devmgrd evicts the pod at", "wait.giveUpAfter")
	r.told(first, "WaitingForDevices: NotEnoughDevices")

	const other = "other"
	beat := r.otherNode(other, gpu, 2)
	r.until("the Job has another pod, on the other node", func() bool {
		beat()
		list()
		return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name != first && p.Spec.NodeName == other })
	})
	r.told(first, "WaitGivenUp")
	r.until("the first is gone", func() bool {
		list()
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Name == first })
	})
	r.must(r.WaitShown(r.soon(), gpu, 1))
}

// A plugin that answers Allocate only for pods that have just been bound, such as HAMi's, refuses after a reboot. The pods that had devices are given up, too.
func TestGiveUp_PluginRefusesAfterReboot_PodIsEvicted(t *testing.T) {
	r := start(t, "--set", "wait.giveUpAfter=PluginError=1s")
	p := r.plugin(gpu, 2)
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "moves", Namespace: metav1.NamespaceDefault},
		Spec:       batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: node.Pod("", gpu, 1, "report", "--then-sleep").Spec}},
	}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyOnFailure
	_, err := r.Client().BatchV1().Jobs(job.Namespace).Create(r.ctx, job, metav1.CreateOptions{})
	r.must(err)
	t.Cleanup(func() { r.in(t).removeJob(job.Name) })
	first := ""
	r.until("the Job's pod runs", func() bool {
		pods := asked(r, func() (*corev1.PodList, error) {
			return r.Client().CoreV1().Pods(job.Namespace).List(r.ctx, metav1.ListOptions{LabelSelector: "job-name=" + job.Name})
		}).Items
		if len(pods) == 1 && pods[0].Status.Phase == corev1.PodRunning {
			first = pods[0].Name
		}
		return first != ""
	})
	r.reboot(p)
	p.OnAllocate = func(context.Context, *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
		return nil, errors.New("the pod was not bound just now")
	}
	p.Serve()
	p.MustRegister()
	r.told(first, "WaitGivenUp")
}

// otherNode creates a Node without a kubelet, which the scheduler takes for one that is ready as long as it beats, and removes it at
// the end.
func (r *harness) otherNode(name, resource string, count int64) (beat func()) {
	r.t.Helper()
	nodes := r.Client().CoreV1().Nodes()
	_, err := nodes.Create(r.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	r.must(err)
	r.t.Cleanup(func() {
		if err := nodes.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			r.t.Error(err)
		}
	})
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: *apiresource.NewQuantity(4, apiresource.DecimalSI), corev1.ResourceMemory: *apiresource.NewQuantity(8<<30, apiresource.BinarySI),
		corev1.ResourcePods: *apiresource.NewQuantity(10, apiresource.DecimalSI), corev1.ResourceName(resource): *apiresource.NewQuantity(count, apiresource.DecimalSI),
	}
	var last time.Time
	beat = func() {
		r.t.Helper()
		if time.Since(last) < 5*time.Second {
			return
		}
		last = time.Now()
		status, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{Capacity: capacity, Allocatable: capacity, Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test", LastHeartbeatTime: metav1.NewTime(last), LastTransitionTime: metav1.NewTime(last)},
		}}})
		r.must(err)
		_, err = nodes.Patch(r.ctx, name, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status") // controllers change it, too
		r.must(err)
	}
	beat()
	return beat
}

// removeJob removes a Job and its pods, of which a node without a kubelet would never confirm the end.
func (r *harness) removeJob(name string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	background, now := metav1.DeletePropagationBackground, int64(0)
	r.must(r.Client().BatchV1().Jobs(metav1.NamespaceDefault).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background}))
	for {
		all, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: "job-name=" + name})
		r.must(err)
		if len(all.Items) == 0 {
			return
		}
		for _, p := range all.Items {
			err := r.Client().CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
			if !apierrors.IsNotFound(err) {
				r.must(err)
			}
		}
	}
}
