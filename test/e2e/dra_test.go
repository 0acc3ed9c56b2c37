//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/devmgrd/devmgrd/internal/dra"
	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

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

// The runtime says that it does not read the files of claims: it would start a container without its devices while devmgrd is away. So no claim
// is prepared, and the event names the setting.
func TestDRA_RuntimeDoesNotReadFiles_ClaimIsNotPrepared(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 1)
	r.must(r.Devmgrd.Stop(stopLimit))
	r.Devmgrd = r.Another("devmgrd", settings([]string{"--set", "dra.resources=" + gpu, "--set", "dra.cdiDir=/run/devmgrd/cdi"})...)
	r.must(r.Devmgrd.Start(r.ctx))
	r.must(r.WaitReady(r.soon(), func(status int, text string) bool {
		return status != http.StatusOK && strings.Contains(text, "dra.cdiDir")
	})) // before any claim
	r.must(r.Create(r.ctx, node.Pod("a", gpu, 1, "report", "--then-sleep")))
	r.told("a", "ClaimMismatch: the runtime looks for CDI specifications in /etc/cdi")
	r.says("status", "dra.cdiDir")
	r.restartedWith("--set", "dra.resources="+gpu)
	r.exact("a")
}

// A device that no pod may be assigned is tainted within seconds, by one write. A pod for which the scheduler has chosen it before waits.
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
		t.Logf("%s: shown after %s", what, took.Round(time.Millisecond)) // within the pause of the plugin's word: a few seconds at most, on a quiet machine
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
	for n := range 3 {
		p.SetHealth(other, plugintest.Unhealthy)
		r.until("it is unhealthy, or suspended", func() bool { return r.inState(gpu, "free") == 0 })
		p.SetHealth(other, plugintest.Healthy)
		if n < 2 {
			r.until("it is healthy", func() bool { return r.inState(gpu, "free") == 1 })
		}
	}
	r.until("the device is suspended", func() bool { return slices.Contains(r.sliced()[named(other)[0]], "devmgrd.io/suspended") })
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
	r.logs("dra.maxDevices")
	r.says("status", "dra.maxDevices")

	// A list that is empty for a moment, as some plugins send one at each start, says nothing of how many there are.
	r.briefly("the empty list", shortestWindow, func() (took time.Duration) {
		numbers, began := r.watchNumbers(gpu), time.Now()
		p.Set()
		r.until("devmgrd has the empty list", func() bool { return r.inState(gpu, "free") == 0 })
		<-time.After(time.Second) // the plugin takes that long
		p.Set(plugintest.Devices(4)...)
		r.until("devmgrd has all devices", func() bool { return r.inState(gpu, "free") == 3 })
		took = time.Since(began)
		r.must(r.WaitShown(r.soon(), gpu, 4))
		if shown := numbers(); took < shortestWindow {
			r.steadyNumbers(shown, 4)
		}
		return took
	})

	r.removePods()
	p.Set(plugintest.Devices(3)...)
	r.must(r.WaitShown(r.soon(), gpu, -1))
	r.until("the slices show the devices", func() bool { return len(r.sliced()) == 3 })
	r.run("b", gpu, 1)
	r.exact("b")
	p.Set(plugintest.Devices(4)...)
	r.must(r.WaitShown(r.soon(), gpu, 4))
	r.until("the slices show none", func() bool { return len(r.sliced()) == 0 })
	r.run("c", gpu, 3)
	r.exact("b")
}

// The control plane knows no taints, and the class names no extended resource, as where the API server knows none: claims are served, and other pods
// stay pending.
func TestDRA_FeaturesOff_ClaimsAreServed(t *testing.T) {
	r := startWith(t, cluster.Options{FeatureGates: "DRADeviceTaints=false,DRADeviceTaintRules=false"}, "--set", "dra.resources="+gpu)
	r.class(gpu)
	_, err := r.Client().ResourceV1().DeviceClasses().Patch(r.ctx, gpuClass, types.JSONPatchType,
		[]byte(`[{"op": "remove", "path": "/spec/extendedResourceName"}]`), metav1.PatchOptions{})
	r.must(err)
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
	r.restartedWith()
	if got := r.running("requests").Env["DEVICES"]; got != "dev-000000" {
		t.Errorf("the pod has %q", got)
	}
	r.exact("claims")
}

// An administrator's DeviceTaintRule with NoExecute evicts the pods that have the device, by whichever name they asked for it, and keeps further pods
// away until the rule is deleted. devmgrd has no part in it: it sees pods that end.
func TestDRA_DeviceTaintRule_EvictsPodsOfBothKinds(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	if cluster.KubernetesBefore("1.37") {
		t.Skip("DeviceTaintRules are on by default from Kubernetes 1.37")
	}
	r.class(gpu)
	r.offered(gpu, 3)
	r.claim("own", gpuClass, 1)
	r.must(r.Create(r.ctx, node.Pod("requests", gpu, 1, "report", "--then-sleep")))
	r.must(r.Create(r.ctx, claiming("claims", "own")))
	r.distinct("requests", "claims")
	r.run("stays", gpu, 1)
	rules := r.Client().ResourceV1().DeviceTaintRules()
	t.Cleanup(func() {
		_ = rules.DeleteCollection(context.WithoutCancel(r.ctx), metav1.DeleteOptions{}, metav1.ListOptions{})
	})
	for _, name := range []string{"requests", "claims"} {
		pod, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, name, metav1.GetOptions{})
		r.must(err)
		device := r.promised(pod, "main")[0]
		_, err = rules.Create(r.ctx, &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: new(dra.Driver), Device: &device},
				Taint:          resourceapi.DeviceTaint{Key: "example.com/maintenance", Effect: resourceapi.DeviceTaintEffectNoExecute},
			},
		}, metav1.CreateOptions{})
		r.must(err)
		r.until("pod "+name+" is evicted", func() bool {
			_, err := r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	}
	r.until("the devices are free", func() bool { return r.inState(gpu, "free") == 2 })
	r.must(r.Create(r.ctx, node.Pod("next", gpu, 1, "report", "--then-sleep")))
	r.unscheduled("next")
	r.must(rules.Delete(r.ctx, "requests", metav1.DeleteOptions{}))
	r.exact("next")
	r.exact("stays")
}
