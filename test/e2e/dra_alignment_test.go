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

// nicDriver is the name of the driver in test/tools/dradriver, and of its DeviceClass here.
const nicDriver = "nic.vendor.example"

// A place is where a device is.
type place struct {
	numa int64
	root string // its PCIe root complex
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

// nics starts a second DRA driver on the node, which has these network cards, and makes its DeviceClass.
func (r *harness) nics(cards map[string]place) {
	r.t.Helper()
	argv := []string{r.tool(cluster.DRADriver, "dradriver"), "-kubeconfig", r.NodeKubeconfig(), "-node", r.NodeName()}
	for name, at := range cards {
		argv = append(argv, fmt.Sprintf("%s,%d,%s", name, at.numa, at.root))
	}
	driver := cluster.NewProcess("dradriver", filepath.Join(r.LogDir(), "dradriver.log"), argv, nil)
	r.must(driver.Start(r.ctx))
	r.t.Cleanup(func() {
		r.removePods() // the kubelet needs the driver for that
		if err := driver.Stop(stopLimit); err != nil {
			r.t.Error(err)
		}
		of := metav1.ListOptions{FieldSelector: "spec.driver=" + nicDriver}
		if err := r.Client().ResourceV1().ResourceSlices().DeleteCollection(context.WithoutCancel(r.ctx), metav1.DeleteOptions{}, of); err != nil {
			r.t.Error(err)
		}
	})
	selector := resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", nicDriver)}}
	_, err := r.Client().ResourceV1().DeviceClasses().Create(r.ctx, &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: nicDriver}, Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{selector}},
	}, metav1.CreateOptions{})
	r.must(err)
	r.until("the slices show the network cards", func() bool {
		all := r.slicesOf(nicDriver)
		return len(all) == 1 && len(all[0].Spec.Devices) == len(cards)
	})
}

// documentedPair returns the pod with a GPU and a network card, and the template of its claim, that docs/dra.md shows.
func documentedPair(t *testing.T) (template resourceapi.ResourceClaimTemplate, pod corev1.Pod) {
	t.Helper()
	for _, b := range openDocument(t, "dra.md").blocks("Claims") {
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
	t.Fatal("docs/dra.md shows no template of a claim with a pod")
	return template, pod
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
	r.nics(cards)
	template, pod := documentedPair(t)
	templates := r.Client().ResourceV1().ResourceClaimTemplates(metav1.NamespaceDefault)

	create := func(name string) {
		t.Helper()
		p := pod.DeepCopy()
		p.Namespace, p.Name, p.Spec.TerminationGracePeriodSeconds = metav1.NamespaceDefault, name, new(int64(1))
		p.Spec.Containers[0].Image, p.Spec.Containers[0].Args = cluster.ProbeImage, []string{"report", "--then-sleep"}
		r.must(r.Create(r.ctx, p))
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
	applied := func(template *resourceapi.ResourceClaimTemplate) {
		t.Helper()
		_, err := templates.Create(r.ctx, template, metav1.CreateOptions{})
		r.must(err)
		t.Cleanup(func() {
			if err := templates.DeleteCollection(context.WithoutCancel(r.ctx), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Error(err)
			}
		})
	}

	const root, numa = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"
	constraint := template.Spec.Spec.Devices.Constraints[0].MatchAttribute
	if *constraint != root {
		t.Fatalf("the document's claim matches %s", *constraint)
	}
	applied(&template)
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
	applied(near)
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
