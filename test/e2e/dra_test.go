//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/cluster"
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

// A resource that no pod uses is moved back. Its slices leave at once, so that the scheduler chooses no device from them for which there is
// no driver.
func TestDRA_MovedBackWithoutPods_SlicesLeaveAtOnce(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	r.must(r.Devmgrd.Stop(20 * time.Second))
	r.Devmgrd = r.Another("devmgrd")
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
	back := time.Now()
	r.until("the slices are gone", func() bool { return len(r.sliced()) == 0 })
	if took := time.Since(back); took > 25*time.Second { // the kubelet removes those of an absent driver after 30 s
		t.Errorf("the slices are gone after %s: the kubelet has removed them", took)
	}
	r.must(r.WaitShown(r.soon(time.Minute), gpu, 2))
	r.run("a", gpu, 2)
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

// promised returns the devices that the claims of a container name, by the API server.
func (r *harness) promised(pod *corev1.Pod, container string) (all []string) {
	r.t.Helper()
	claims := r.Client().ResourceV1().ResourceClaims(pod.Namespace)
	add := func(name, request string) {
		claim, err := claims.Get(r.ctx, name, metav1.GetOptions{})
		r.must(err)
		if claim.Status.Allocation == nil {
			r.t.Fatalf("claim %s of pod %s is not allocated", name, pod.Name)
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if request == "" || result.Request == request {
				all = append(all, result.Device)
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, use := range c.Resources.Claims {
			if of := slices.IndexFunc(pod.Spec.ResourceClaims, func(p corev1.PodResourceClaim) bool { return p.Name == use.Name }); c.Name == container {
				add(*pod.Spec.ResourceClaims[of].ResourceClaimName, use.Request)
			}
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		for _, m := range status.RequestMappings {
			if m.ContainerName == container {
				add(status.ResourceClaimName, m.RequestName)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// named returns the names of devices in slices, ascending.
func named(ids ...string) (names []string) {
	for _, id := range ids {
		names = append(names, dra.Name(device.ID(id)))
	}
	slices.Sort(names)
	return names
}

// exact compares the devices of a running pod's containers with those of its claims, and returns them by container.
func (r *harness) exact(name string) map[string][]string {
	r.t.Helper()
	_, err := r.WaitPhase(r.soon(2*time.Minute), name, corev1.PodRunning)
	r.must(err)
	pod, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, name, metav1.GetOptions{})
	r.must(err)
	all := map[string][]string{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		want, got := r.promised(pod, c.Name), r.held(name, c.Name)[c.Name]
		if names := named(got...); !slices.Equal(names, want) {
			r.t.Errorf("container %s of pod %s has %q, and its claims name %q", c.Name, name, names, want)
		}
		all[c.Name] = got
	}
	return all
}

// distinct reports devices that several of these pods have.
func (r *harness) distinct(pods ...string) {
	r.t.Helper()
	holder := map[string]string{}
	for _, name := range pods {
		for _, ids := range r.exact(name) {
			for _, id := range ids {
				if other, taken := holder[id]; taken && other != name {
					r.t.Errorf("pods %s and %s have device %s", other, name, id)
				}
				holder[id] = name
			}
		}
	}
}

// killed kills devmgrd and starts it again.
func (r *harness) killed() {
	r.t.Helper()
	r.must(r.Devmgrd.Kill())
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
}

// bound waits until the scheduler has bound a pod.
func (r *harness) bound(name string) {
	r.t.Helper()
	r.must(r.WaitPod(r.soon(30*time.Second), metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) { return p != nil && p.Spec.NodeName != "", nil }))
}

// A device plugin is away when its pods are bound. They wait with the reason, other pods do not notice, and they start when it is back.
func TestDRA_PluginComesLate_PodsWaitForIt(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu, "--set", "dra.hold=3s")
	r.class(gpu)
	r.must(r.Create(r.ctx, node.Pod("early", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("early")
	p := r.offered(gpu, 3)
	r.exact("early")

	p.Kill()
	r.must(r.Create(r.ctx, node.Pod("requests", gpu, 1, "report", "--then-sleep")))
	r.claim("own", "vendor.example-gpu", 1)
	r.must(r.Create(r.ctx, claiming("claims", "own")))
	began := time.Now()
	r.run("plain", "", 0)
	plain := time.Since(began)
	for _, name := range []string{"requests", "claims"} {
		r.told(name, "FailedPrepareDynamicResources")
		r.told(name, "PluginStale")
		r.says("explain default/"+name, "PluginStale")
	}
	p.Serve()
	p.MustRegister()
	back := time.Now()
	r.distinct("early", "requests", "claims")
	t.Logf("the plain pod ran after %s, the waiting ones %s after the plugin's return", plain.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
}

// devmgrd and the kubelet are killed at each step of a pod's way.
func TestDRA_KilledAtEachStep_PodsHaveTheDevicesOfTheirClaims(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	p := r.offered(gpu, 8)
	r.claim("own", "vendor.example-gpu", 2)
	began := time.Now()
	lap := func(what string) {
		t.Logf("%s: %s", what, time.Since(began).Round(100*time.Millisecond))
		began = time.Now()
	}

	// Away while the pod is bound.
	r.must(r.Devmgrd.Kill())
	r.must(r.Create(r.ctx, node.Pod("a", gpu, 1, "report", "--then-sleep")))
	r.bound("a")
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
	r.exact("a")
	lap("away while the pod is bound")

	// The plugin works on Allocate, for a request and for a claim.
	open := make(chan struct{})
	p.Before(plugintest.Allocate, plugintest.HoldUntil(open))
	calls := p.Calls(plugintest.Allocate)
	r.must(r.Create(r.ctx, node.Pod("b", gpu, 1, "report", "--then-sleep")))
	r.must(r.Create(r.ctx, claiming("c", "own")))
	r.bound("b")
	r.bound("c")
	r.until("one is allocated", func() bool { return p.Calls(plugintest.Allocate) > calls }) // the plugin has one call at a time
	r.must(r.Devmgrd.Kill())
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
	r.until("one is allocated again", func() bool { return p.Calls(plugintest.Allocate) > calls+1 })
	lap("killed while the plugin works on Allocate")
	r.must(r.Devmgrd.Kill())
	close(open)
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
	r.distinct("a", "b", "c")
	lap("killed again")

	// The devices have just been assigned.
	r.must(r.Create(r.ctx, node.Pod("d", gpu, 2, "report", "--then-sleep")))
	r.until("pod d has its devices", func() bool { return r.inState(gpu, "assigned") == 6 })
	r.must(r.Kubelet.Kill())
	r.must(r.Devmgrd.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
	r.distinct("a", "b", "c", "d")
	lap("killed after the commit")
}

// devmgrd is killed at any moment of the start and the end of pods, and the kubelet after it. Containers that end meanwhile are made again.
func TestDRA_KilledAtAnyMoment_PodsHaveTheDevicesOfTheirClaims(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 5)
	before := r.stays("stays", 1)
	for _, name := range []string{"ends-0", "ends-1"} {
		r.run(name, gpu, 2)
		r.must(r.Client().CoreV1().Pods(metav1.NamespaceDefault).Delete(r.ctx, name, metav1.DeleteOptions{}))
	}
	for i := range 4 {
		r.must(r.Create(r.ctx, node.Pod(fmt.Sprint("last-", i), gpu, 1, "report", "--then-sleep")))
		r.killed()
	}
	r.must(r.Kubelet.Kill())
	r.must(r.Kubelet.Start(r.ctx))
	if now := r.again("stays"); now != before {
		t.Errorf("the pod had %s and has %s", before, now)
	}
	r.distinct("stays", "last-0", "last-1", "last-2", "last-3")
}

// The state file is lost. Containers keep the devices of their claims, and no other pod gets them.
func TestDRA_StateFileLost_PodsKeepTheDevicesOfTheirClaims(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	p := r.offered(gpu, 4)
	r.run("ends", gpu, 1)
	before := r.stays("requests", 1)
	r.claim("own", "vendor.example-gpu", 1)
	r.must(r.Create(r.ctx, claiming("claims", "own")))
	r.exact("claims")
	r.must(r.Delete(r.ctx, "ends"))
	r.must(r.Devmgrd.Kill())
	r.must(os.Remove(stateFile))
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
	p.MustRegister() // no record of it is left
	r.until("the slices show all devices", func() bool { return len(r.sliced()) == 4 })
	r.run("c", gpu, 1)
	r.run("d", gpu, 1)
	if now := r.again("requests"); now != before {
		t.Errorf("the pod had %s and has %s", before, now)
	}
	r.distinct("requests", "claims", "c", "d")
	r.states(0, 4, 0)
}

// devmgrd is killed while it takes a resource off the Node. A pod that the scheduler has bound by the Node's number waits meanwhile.
func TestDRA_KilledWhileSwitching_PodsOfBothKindsStart(t *testing.T) {
	r := start(t)
	r.class(gpu)
	open := make(chan struct{})
	p := r.plugin(gpu, 4, func(p *plugintest.Plugin) { p.Before(plugintest.Allocate, plugintest.HoldUntil(open)) })
	r.must(r.Create(r.ctx, node.Pod("counted", gpu, 1, "report", "--then-sleep")))
	r.until("the plugin is asked", func() bool { return p.Calls(plugintest.Allocate) > 0 })
	r.must(r.Devmgrd.Kill())
	r.must(r.Create(r.ctx, node.Pod("unseen", gpu, 1, "report", "--then-sleep")))
	r.bound("unseen")

	r.Devmgrd = r.Another("devmgrd", "--set", "dra.resources="+gpu)
	r.must(r.Devmgrd.Start(r.ctx))
	r.must(r.WaitShown(r.soon(time.Minute), gpu, -1))
	r.killed()
	r.must(r.Create(r.ctx, node.Pod("requested", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("requested")
	r.killed()
	if all := r.sliced(); len(all) > 0 { // any of them may be assigned to the pods that wait
		t.Errorf("the slices show %v", all)
	}
	close(open)
	r.running("counted")
	r.running("unseen")
	r.exact("requested")
}

// generations returns the generations of the node's pools, by pool.
func (r *harness) generations() map[string]int64 {
	r.t.Helper()
	list, err := r.Client().ResourceV1().ResourceSlices().List(r.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + r.NodeName()})
	r.must(err)
	all := map[string]int64{}
	for _, s := range list.Items {
		all[s.Spec.Pool.Name] = s.Spec.Pool.Generation
	}
	return all
}

// A device that no pod may be assigned is tainted within a second, by one write. A pod for which the scheduler has chosen it before waits.
func TestDRA_DeviceOutOfService_IsTainted(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	p := r.offered(gpu, 2)
	const first, second = "dev-000000", "dev-000001"
	tainted := func(what string, change func(), id string, want ...string) {
		t.Helper()
		before := r.generations()
		began := time.Now()
		change()
		r.until("device "+id+" has the taints of: "+what, func() bool { return slices.Equal(r.sliced()[named(id)[0]], want) })
		took := time.Since(began)
		for pool, g := range r.generations() {
			if g != before[pool]+1 {
				t.Errorf("%s: %d writes of pool %s, want 1", what, g-before[pool], pool)
			}
		}
		t.Logf("%s: shown after %s", what, took.Round(time.Millisecond)) // a second at most, on a quiet machine
	}
	tainted("cordon", func() { r.says("cordon " + gpu + "/" + first + " --reason dust") }, first, "devmgrd.io/cordoned")
	tainted("unhealthy", func() { p.SetHealth(second, plugintest.Unhealthy) }, second, "devmgrd.io/unhealthy")
	r.must(r.Create(r.ctx, node.Pod("a", gpu, 1, "report", "--then-sleep")))
	r.claim("own", "vendor.example-gpu", 1)
	r.must(r.Create(r.ctx, claiming("b", "own")))
	r.unscheduled("a")
	r.unscheduled("b")
	tainted("healthy", func() { p.SetHealth(second, plugintest.Healthy) }, second)
	r.until("one of the pods is bound", func() bool { return r.inState(gpu, "assigned") == 1 })
	tainted("uncordon", func() { r.says("uncordon " + gpu + "/" + first) }, first)
	r.distinct("a", "b")
	r.removePods()

	// Chosen first, cordoned then.
	r.until("both devices are free", func() bool { return r.inState(gpu, "free") == 2 })
	p.Kill()
	r.must(r.Create(r.ctx, node.Pod("late", gpu, 1, "report", "--then-sleep")))
	r.bound("late")
	pod, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, "late", metav1.GetOptions{})
	r.must(err)
	chosen, other := first, second
	if r.promised(pod, "main")[0] != named(first)[0] {
		chosen, other = second, first
	}
	r.says("cordon " + gpu + "/" + chosen + " --reason dust")
	p.Serve()
	p.MustRegister()
	r.until("the pod waits for the cordon's end", func() bool {
		explained, _ := r.Command(r.ctx, "explain", "default/late").Output()
		return bytes.Contains(explained, []byte("DeviceCordoned")) && bytes.Contains(explained, []byte("dust"))
	})
	r.says("uncordon " + gpu + "/" + chosen)
	r.exact("late")

	// Suspended: it has failed too often.
	r.until("the device is suspended", func() bool {
		p.SetHealth(other, plugintest.Unhealthy)
		p.SetHealth(other, plugintest.Healthy)
		return slices.Contains(r.sliced()[named(other)[0]], "devmgrd.io/suspended")
	})
}

// The power fails. Containers have the devices of their claims again when the plugin is back.
func TestDRA_Reboot_ContainersHaveTheSameDevices(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu, "--set", "dra.hold=3s")
	r.class(gpu)
	p := r.offered(gpu, 4)
	r.restarting("a", gpu)
	r.claim("own", "vendor.example-gpu", 2)
	b := claiming("b", "own")
	b.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, b))
	before := map[string]string{"a": r.running("a").Env["DEVICES"], "b": r.running("b").Env["DEVICES"]}

	p.Kill()
	r.must(r.Devmgrd.Kill())
	r.must(r.PowerOff(r.ctx))
	r.must(os.RemoveAll(filepath.Dir(node.SocketDir)))
	r.must(r.PowerOn(r.ctx, func() error { return r.Devmgrd.Start(r.ctx) })) // ready when the kubelet has registered the driver
	r.must(r.Create(r.ctx, node.Pod("c", gpu, 1, "report", "--then-sleep")))
	for _, name := range []string{"a", "b", "c"} {
		r.until("pod "+name+" waits", func() bool {
			explained, _ := r.Command(r.ctx, "explain", "default/"+name).Output()
			return bytes.Contains(explained, []byte("PluginStale")) || name == "c" && bytes.Contains(explained, []byte("DeviceGone")) // not listed in this boot
		})
	}
	p.Serve()
	p.MustRegister()
	for name, had := range before {
		if now := r.runsAgain(name).Env["DEVICES"]; now != had || now == "" {
			t.Errorf("pod %s had %q and has %q", name, had, now)
		}
	}
	r.distinct("a", "b", "c")
}

// Pods that are deleted while devmgrd is away are gone soon after its return, and their devices are free.
func TestDRA_PodsDeletedWhileDevmgrdIsAway_AreGoneAfterwards(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	r.claim("own", "vendor.example-gpu", 1)
	r.run("a", gpu, 1)
	r.must(r.Create(r.ctx, claiming("b", "own")))
	r.exact("b")
	r.must(r.Devmgrd.Kill())
	pods := r.Client().CoreV1().Pods(metav1.NamespaceDefault)
	r.must(pods.Delete(r.ctx, "a", metav1.DeleteOptions{}))
	r.must(pods.Delete(r.ctx, "b", metav1.DeleteOptions{}))
	r.until("no container runs", func() bool {
		all, err := r.RunningContainers(r.ctx, "main")
		return err == nil && len(all) == 0
	})
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
	back := time.Now()
	r.until("the pods are gone", func() bool {
		list, err := pods.List(r.ctx, metav1.ListOptions{})
		return err == nil && len(list.Items) == 0
	})
	t.Logf("the pods are gone %s after devmgrd is back", time.Since(back).Round(time.Millisecond))
	r.run("c", gpu, 2)
}

// random returns a pod with containers of all kinds that request devices or use claims, alone or shared.
func (r *harness) random(dice *rand.Rand, name string) *corev1.Pod {
	r.t.Helper()
	p := node.Pod(name, "", 0)
	p.Spec.Containers = nil
	claim := ""
	if dice.IntN(2) == 0 {
		claim = "of-" + name
		r.claim(claim, "vendor.example-gpu", 1+dice.Int64N(2))
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "mine", ResourceClaimName: &claim}}
	}
	container := func(name string, args ...string) corev1.Container {
		c := asks(name, dice.IntN(2), args...)
		if claim != "" && dice.IntN(3) > 0 {
			c.Resources.Claims = []corev1.ResourceClaim{{Name: "mine"}}
		}
		return c
	}
	if dice.IntN(3) == 0 {
		p.Spec.InitContainers = append(p.Spec.InitContainers, container("first", "report"))
	}
	if dice.IntN(3) == 0 {
		always, c := corev1.ContainerRestartPolicyAlways, container("sidecar", "report", "--then-sleep")
		c.RestartPolicy = &always
		p.Spec.InitContainers = append(p.Spec.InitContainers, c)
	}
	for i := range 1 + dice.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, container(fmt.Sprint("main-", i), "report", "--then-sleep"))
	}
	return p
}

// Pods that request devices, use claims or share one between containers have exactly the devices of their claims.
func TestDRA_ManyPods_HaveExactlyTheDevicesOfTheirClaims(t *testing.T) {
	pods, seed := times(t, "E2E_PODS", 30), times(t, "E2E_SEED", int(time.Now().UnixNano()>>10&0xffffff))
	t.Logf("%d pods, E2E_SEED=%d", pods, seed)
	dice := rand.New(rand.NewPCG(uint64(seed), 0))
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 8, func(p *plugintest.Plugin) {
		all := make([]*plugintest.Device, 8)
		for i := range all {
			all[i] = plugintest.Dev(fmt.Sprintf("GPU %d", i), plugintest.Healthy, int64(i%2))
		}
		p.Set(all...)
	})

	_, err := r.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault).Create(r.ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "near"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "devices", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "vendor.example-gpu", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 4,
			}}},
			Constraints: []resourceapi.DeviceConstraint{{MatchAttribute: new(resourceapi.FullyQualifiedName("devmgrd.io/numaNode"))}},
		}},
	}, metav1.CreateOptions{})
	r.must(err)
	r.must(r.Create(r.ctx, claiming("near", "near")))
	near := r.exact("near")["main"]
	if slices.Sort(near); !slices.Equal(near, []string{"GPU 0", "GPU 2", "GPU 4", "GPU 6"}) && !slices.Equal(near, []string{"GPU 1", "GPU 3", "GPU 5", "GPU 7"}) {
		t.Errorf("the devices %q are not on one NUMA node", near)
	}
	r.removePods()

	api := r.Client().CoreV1().Pods(metav1.NamespaceDefault)
	now, created := int64(0), 0
	r.until("all pods have run", func() bool {
		list, err := api.List(r.ctx, metav1.ListOptions{})
		r.must(err)
		var running []string
		for _, p := range list.Items {
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running = append(running, p.Name)
			}
		}
		r.distinct(running...)
		for _, name := range running {
			options := metav1.DeleteOptions{}
			if dice.IntN(4) == 0 {
				options.GracePeriodSeconds = &now
			}
			r.must(api.Delete(r.ctx, name, options))
		}
		for n := len(list.Items); n < 8 && created < pods; n++ {
			r.must(r.Create(r.ctx, r.random(dice, fmt.Sprint("pod-", created))))
			created++
		}
		return len(list.Items) == 0 && created == pods
	})
	r.until("all devices are free", func() bool { return r.inState(gpu, "free") == 8 })
	r.run("last", gpu, 8)
}

