//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingapi "k8s.io/api/scheduling/v1beta1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

const (
	gpuClass = "vendor.example-gpu"
	implicit = "deviceclass.resource.kubernetes.io/" + gpuClass // the name that Kubernetes derives from the class
)

// Each way in which a pod can come to devices through DRA (docs/dra.md has the table): each container has exactly the devices that its claims name, or it
// does not start.
func TestDRA_EachWayToADevice_ContainersHaveWhatTheirClaimsName(t *testing.T) {
	if err := os.MkdirAll(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	r := startWith(t, cluster.Options{KubeletConfig: "staticPodPath: " + manifests}, "--set", "dra.resources="+gpu, "--set", "dra.hold=2s")
	t.Cleanup(func() { os.RemoveAll(manifests) })
	r.class(gpu)
	r.offered(gpu, 40)

	request := func(name string) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: gpuClass}}
	}
	r.makeClaim("one", request("a"))
	r.makeClaim("shared", request("a"))
	r.makeClaim("three", request("a"), request("b"), request("c"))
	r.makeClaim("alternatives", resourceapi.DeviceRequest{Name: "a", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "none", DeviceClassName: gpuClass, Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "false"}}}},
		{Name: "two", DeviceClassName: gpuClass, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 2},
	}})
	r.makeClaim("mixed", request("a"))
	r.makeClaim("inits", request("a"))
	_, err := r.Client().ResourceV1().ResourceClaimTemplates(metav1.NamespaceDefault).Create(r.ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: "template"},
		Spec:       resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{request("a")}}}},
	}, metav1.CreateOptions{})
	r.must(err)
	t.Cleanup(func() {
		_ = r.Client().ResourceV1().ResourceClaimTemplates(metav1.NamespaceDefault).Delete(context.WithoutCancel(r.ctx), "template", metav1.DeleteOptions{})
	})

	ways := map[string]struct {
		pod  *corev1.Pod
		want map[string]int // devices by container
	}{
		"explicit":    {of(limited("main", gpu, 2)), map[string]int{"main": 2}},
		"implicit":    {of(limited("main", implicit, 1)), map[string]int{"main": 1}},
		"both":        {of(limited("explicit", gpu, 1), limited("implicit", implicit, 2)), map[string]int{"explicit": 1, "implicit": 2}},
		"both-in-one": {of(limited("main", gpu, 1, implicit, 1)), map[string]int{"main": 2}},
		"claim":       {using(of(uses("main", "one")), "one"), map[string]int{"main": 1}},
		"template": {func() *corev1.Pod {
			p, name := of(uses("main", "made")), "template"
			p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "made", ResourceClaimTemplateName: &name}}
			return p
		}(), map[string]int{"main": 1}},
		"requests":     {using(of(uses("first", "three/a"), uses("second", "three/b", "three/c")), "three"), map[string]int{"first": 1, "second": 2}},
		"alternatives": {using(of(uses("main", "alternatives/a")), "alternatives"), map[string]int{"main": 2}},
		"shared-1":     {using(of(uses("main", "shared"), uses("side", "shared")), "shared"), map[string]int{"main": 1, "side": 1}},
		"shared-2":     {using(of(uses("main", "shared")), "shared"), map[string]int{"main": 1}},
		"mixed": {func() *corev1.Pod {
			p := using(of(limited("main", gpu, 1), uses("claims", "mixed")), "mixed")
			sidecar, always := limited("sidecar", implicit, 1), corev1.ContainerRestartPolicyAlways
			sidecar.RestartPolicy = &always
			init := limited("init", gpu, 1)
			init.Args = []string{"report"}
			p.Spec.InitContainers = []corev1.Container{init, sidecar}
			return p
		}(), map[string]int{"init": 1, "sidecar": 1, "main": 1, "claims": 1}},
		"init-claims": {func() *corev1.Pod {
			p := using(of(limited("main", gpu, 1)), "inits")
			init := uses("init", "inits")
			init.Args = []string{"report"}
			p.Spec.InitContainers = []corev1.Container{init}
			return p
		}(), map[string]int{"init": 1, "main": 1}},
	}
	// The static pod comes first: the scheduler does not know of it, and might choose its device at the same moment.
	static := of(limited("main"))
	static.Name, static.Annotations = "annotated", map[string]string{"devmgrd.io/resources": `{"main":{"` + gpu + `":1}}`}
	mirror := r.static(static)
	r.running(mirror)
	r.until("the static pod's device is in no slice", func() bool { return len(r.sliced()) == 39 })
	for name, way := range ways {
		way.pod.Name = name
		r.must(r.Create(r.ctx, way.pod))
	}

	holders := map[string]string{}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			r := r.in(t)
			for container, ids := range r.exact(name) {
				if len(ids) != way.want[container] {
					t.Errorf("container %s has %q, want %d devices", container, ids, way.want[container])
				}
				for _, id := range ids {
					if other := holders[id]; other != "" && other != name && (!strings.HasPrefix(other, "shared") || !strings.HasPrefix(name, "shared")) {
						t.Errorf("pods %s and %s have device %s", other, name, id)
					}
					holders[id] = name
				}
			}
		})
	}
	t.Run("init container's claim stays its own", func(t *testing.T) {
		r := r.in(t)
		if all := r.exact("init-claims"); slices.Equal(all["init"], all["main"]) {
			t.Errorf("the device of a claim has gone on to a request: %v", all)
		}
	})
	t.Run("metadata", func(t *testing.T) {
		r := r.in(t)
		for pod, below := range map[string]string{"claim": "resourceclaims/one", "template": "resourceclaimtemplates/made"} {
			at := "/var/run/kubernetes.io/dra-device-attributes/" + below + "/a/devmgrd.io-metadata.json"
			if m, there := r.running(pod).Mount(at); !there || !slices.Contains(m.Options, "ro") {
				t.Errorf("pod %s: at %s is %+v", pod, at, m)
			}
		}
	})
	t.Run("static pod", func(t *testing.T) {
		r := r.in(t)
		if id := r.running(mirror).Env["DEVICES"]; id == "" || holders[id] != "" {
			t.Errorf("it has device %q, which pod %q has", id, holders[id])
		}
	})

	refused := func(way, reason string, pod *corev1.Pod) {
		t.Run(way, func(t *testing.T) {
			r := r.in(t)
			pod.Name = way
			r.must(r.Create(r.ctx, pod))
			r.told(way, reason)
			r.must(r.Delete(r.ctx, way))
		})
	}
	r.makeClaim("unused", request("a"))
	refused("claim-of-no-container", "no container of pod default/claim-of-no-container uses the devices", using(of(limited("main", "", 0)), "unused"))
	byhand := of(limited("main", gpu, 1))
	byhand.Spec.NodeName = r.NodeName()
	refused("bound-by-hand", "NoClaim", byhand)
	byhand = of(limited("main", implicit, 1))
	byhand.Spec.NodeName = r.NodeName()
	refused("bound-by-hand-implicit", "OutOf", byhand)
	t.Run("admin access", func(t *testing.T) { r.in(t).adminAccess() })
	os.RemoveAll(manifests)             // the kubelet needs the driver to end the pods
	r.must(r.Delete(r.ctx, "shared-2")) // at its end the test looks for devices in two hands
}

