package dra

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

const gpu device.ResourceName = "a.example/gpu"

// host makes a sysfs with some PCI devices and a procfs with a GPU.
func host(t *testing.T) (sysfs, procfs string) {
	sysfs, procfs = t.TempDir(), t.TempDir()
	for address, at := range map[string]string{
		"0000:3b:00.0": "pci0000:3a/0000:3a:00.0",
		"0000:5e:00.1": "pci0000:5d",
		"0000:01:00.0": "platform/soc", // not below a root complex
	} {
		make := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		make(os.MkdirAll(filepath.Join(sysfs, "devices", at, address), 0o755))
		make(os.MkdirAll(filepath.Join(sysfs, "bus/pci/devices"), 0o755))
		make(os.Symlink(filepath.Join("../../../devices", at, address), filepath.Join(sysfs, "bus/pci/devices", address)))
	}
	addGPU(t, procfs, "0000:3b:00.0", "GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b")
	return sysfs, procfs
}

func addGPU(t *testing.T, procfs, address, uuid string) {
	dir := filepath.Join(procfs, "driver/nvidia/gpus", address)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text := "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 10\nGPU UUID: \t " + uuid + "\nBus Location: \t " + address + "\n"
	if err := os.WriteFile(filepath.Join(dir, "information"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// text returns attributes as name=value.
func text(all attributes) map[string]string {
	got := map[string]string{}
	for name, value := range all {
		switch {
		case value.StringValue != nil:
			got[string(name)] = *value.StringValue
		case value.IntValue != nil:
			got[string(name)] = fmt.Sprint(*value.IntValue)
		}
	}
	return got
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	sysfs, procfs := host(t)
	long := strings.Repeat("x", 65)
	for _, c := range []struct {
		name     string
		resource device.ResourceName
		device   device.Device
		want     map[string]string // besides the resource, the ID and its hash, or other than these
	}{
		{name: "plain", device: device.Device{ID: "gpu-3"}},
		{name: "one NUMA node", device: device.Device{ID: "a", NUMA: []int{1}}, want: map[string]string{"numaNode": "1", "resource.kubernetes.io/numaNode": "1"}},
		{name: "two NUMA nodes", device: device.Device{ID: "a", NUMA: []int{0, 1}}},
		{name: "a long ID", device: device.Device{ID: device.ID(long)}, want: map[string]string{"id": strings.Repeat("x", 47) + "-" + digits(long, 16)}},
		{name: "64 bytes", device: device.Device{ID: device.ID(long[:64])}},
		{name: "no UTF-8", device: device.Device{ID: "a\xff"}, want: map[string]string{"id": "a?-" + digits("a\xff", 16)}},
		{name: "a long ID with runes", device: device.Device{ID: device.ID(strings.Repeat("ä", 33))}, want: map[string]string{"id": strings.Repeat("ä", 23) + "-" + digits(strings.Repeat("ä", 33), 16)}},
		{name: "a long resource", resource: device.ResourceName("a.example/" + long[:63]), device: device.Device{ID: "a"}, want: map[string]string{"resource": "a.example/" + long[:37] + "-" + digits("a.example/"+long[:63], 16)}},
		{name: "PCI", device: device.Device{ID: "0000:3b:00.0"}, want: map[string]string{"resource.kubernetes.io/pciBusID": "0000:3b:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:3a"}},
		{name: "PCI without domain", device: device.Device{ID: "5e:00.1"}, want: map[string]string{"resource.kubernetes.io/pciBusID": "0000:5e:00.1", "resource.kubernetes.io/pcieRoot": "pci0000:5d"}},
		{name: "PCI as NVIDIA's tools write it", device: device.Device{ID: "00000000:3B:00.0"}, want: map[string]string{"resource.kubernetes.io/pciBusID": "0000:3b:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:3a"}},
		{name: "PCI without root complex", device: device.Device{ID: "0000:01:00.0"}, want: map[string]string{"resource.kubernetes.io/pciBusID": "0000:01:00.0"}},
		{name: "PCI that is not there", device: device.Device{ID: "0000:ff:00.0"}},
		{name: "a path", device: device.Device{ID: "../0000:3b:00.0"}},
		{name: "GPU", device: device.Device{ID: "GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b"}, want: map[string]string{"resource.kubernetes.io/pciBusID": "0000:3b:00.0", "resource.kubernetes.io/pcieRoot": "pci0000:3a"}},
		{name: "another GPU", device: device.Device{ID: "GPU-0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := c.resource
			if r == "" {
				r = gpu
			}
			d := device.DeviceStatus{Resource: r, Device: c.device, Listed: true}
			want := map[string]string{"resource": string(r), "id": string(c.device.ID), "idHash": digits(string(c.device.ID), 16)}
			maps.Copy(want, c.want)
			s := newDescriber(sysfs, procfs)
			s.relist(r, []device.DeviceStatus{d}, false)
			if got := text(s.of(d)); !maps.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

// The expression of a DeviceClass is an error for a device that lacks the attribute, and kube-scheduler then places the pod on no node: the
// class selects by what each device has.
func TestClass_LongName_SelectsItsDevices(t *testing.T) {
	t.Parallel()
	for _, r := range []device.ResourceName{gpu, "accelerators.very-long-division-name.vendor.example/inference-accelerator-gen2"} {
		s := newDescriber(t.TempDir(), t.TempDir())
		d := device.DeviceStatus{Resource: r, Device: device.Device{ID: "d0", Healthy: true}, Listed: true}
		s.relist(r, []device.DeviceStatus{d}, true)
		class, err := Class(r)
		if has := text(s.of(d))["resource"]; err != nil || len(has) > maxValue || !strings.Contains(strings.Join(strings.Fields(string(class)), " "), fmt.Sprintf(`device.attributes["devmgrd.io"].resource == "%s"`, has)) {
			t.Errorf("the devices have the attribute %q, and the class is\n%s%v", has, class, err)
		}
	}
}

// Files are read for new devices, and for all when the plugin is back: a driver may have been loaded meanwhile.
func TestAttributes_AreReadAgain(t *testing.T) {
	t.Parallel()
	sysfs, procfs := host(t)
	d := device.DeviceStatus{Resource: gpu, Device: device.Device{ID: "GPU-1"}, Listed: true}
	s := newDescriber(sysfs, procfs)
	look := func(d device.DeviceStatus, want int) {
		t.Helper()
		if got := s.of(d); len(got) != want {
			t.Errorf("got %v", text(got))
		}
	}
	s.relist(gpu, []device.DeviceStatus{d}, true)
	look(d, 3)
	addGPU(t, procfs, "0000:5e:00.1", "GPU-1")
	look(d, 3)
	s.relist(gpu, []device.DeviceStatus{d}, false)
	look(d, 3)
	s.relist(gpu, []device.DeviceStatus{d}, true)
	look(d, 5)
	d.NUMA = []int{0}
	look(d, 7)
	s.relist(gpu, nil, false)
	if len(s.known[gpu]) > 0 {
		t.Error("a device that is gone is known")
	}
	s.forget(gpu)
	if len(s.known) > 0 {
		t.Error("a resource that is gone is known")
	}
}
