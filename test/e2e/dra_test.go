//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/node"
)

// class applies the DeviceClasses that devmgrd prints, until the test ends; then its pods go first, for which the kubelet needs the driver.
func (r *harness) class(resources ...string) {
	r.t.Helper()
	classes := r.Client().ResourceV1().DeviceClasses()
	for _, resource := range resources {
		out, err := r.Command(r.ctx, "deviceclass", resource).Output()
		r.must(err)
		object := &resourceapi.DeviceClass{}
		r.must(yaml.UnmarshalStrict(out, object))
		_, err = classes.Create(r.ctx, object, metav1.CreateOptions{})
		r.must(err)
	}
	r.t.Cleanup(func() {
		r.removePods()
		if err := classes.DeleteCollection(context.WithoutCancel(r.ctx), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			r.t.Error(err)
		}
	})
}

// removePods deletes all pods of the default namespace, and waits until they are gone.
func (r *harness) removePods() {
	r.t.Helper()
	ctx, now := context.WithoutCancel(r.ctx), int64(0)
	pods := r.Client().CoreV1().Pods(metav1.NamespaceDefault)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		r.t.Error(err)
	}
	r.until("no pod is left", func() bool {
		list, err := pods.List(ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
}

// sliced returns the devices of the node's ResourceSlices, with their taints.
func (r *harness) sliced() (all map[string][]string) {
	r.t.Helper()
	list, err := r.Client().ResourceV1().ResourceSlices().List(r.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + r.NodeName()})
	r.must(err)
	all = map[string][]string{}
	for _, s := range list.Items {
		for _, d := range s.Spec.Devices {
			all[d.Name] = []string{}
			for _, t := range d.Taints {
				all[d.Name] = append(all[d.Name], t.Key)
			}
		}
	}
	return all
}

// offered starts a device plugin whose resource is offered through claims, and waits until the slices show its devices.
func (r *harness) offered(resource string, devices int, prepare ...func(*plugintest.Plugin)) *plugintest.Plugin {
	r.t.Helper()
	p := plugintest.New(r.t, node.SocketDir, resource, plugintest.Devices(devices)...)
	for _, f := range prepare {
		f(p)
	}
	p.Serve()
	p.MustRegister()
	r.until("the slices show the devices", func() bool { return len(r.sliced()) == devices })
	return p
}

// claim creates a ResourceClaim for devices of a class.
func (r *harness) claim(name, class string, count int64, cel ...string) {
	r.t.Helper()
	exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count}
	for _, expression := range cel {
		exactly.Selectors = append(exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	_, err := r.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).Create(r.ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "devices", Exactly: exactly}}}},
	}, metav1.CreateOptions{})
	r.must(err)
	r.t.Cleanup(func() {
		_ = r.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).Delete(context.WithoutCancel(r.ctx), name, metav1.DeleteOptions{})
	})
}

// claiming returns a pod that uses a claim.
func claiming(name, claim string) *corev1.Pod {
	p := node.Pod(name, "", 0, "report", "--then-sleep")
	p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "mine", ResourceClaimName: &claim}}
	p.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "mine"}}
	return p
}