// adminAccess makes a pod whose claim has access to devices that other pods have, which devmgrd does not offer.
func (r *harness) adminAccess() {
	r.t.Helper()
	const space = "admins"
	_, err := r.Client().CoreV1().Namespaces().Create(r.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space, Labels: map[string]string{resourceapi.DRAAdminNamespaceLabelKey: "true"}}}, metav1.CreateOptions{})
	r.must(err)
	yes := true
	_, err = r.Client().ResourceV1().ResourceClaims(space).Create(r.ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "watches"},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "a", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: gpuClass, AdminAccess: &yes,
		}}}}},
	}, metav1.CreateOptions{})
	r.must(err)
	p := using(of(uses("main", "watches")), "watches")
	p.Name, p.Namespace = "watcher", space
	r.until("the pod can be created", func() bool { // its service account comes later
		_, err := r.Client().CoreV1().Pods(space).Create(r.ctx, p, metav1.CreateOptions{})
		return err == nil
	})
	r.until("the pod waits for a claim without adminAccess", func() bool {
		explained, _ := r.Command(r.ctx, "explain", space+"/watcher").Output()
		return bytes.Contains(explained, []byte("adminAccess"))
	})
	now := int64(0)
	r.must(r.Client().CoreV1().Pods(space).Delete(r.ctx, "watcher", metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

// Claims of a PodGroup are reserved for the group, and not for its pods.
func TestDRA_ClaimOfAPodGroup_ItsPodsHaveTheDevice(t *testing.T) {
	gates := "GenericWorkload: true, DRAWorkloadResourceClaims: true"
	r := startWith(t, cluster.Options{
		FeatureGates: "GenericWorkload=true,DRAWorkloadResourceClaims=true", RuntimeConfig: "scheduling.k8s.io/v1beta1=true", KubeletConfig: fmt.Sprintf("featureGates: {%s}", gates),
	}, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 2)
	template := "template"
	_, err := r.Client().ResourceV1().ResourceClaimTemplates(metav1.NamespaceDefault).Create(r.ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: template},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "a", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: gpuClass}},
		}}}},
	}, metav1.CreateOptions{})
	r.must(err)
	group := "group"
	_, err = r.Client().SchedulingV1beta1().PodGroups(metav1.NamespaceDefault).Create(r.ctx, &schedulingapi.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Name: group},
		Spec: schedulingapi.PodGroupSpec{
			SchedulingPolicy: schedulingapi.PodGroupSchedulingPolicy{Basic: &schedulingapi.BasicSchedulingPolicy{}},
			ResourceClaims:   []schedulingapi.PodGroupResourceClaim{{Name: "made", ResourceClaimTemplateName: &template}},
		},
	}, metav1.CreateOptions{})
	r.must(err)
	member := func(name string) []string {
		p := of(uses("main", "made"))
		p.Name, p.Spec.SchedulingGroup = name, &corev1.PodSchedulingGroup{PodGroupName: &group}
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "made", ResourceClaimTemplateName: &template}}
		r.must(r.Create(r.ctx, p))
		return r.exact(name)["main"]
	}
	// One after the other: kube-scheduler may believe for minutes that a claim for which two pods came at once is being allocated.
	if a, b := member("a"), member("b"); len(a) != 1 || !slices.Equal(a, b) {
		t.Errorf("the pods have %q and %q, and the claim is of both", a, b)
	}
	r.must(r.Delete(r.ctx, "b")) // at its end the test looks for devices in two hands
}