// PodResources lists the devices of claims under the plugin's resource.
func TestDRA_PodResources_ListTheDevicesOfEachContainer(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 4)
	r.claim("own", "vendor.example-gpu", 2)
	r.must(r.Create(r.ctx, claiming("a", "own")))
	b := node.Pod("b", "", 0)
	b.Spec.Containers = []corev1.Container{asks("one", 1, "report", "--then-sleep"), asks("other", 1, "report", "--then-sleep"), asks("none", 0, "report", "--then-sleep")}
	r.must(r.Create(r.ctx, b))
	want := map[string]map[string][]string{"a": r.exact("a"), "b": r.exact("b")}
	check := func(question string, pod *podresources.PodResources) {
		t.Helper()
		for _, c := range pod.GetContainers() {
			var got []string
			for _, d := range c.GetDevices() {
				if d.GetResourceName() != gpu {
					t.Errorf("%s has the resource %s", question, d.GetResourceName())
				}
				got = append(got, d.GetDeviceIds()...)
			}
			slices.Sort(got)
			if all := want[pod.GetName()][c.GetName()]; !slices.Equal(got, all) {
				t.Errorf("%s: container %s of pod %s has %q, want %q", question, c.GetName(), pod.GetName(), got, all)
			}
			for _, d := range c.GetDynamicResources() {
				t.Errorf("%s: container %s of pod %s has a dynamic resource: %v", question, c.GetName(), pod.GetName(), d)
			}
		}
	}
	tell := r.teller(ourResources)
	list, err := tell.List(r.ctx, &podresources.ListPodResourcesRequest{})
	r.must(err)
	for _, p := range list.PodResources {
		check("List", p)
	}
	if len(list.PodResources) != 2 {
		t.Errorf("List has %d pods, want 2", len(list.PodResources))
	}
	for name := range want {
		one, err := tell.Get(r.ctx, &podresources.GetPodResourcesRequest{PodNamespace: "default", PodName: name})
		r.must(err)
		check("Get", one.PodResources)
	}
}