// An unmodified plugin and unchanged pods: the scheduler chooses the devices, and the containers get what the plugin grants.
func TestDRA_UnchangedPodsAndClaims_ShareOnePool(t *testing.T) {
	r := start(t, "--set", "dra.resources=vendor.example/*")
	r.class(gpu)
	r.offered(gpu, 4)
	if capacity, allocatable, err := r.Shown(r.ctx, gpu); err != nil || capacity+allocatable >= 0 {
		t.Errorf("the Node shows %d and %d, %v", capacity, allocatable, err)
	}

	r.run("a", gpu, 1)
	r.run("b", gpu, 2)
	r.claim("third", "vendor.example-gpu", 1, `device.attributes["devmgrd.io"].id == "dev-000003"`)
	r.must(r.Create(r.ctx, claiming("c", "third")))
	r.running("c")
	got := map[string][]string{}
	for _, pod := range []string{"a", "b", "c"} {
		for _, ids := range r.held(pod, "main") {
			got[pod] = append(got[pod], ids...)
		}
	}
	var all []string
	for pod, n := range map[string]int{"a": 1, "b": 2, "c": 1} {
		if len(got[pod]) != n {
			t.Errorf("pod %s has %q", pod, got[pod])
		}
		all = append(all, got[pod]...)
	}
	slices.Sort(all)
	if len(slices.Compact(all)) != 4 || !slices.Equal(got["c"], []string{"dev-000003"}) {
		t.Errorf("the pods have %q", got)
	}

	r.must(r.Create(r.ctx, node.Pod("d", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("d")
	deleted := time.Now()
	r.must(r.Delete(r.ctx, "a"))
	r.running("d")
	t.Logf("pod d runs %s after the deletion of a", time.Since(deleted).Round(time.Millisecond))

	explained, err := r.Command(r.ctx, "explain", "default/d").Output()
	r.must(err)
	if !bytes.Contains(explained, []byte("chosen by the scheduler")) {
		t.Errorf("explain:\n%s", explained)
	}
}

func TestDRA_BoundPastTheScheduler_ContainerIsRefused(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	p := node.Pod("byhand", gpu, 1, "report", "--then-sleep")
	p.Spec.NodeName = r.NodeName()
	r.must(r.Create(r.ctx, p))
	r.refused("byhand", "NoClaim")
	r.told("byhand", "NoClaim")
	r.run("a", gpu, 2)
}

func TestDRA_KubeletRestarts_SlicesAreBackAndPodsRunOn(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	r.run("a", gpu, 1)
	container, err := r.RunningContainers(r.ctx, "a")
	r.must(err)
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.until("the slices are back", func() bool { return len(r.sliced()) == 2 })
	r.run("b", gpu, 1)
	if now, err := r.RunningContainers(r.ctx, "a"); err != nil || !slices.Equal(now, container) {
		t.Errorf("pod a had container %q, and has %q, %v", container, now, err)
	}
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
	r.run("c", "", 0)
}

// Moving a resource there and back, while pods of both kinds run and the kubelet restarts at each step.
func TestDRA_MovedThereAndBack_NoPodIsTouched(t *testing.T) {
	r := start(t)
	r.class(gpu)
	r.plugin(gpu, 4)
	r.run("counted", gpu, 1)
	containers := map[string][]string{}
	undisturbed := func(pods ...string) {
		t.Helper()
		r.must(r.Kubelet.Kill())
		r.must(r.Kubelet.Start(r.ctx))
		r.must(r.WaitNodeReady(r.soon(time.Minute)))
		for _, pod := range pods {
			r.running(pod)
			now, err := r.RunningContainers(r.ctx, pod)
			r.must(err)
			if before := containers[pod]; before != nil && !slices.Equal(now, before) {
				t.Errorf("pod %s had container %q, and has %q", pod, before, now)
			}
			containers[pod] = now
		}
	}
	restart := func(args ...string) {
		t.Helper()
		r.must(r.Devmgrd.Stop(20 * time.Second))
		r.Devmgrd = r.Another("devmgrd", args...)
		r.must(r.StartDevmgrd(r.soon(time.Minute)))
	}
	undisturbed("counted")

	restart("--set", "dra.resources="+gpu)
	r.must(r.WaitShown(r.soon(time.Minute), gpu, -1))
	r.until("the slices show the devices that no pod has", func() bool { return len(r.sliced()) == 3 })
	r.run("requested", gpu, 1)
	r.claim("own", "vendor.example-gpu", 1)
	r.must(r.Create(r.ctx, claiming("claimed", "own")))
	r.running("claimed")
	undisturbed("counted", "requested", "claimed")
	r.until("the slices are back", func() bool { return len(r.sliced()) == 3 })

	restart()
	r.must(r.WaitShown(r.soon(time.Minute), gpu, 3)) // the scheduler does not count the one of the claim
	r.until("the slices are gone", func() bool { return len(r.sliced()) == 0 })
	undisturbed("counted", "requested", "claimed")
	r.run("last", gpu, 1) // of three, two are requested by pods that run
	r.must(r.Create(r.ctx, node.Pod("beyond", gpu, 1, "report")))
	r.unscheduled("beyond")
}

// The scheduler hands a device on when a pod is deleted by force. The next container starts when the former one has ended.
func TestDRA_HolderDeletedByForce_NextPodWaitsForItsEnd(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 1)
	r.must(r.Create(r.ctx, node.Pod("stubborn", gpu, 1, "linger", "20s"))) // whatever SIGTERM says
	_, err := r.WaitPhase(r.soon(time.Minute), "stubborn", corev1.PodRunning)
	r.must(err)
	now := int64(0)
	r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, "stubborn", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	deleted := time.Now()
	r.must(r.Create(r.ctx, node.Pod("next", gpu, 1, "report", "--then-sleep")))
	waited := false
	r.until("the next pod runs", func() bool {
		all, err := r.Stamps(r.ctx)
		r.must(err)
		if len(all) > 1 {
			t.Fatalf("two containers have the device: %v", all)
		}
		if !waited {
			explained, _ := r.Command(r.ctx, "explain", "default/next").Output()
			waited = bytes.Contains(explained, []byte("DeviceInUse"))
		}
		p, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, "next", metav1.GetOptions{})
		r.must(err)
		return p.Status.Phase == corev1.PodRunning
	})
	if !waited {
		t.Error("the scheduler has not given the device on: this proves nothing")
	}
	t.Logf("the next pod runs %s after the deletion", time.Since(deleted).Round(time.Millisecond))
}