// makeClaim creates a ResourceClaim with these requests, until the test ends.
func (r *harness) makeClaim(name string, requests ...resourceapi.DeviceRequest) {
	r.t.Helper()
	claims := r.Client().ResourceV1().ResourceClaims(metav1.NamespaceDefault)
	_, err := claims.Create(r.ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}, metav1.CreateOptions{})
	r.must(err)
	r.t.Cleanup(func() { _ = claims.Delete(context.WithoutCancel(r.ctx), name, metav1.DeleteOptions{}) })
}

// of returns a pod with these containers.
func of(containers ...corev1.Container) *corev1.Pod {
	p := node.Pod("", "", 0)
	p.Spec.Containers = containers
	return p
}

// using adds claims to a pod, each called by its own name.
func using(p *corev1.Pod, claims ...string) *corev1.Pod {
	for _, name := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: name, ResourceClaimName: &name})
	}
	return p
}

// limited returns a container that requests so many devices of resources: pairs of a name and a number.
func limited(name string, pairs ...any) corev1.Container {
	c := asks(name, 0, "report", "--then-sleep")
	c.Resources.Limits = corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		if r := pairs[i].(string); r != "" {
			c.Resources.Limits[corev1.ResourceName(r)] = resource.MustParse(fmt.Sprint(pairs[i+1]))
		}
	}
	return c
}

// uses returns a container that uses claims: CLAIM or CLAIM/REQUEST.
func uses(name string, claims ...string) corev1.Container {
	c := asks(name, 0, "report", "--then-sleep")
	for _, text := range claims {
		claim, request, _ := strings.Cut(text, "/")
		c.Resources.Claims = append(c.Resources.Claims, corev1.ResourceClaim{Name: claim, Request: request})
	}
	return c
}
