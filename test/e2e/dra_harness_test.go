//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
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
	r.t.Cleanup(r.removeClasses)
}

// removeClasses deletes all pods, and then all DeviceClasses.
func (r *harness) removeClasses() {
	r.t.Helper()
	r.removePods()
	if err := r.Client().ResourceV1().DeviceClasses().DeleteCollection(context.WithoutCancel(r.ctx), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		r.t.Error(err)
	}
}

// removePods deletes all pods of the default namespace, and waits until they are gone.
func (r *harness) removePods() {
	r.t.Helper()
	ctx, now := context.WithoutCancel(r.ctx), int64(0)
	pods := r.Client().CoreV1().Pods(metav1.NamespaceDefault)
	r.until("no pod is left", func() bool {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			_ = pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}) // or at the next look
		}
		return err == nil && len(list.Items) == 0
	})
}

// slicesOf returns a driver's ResourceSlices of the node.
func (r *harness) slicesOf(driver string) []resourceapi.ResourceSlice {
	r.t.Helper()
	return asked(r, func() (*resourceapi.ResourceSliceList, error) {
		return r.Client().ResourceV1().ResourceSlices().List(r.ctx, metav1.ListOptions{FieldSelector: "spec.driver=" + driver + ",spec.nodeName=" + r.NodeName()})
	}).Items
}

// sliced returns the devices that devmgrd's ResourceSlices show, with their taints.
func (r *harness) sliced() (all map[string][]string) {
	r.t.Helper()
	all = map[string][]string{}
	for _, s := range r.slicesOf(dra.Driver) {
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
	p := r.serve(resource, devices, prepare...)
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

// chosen returns the devices that the scheduler has chosen for a request of a pod's claim, or for all of its requests: "".
func (r *harness) chosen(pod *corev1.Pod, claim, request string) (all []string) {
	r.t.Helper()
	c := asked(r, func() (*resourceapi.ResourceClaim, error) {
		return r.Client().ResourceV1().ResourceClaims(pod.Namespace).Get(r.ctx, claim, metav1.GetOptions{})
	})
	if c.Status.Allocation == nil {
		r.t.Fatalf("claim %s of pod %s is not allocated", claim, pod.Name)
	}
	for _, result := range c.Status.Allocation.Devices.Results {
		if request == "" || result.Request == request || strings.HasPrefix(result.Request, request+"/") { // an alternative
			all = append(all, result.Device)
		}
	}
	return all
}

// promised returns the devices that the claims of a container name, by the API server.
func (r *harness) promised(pod *corev1.Pod, container string) (all []string) {
	r.t.Helper()
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, use := range c.Resources.Claims {
			if c.Name != container {
				continue
			}
			name := pod.Spec.ResourceClaims[slices.IndexFunc(pod.Spec.ResourceClaims, func(p corev1.PodResourceClaim) bool { return p.Name == use.Name })].ResourceClaimName
			for _, made := range pod.Status.ResourceClaimStatuses {
				if made.Name == use.Name {
					name = made.ResourceClaimName
				}
			}
			all = append(all, r.chosen(pod, *name, use.Request)...)
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		for _, m := range status.RequestMappings {
			if m.ContainerName == container {
				all = append(all, r.chosen(pod, status.ResourceClaimName, m.RequestName)...)
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
	pod, err := r.WaitPhase(r.soon(), name, corev1.PodRunning)
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
	r.must(r.StartDevmgrd(r.soon()))
}

// restartedWith stops devmgrd, and starts it with these arguments.
func (r *harness) restartedWith(args ...string) {
	r.t.Helper()
	r.must(r.Devmgrd.Stop(stopLimit))
	r.Devmgrd = r.Another("devmgrd", settings(args)...)
	r.must(r.StartDevmgrd(r.soon()))
}

// bound waits until the scheduler has bound a pod.
func (r *harness) bound(name string) {
	r.t.Helper()
	r.must(r.WaitPod(r.soon(), metav1.NamespaceDefault, name, func(p *corev1.Pod) (bool, error) { return p != nil && p.Spec.NodeName != "", nil }))
}

// generations returns the generations of the node's pools, by pool.
func (r *harness) generations() map[string]int64 {
	r.t.Helper()
	all := map[string]int64{}
	for _, s := range r.slicesOf(dra.Driver) {
		all[s.Spec.Pool.Name] = s.Spec.Pool.Generation
	}
	return all
}
