//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// Drivers of the tests, and their DeviceClasses.
const (
	nicDriver = "nic.vendor.example"
	cpuDriver = "cpu.vendor.example"
)

// A place is where a device is.
type place struct {
	numa int64
	root string // its PCIe root complex; empty: it has none
}

// pciDevices has sysfs show these PCI devices, by address, and no others until the test ends.
func (r *harness) pciDevices(all map[string]place) {
	r.t.Helper()
	const dir = "/sys/bus/pci/devices" // a kernel without PCI does not have it
	r.must(unix.Mount("devices", dir, "tmpfs", 0, ""))
	r.t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			r.t.Error(err)
		}
	})
	for address, at := range all {
		r.must(os.Symlink(filepath.Join("../../../devices", at.root, address), filepath.Join(dir, address)))
	}
}

// draDriver starts a second DRA driver on the node, which has these devices, and makes its DeviceClass.
func (r *harness) draDriver(name string, devices map[string]place) {
	r.t.Helper()
	argv := []string{r.tool(cluster.DRADriver, "dradriver"), "-driver", name, "-kubeconfig", r.NodeKubeconfig(), "-node", r.NodeName()}
	for device, at := range devices {
		argv = append(argv, strings.TrimSuffix(fmt.Sprintf("%s,%d,%s", device, at.numa, at.root), ","))
	}
	driver := cluster.NewProcess(name, filepath.Join(r.LogDir(), name+".log"), argv, nil)
	r.must(driver.Start(r.ctx))
	r.t.Cleanup(func() {
		r.removePods() // the kubelet needs the driver for that
		if err := driver.Stop(stopLimit); err != nil {
			r.t.Error(err)
		}
		of := metav1.ListOptions{FieldSelector: "spec.driver=" + name}
		if err := r.Client().ResourceV1().ResourceSlices().DeleteCollection(context.WithoutCancel(r.ctx), metav1.DeleteOptions{}, of); err != nil {
			r.t.Error(err)
		}
	})
	selector := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", name)}}
	_, err := r.Client().ResourceV1().DeviceClasses().Create(r.ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{selector}},
	}, metav1.CreateOptions{})
	r.must(err)
	r.until("the slices show the devices of "+name, func() bool {
		all := r.slicesOf(name)
		return len(all) == 1 && len(all[0].Spec.Devices) == len(devices)
	})
}

// documentedPair returns a pod with a GPU and another driver's devices, and the template of its claim, that a document shows.
func documentedPair(t *testing.T, document, section string) (template resourceapi.ResourceClaimTemplate, pod corev1.Pod) {
	t.Helper()
	for _, b := range openDocument(t, document).blocks(section) {
		one, other, both := strings.Cut(b.text, "---\n")
		if !both {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(one), &template); err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict([]byte(other), &pod); err != nil {
			t.Fatal(err)
		}
		return template, pod
	}
	t.Fatalf("%s shows no template of a claim with a pod", document)
	return template, pod
}

// claimTemplate creates a ResourceClaimTemplate, until the test ends.
func (r *harness) claimTemplate(template *resourceapi.ResourceClaimTemplate) {
	r.t.Helper()
	templates := r.Client().ResourceV1().ResourceClaimTemplates(metav1.NamespaceDefault)
	_, err := templates.Create(r.ctx, template, metav1.CreateOptions{})
	r.must(err)
	r.t.Cleanup(func() {
		if err := templates.Delete(context.WithoutCancel(r.ctx), template.Name, metav1.DeleteOptions{}); err != nil {
			r.t.Error(err)
		}
	})
}

// probing returns a document's pod with another name, and with the probe for its image.
func probing(pod corev1.Pod, name string) *corev1.Pod {
	p := pod.DeepCopy()
	p.Namespace, p.Name, p.Spec.TerminationGracePeriodSeconds = metav1.NamespaceDefault, name, new(int64(1))
	p.Spec.Containers[0].Image, p.Spec.Containers[0].Args = cluster.ProbeImage, []string{"report", "--then-sleep"}
	return p
}

