//go:build e2e

package mainjob

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/plugintest"
)

const cdiSpecification = `{"cdiVersion": "0.5.0", "kind": "vendor.example/gpu", "devices": [{"name": "zero", "containerEdits": {
	"env": ["FROM_CDI=yes"], "deviceNodes": [{"path": "/dev/cdi0", "type": "c", "major": 1, "minor": 5}]}}]}`

// All that a plugin can grant is in the container: variables, mounts, device nodes, annotations and CDI devices; and a container of
// another pod has none of it. A device node that has left the host keeps the container from starting until it is back.
func TestGrant_EachPart_IsInTheContainer(t *testing.T) {
	h := start(t)
	const host = "/run/vendor"
	h.must(os.MkdirAll(host, 0o755))
	t.Cleanup(func() { os.RemoveAll(host) })
	gpu0 := filepath.Join(host, "gpu0")
	h.must(unix.Mknod(gpu0, unix.S_IFCHR|0o640, int(unix.Mkdev(1, 11))))
	h.must(os.WriteFile(filepath.Join(host, "driver"), []byte("driver"), 0o644))
	h.must(os.MkdirAll("/var/run/cdi", 0o755))
	specification := "/var/run/cdi/vendor.json"
	h.must(os.WriteFile(specification, []byte(cdiSpecification), 0o644))
	t.Cleanup(func() { os.Remove(specification) })
	h.serve(gpu, 2, func(p *plugintest.Plugin) {
		p.OnAllocate = plugintest.Grants(&plugintest.Answer{
			Envs:        map[string]string{"GPU": "0", "OWN": "the plugin's"},
			Mounts:      []*pluginapi.Mount{{ContainerPath: "/usr/lib/driver", HostPath: filepath.Join(host, "driver"), ReadOnly: true}},
			Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gpu0", HostPath: gpu0, Permissions: "rw"}},
			Annotations: map[string]string{"vendor.example/slot": "3"},
			CdiDevices:  []*pluginapi.CDIDevice{{Name: "vendor.example/gpu=zero"}},
		})
	})

	p := h.pod("with", gpu, 1)
	got, plain := p.starts(), h.pod("without", "", 0).starts()
	if got.Env["GPU"] != "0" || got.Env["FROM_CDI"] != "yes" || plain.Env["GPU"] != "" || plain.Env["FROM_CDI"] != "" {
		t.Errorf("variables %v; without a device %v", got.Env, plain.Env)
	}
	if m, ok := got.Mount("/usr/lib/driver"); !ok || !slices.Contains(m.Options, "ro") {
		t.Errorf("the driver is mounted %v, %t", m, ok)
	}
	for path, minor := range map[string]uint32{"/dev/gpu0": 11, "/dev/cdi0": 5} {
		if d, ok := got.Device(path); !ok || d.Type != "c" || d.Major != 1 || d.Minor != minor {
			t.Errorf("%s is %+v, %t", path, d, ok)
		}
		if d, ok := plain.Device(path); ok {
			t.Errorf("a container without a device has %+v", d)
		}
	}
	if d, _ := got.Device("/dev/gpu0"); d.Mode != 0o640 {
		t.Errorf("/dev/gpu0 has the mode %o", d.Mode)
	}
	c, err := h.Containers.Container(h.ctx, p.id)
	h.must(err)
	if c.Annotations["vendor.example/slot"] != "3" || c.Annotations["devmgrd.io/assignment"] != `{"vendor.example/gpu":["dev-000000"]}` {
		t.Errorf("annotations %v", c.Annotations)
	}
	h.listed(map[string][]string{"with": {"dev-000000"}})

	h.must(os.Rename(gpu0, gpu0+".gone"))
	h.must(p.RemoveContainer(h.ctx, p.id))
	p.refused("HostDeviceMissing")
	if err := p.try(); err == nil || !strings.Contains(err.Error(), gpu0) {
		t.Errorf("the refusal does not name %s: %v", gpu0, err)
	}
	h.must(os.Rename(gpu0+".gone", gpu0))
	if _, ok := p.starts().Device("/dev/gpu0"); !ok {
		t.Error("the container runs without its device node")
	}
}