// A resource with more devices than dra.maxDevices stays a number of the Node.
func TestDRA_TooManyDevices_StayANumber(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu, "--set", "dra.maxDevices=3")
	r.class(gpu)
	p := r.plugin(gpu, 4)
	r.run("a", gpu, 1)
	if all := r.sliced(); len(all) != 0 {
		t.Errorf("the slices show %v", all)
	}
	if !strings.Contains(r.Tail(), "dra.maxDevices") {
		t.Error("the log does not tell")
	}
	r.says("status", "dra.maxDevices")

	r.removePods()
	p.Set(plugintest.Devices(3)...)
	r.must(r.WaitShown(r.soon(time.Minute), gpu, -1))
	r.until("the slices show the devices", func() bool { return len(r.sliced()) == 3 })
	r.run("b", gpu, 1)
	r.exact("b")
	p.Set(plugintest.Devices(4)...)
	r.must(r.WaitShown(r.soon(time.Minute), gpu, 4))
	r.until("the slices show none", func() bool { return len(r.sliced()) == 0 })
	r.run("c", gpu, 3)
	r.exact("b")
}

// The control plane knows neither taints nor classes for unchanged pods: claims are served, and other pods stay pending.
func TestDRA_FeaturesOff_ClaimsAreServed(t *testing.T) {
	r := startWith(t, cluster.Options{FeatureGates: "DRAExtendedResource=false,DRADeviceTaints=false"}, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 3)
	r.says("cordon " + gpu + "/dev-000000 --reason dust")
	r.until("the slices lack the device", func() bool { return len(r.sliced()) == 2 && r.sliced()[named("dev-000000")[0]] == nil })
	r.claim("own", "vendor.example-gpu", 2)
	r.must(r.Create(r.ctx, claiming("claims", "own")))
	r.exact("claims")
	r.must(r.Create(r.ctx, node.Pod("requests", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("requests")
	r.says("uncordon " + gpu + "/dev-000000")
	r.until("the slices show all devices", func() bool { return len(r.sliced()) == 3 })
	r.killed()
	r.exact("claims")

	// The resource is a number again.
	r.must(r.Devmgrd.Stop(20 * time.Second))
	r.Devmgrd = r.Another("devmgrd")
	r.must(r.StartDevmgrd(r.soon(time.Minute)))
	if got := r.running("requests").Env["DEVICES"]; got != "dev-000000" {
		t.Errorf("the pod has %q", got)
	}
	r.exact("claims")
}