// A claim for a GPU of an unmodified device plugin and a network card of another DRA driver, as docs/dra.md shows it: each pod has two
// devices at one place, and one for which there are no such two waits.
func TestDRA_DevicesOfTwoDrivers_AreAligned(t *testing.T) {
	gpus := map[string]place{
		"0000:10:00.0": {0, "pci0000:10"}, "0000:20:00.0": {0, "pci0000:20"}, "0000:90:00.0": {1, "pci0000:90"}, "0000:a0:00.0": {1, "pci0000:a0"},
	}
	cards := map[string]place{ // card-3 has a PCIe root of its own
		"card-0": {1, "pci0000:a0"}, "card-1": {0, "pci0000:10"}, "card-2": {1, "pci0000:90"}, "card-3": {0, "pci0000:30"},
	}
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.pciDevices(gpus)
	r.offered(gpu, len(gpus), func(p *plugintest.Plugin) {
		var all []*plugintest.Device
		for address, at := range gpus {
			all = append(all, plugintest.Dev(address, plugintest.Healthy, at.numa))
		}
		p.Set(all...)
	})
	r.draDriver(nicDriver, cards)
	template, pod := documentedPair(t, "dra.md", "Claims")

	create := func(name string) {
		t.Helper()
		r.must(r.Create(r.ctx, probing(pod, name)))
	}
	// pair returns the places of the GPU and of the network card that the pod's container has.
	pair := func(name string) (one, other place) {
		t.Helper()
		seen := r.running(name)
		id, card := seen.Env["DEVICES"], ""
		for path := range devices(seen) {
			if c := filepath.Base(path); strings.HasPrefix(c, "card-") {
				card += c
			}
		}
		one, known := gpus[id]
		other, also := cards[card]
		if !known || !also {
			t.Errorf("pod %s has the GPU %q and the network card %q", name, id, card)
		}
		t.Logf("pod %s has the GPU %s and the network card %s", name, id, card)
		return one, other
	}
	const root, numa = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
	constraint := template.Spec.Spec.Devices.Constraints[0].MatchAttribute
	if *constraint != root {
		t.Fatalf("the document's claim matches %s", *constraint)
	}
	r.claimTemplate(&template)
	for i := range 3 {
		create(fmt.Sprint("root-", i))
	}
	for i := range 3 {
		if one, other := pair(fmt.Sprint("root-", i)); one != other {
			t.Errorf("the GPU is at %v, and the network card at %v", one, other)
		}
	}
	create("root-3") // a GPU and a network card are left, at two PCIe roots
	r.unscheduled("root-3")
	r.run("apart", gpu, 1)
	r.must(r.Delete(r.ctx, "apart"))
	r.must(r.Delete(r.ctx, "root-1"))
	if one, other := pair("root-3"); one != other {
		t.Errorf("the GPU is at %v, and the network card at %v", one, other)
	}
	r.removePods()

	near := template.DeepCopy()
	near.Name = "near"
	*near.Spec.Spec.Devices.Constraints[0].MatchAttribute = numa
	r.claimTemplate(near)
	pod.Spec.ResourceClaims[0].ResourceClaimTemplateName = &near.Name
	for i := range 4 {
		create(fmt.Sprint("near-", i))
	}
	for i := range 4 {
		if one, other := pair(fmt.Sprint("near-", i)); one.numa != other.numa {
			t.Errorf("the GPU is at %v, and the network card at %v", one, other)
		}
	}
	create("near-4")
	r.unscheduled("near-4")
}

// A claim for a GPU of an unmodified device plugin and CPUs of another DRA driver, as docs/numa.md shows it: all are near one NUMA node. A pod for which there
// are no such devices stays pending with the scheduler's reason, while others start.
func TestDRA_CPUsOfAnotherDriver_AreNearTheDevice(t *testing.T) {
	gpus := map[string]int64{"gpu-0": 0, "gpu-1": 0, "gpu-2": 1}
	cpus := map[string]place{"cpu-0": {numa: 0}, "cpu-1": {numa: 1}, "cpu-2": {numa: 0}, "cpu-3": {numa: 1}}
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, len(gpus), func(p *plugintest.Plugin) {
		var all []*plugintest.Device
		for id, numa := range gpus {
			all = append(all, plugintest.Dev(id, plugintest.Healthy, numa))
		}
		p.Set(all...)
	})
	r.draDriver(cpuDriver, cpus)
	template, pod := documentedPair(t, "numa.md", "Through DRA")
	r.claimTemplate(&template)

	// near checks that a running pod has a GPU and two CPUs of one NUMA node, and returns the node.
	near := func(name string) int64 {
		t.Helper()
		seen := r.running(name)
		at, known := gpus[seen.Env["DEVICES"]]
		var own []string
		for path := range devices(seen) {
			cpu, is := cpus[filepath.Base(path)]
			if !is {
				continue
			}
			own = append(own, filepath.Base(path))
			if cpu.numa != at {
				t.Errorf("pod %s has %s near NUMA node %d, and its GPU is near %d", name, filepath.Base(path), cpu.numa, at)
			}
		}
		if !known || len(own) != 2 {
			t.Errorf("pod %s has the GPU %q and the CPUs %q", name, seen.Env["DEVICES"], own)
		}
		return at
	}

	r.must(r.Create(r.ctx, probing(pod, "train-0")))
	r.must(r.Create(r.ctx, probing(pod, "train-1")))
	first, second := near("train-0"), near("train-1")
	if first == second {
		t.Errorf("both pods are near NUMA node %d, which has two CPUs", first)
	}
	r.must(r.Create(r.ctx, probing(pod, "train-2"))) // a GPU is left near node 0, and no CPU
	r.unscheduled("train-2")
	waits := asked(r, func() (*corev1.Pod, error) {
		return r.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(r.ctx, "train-2", metav1.GetOptions{})
	})
	const reason = "0/1 nodes are available: 1 cannot allocate all claims."
	for _, c := range waits.Status.Conditions {
		if c.Type == corev1.PodScheduled && (!strings.HasPrefix(c.Message, reason) || !strings.Contains(openDocument(t, "numa.md").text, "    "+reason+"\n")) {
			t.Errorf("the scheduler says %q, and docs/numa.md is to show %q", c.Message, reason)
		}
	}
	r.run("other", gpu, 1) // takes that GPU
	gone := map[int64]string{first: "train-0", second: "train-1"}[0]
	r.must(r.Delete(r.ctx, gone))
	if at := near("train-2"); at != 0 {
		t.Errorf("pod train-2 is near NUMA node %d, on which another pod has the CPUs", at)
	}
}
