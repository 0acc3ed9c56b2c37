//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// A pod that asks for a device runs with exactly what the plugin answered: nothing less and nothing more.
func TestInjection_PluginAnswer_IsInjectedExactly(t *testing.T) {
	r := start(t)
	readWrite := makeNode(t, "gpu0", 0o640, 1, 11)
	readOnly := makeNode(t, "gpu0-info", 0o666, 10, 237) // the loop devices' control node: no default rule allows it
	r.must(os.WriteFile("/run/vendor/driver", []byte("driver"), 0o644))
	r.must(os.Symlink(readWrite, "/run/vendor/link"))
	infoMay := "r"
	if r.lacks(cluster.Permissions) {
		p := r.plugin(nic, 1, func(p *plugintest.Plugin) {
			p.OnAllocate = plugintest.Grants(&plugintest.Answer{Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gpu0-info", HostPath: readOnly, Permissions: "r"}}})
		})
		r.must(r.Create(r.ctx, node.Pod("read-only", nic, 1, "report")))
		r.refused("read-only", "PluginError")
		r.told("read-only", `with the permissions "r" only`)
		r.must(r.Delete(r.ctx, "read-only"))
		p.Stop()
		infoMay = "rw"
	}
	r.plugin(gpu, 2, func(p *plugintest.Plugin) {
		p.OnAllocate = plugintest.Grants(&plugintest.Answer{
			Envs: map[string]string{"GPU": "0", "OWN": "the plugin's"},
			Mounts: []*pluginapi.Mount{
				{ContainerPath: "/usr/lib/driver", HostPath: "/run/vendor/driver", ReadOnly: true},
				{ContainerPath: "/var/cache/gpu", HostPath: "/run/vendor/made-for-us"},
			},
			Devices: []*pluginapi.DeviceSpec{
				{ContainerPath: "/dev/gpu0", HostPath: "/run/vendor/link", Permissions: "rw"},
				{ContainerPath: "/dev/gpu0-info", HostPath: readOnly, Permissions: infoMay},
			},
			Annotations: map[string]string{"vendor.example/slot": "3"},
		})
	})

	own := []corev1.EnvVar{{Name: "OWN", Value: "the pod's"}}
	plainPod := node.Pod("plain", "", 0, "report", "--then-sleep")
	plainPod.Spec.Containers[0].Env = own
	pod := node.Pod("pod", gpu, 1, "report", "--then-sleep")
	pod.Spec.Containers[0].Env = own
	r.must(r.Create(r.ctx, plainPod))
	r.must(r.Create(r.ctx, pod))
	plain, got := r.running("plain"), r.running("pod")

	if more := minus(got.Env, plain.Env); !slices.Equal(more, []string{"GPU"}) || got.Env["GPU"] != "0" || got.Env["OWN"] != "the pod's" {
		t.Errorf("variables %q more, environment %v", more, got.Env)
	}
	if more := minus(points(got), points(plain)); !slices.Equal(more, []string{"/usr/lib/driver", "/var/cache/gpu"}) {
		t.Errorf("mounts %q more", more)
	}
	if m, _ := got.Mount("/usr/lib/driver"); !slices.Contains(m.Options, "ro") {
		t.Errorf("the driver is mounted %v", m)
	}
	if more := minus(devices(got), devices(plain)); !slices.Equal(more, []string{"/dev/gpu0", "/dev/gpu0-info"}) {
		t.Errorf("device nodes %q more", more)
	}
	if d, _ := got.Device("/dev/gpu0"); d.Type != "c" || d.Major != 1 || d.Minor != 11 || d.Mode != 0o640 {
		t.Errorf("/dev/gpu0 is %+v", d)
	}
	annotations, err := r.Annotations(r.ctx, "pod")
	r.must(err)
	plainAnnotations, err := r.Annotations(r.ctx, "plain")
	r.must(err)
	if more := minus(annotations, plainAnnotations); !slices.Equal(more, []string{"devmgrd.io/assignment", "vendor.example/slot"}) ||
		annotations["vendor.example/slot"] != "3" || annotations["devmgrd.io/assignment"] != `{"vendor.example/gpu":["dev-000000"]}` {
		t.Errorf("annotations %q more: %v", more, annotations)
	}
	if less := append(minus(plain.Env, got.Env), minus(points(plain), points(got))...); len(less) != 0 {
		t.Errorf("the pod with the device lacks %q", less)
	}
	r.must(r.Delete(r.ctx, "pod"))

	if infoMay != "r" {
		return
	}
	// What may only be read can be opened to be read, and not to be written to.
	for access, want := range map[string]corev1.PodPhase{"r": corev1.PodSucceeded, "w": corev1.PodFailed} {
		r.must(r.Create(r.ctx, node.Pod("open-"+access, gpu, 1, "open", "/dev/gpu0-info", access)))
		if _, err := r.WaitPhase(r.soon(), "open-"+access, want); err != nil {
			t.Errorf("opening for %q: %v", access, err)
		}
	}
}

// A device that is no longer on the host is a refusal with that reason, and the container starts once it is back.
func TestInjection_HostDeviceMissing_ContainerWaits(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1, func(p *plugintest.Plugin) {
		p.OnAllocate = plugintest.Grants(&plugintest.Answer{
			Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gpu0", HostPath: "/run/vendor/late", Permissions: "rw"}},
		})
	})
	r.must(r.Create(r.ctx, node.Pod("a", gpu, 1, "report", "--then-sleep")))
	r.refused("a", "HostDeviceMissing")
	makeNode(t, "late", 0o666, 1, 3)
	r.running("a")
}

// A container's answer is a secret of the plugin's and the pod's: the log names devices, not environments.
func TestInjection_Environment_IsNotLogged(t *testing.T) {
	r := start(t)
	r.plugin(gpu, 1, func(p *plugintest.Plugin) {
		p.OnAllocate = func(context.Context, *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
			return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{{Envs: map[string]string{"TOKEN": "s3cret"}}}}, nil
		}
	})
	if got := r.run("a", gpu, 1); got.Env["TOKEN"] != "s3cret" {
		t.Errorf("TOKEN is %q", got.Env["TOKEN"])
	}
	log, err := os.ReadFile(r.Devmgrd.LogPath())
	r.must(err)
	if strings.Contains(string(log), "s3cret") {
		t.Error("the log holds a plugin's environment")
	}
}

// Some plugins make what they grant while they are asked for it: a device node, and a file that describes CDI devices. A
// container has both, of the first pod and of a later one for which the same file is written again.
func TestInjection_GrantMadeInAllocate_IsInjected(t *testing.T) {
	const specFile = "/var/run/cdi/vendor-made.json"
	r := start(t)
	byCDI := !r.lacks(cluster.CDI)
	t.Cleanup(func() { os.RemoveAll(vendor); os.Remove(specFile) })
	r.plugin(gpu, 2, func(p *plugintest.Plugin) {
		p.OnAllocate = func(_ context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
			id := request.ContainerRequests[0].DevicesIds[0]
			plain, described := filepath.Join(vendor, id), filepath.Join(vendor, id+"-cdi")
			if err := errors.Join(
				os.MkdirAll(vendor, 0o755),
				unix.Mknod(plain, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 237))),
				unix.Mknod(described, unix.S_IFCHR|0o600, int(unix.Mkdev(10, 229))),
				describe(specFile),
			); err != nil {
				return nil, err
			}
			answer := &plugintest.Answer{Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/plain", HostPath: plain, Permissions: "rw"}}}
			if byCDI {
				answer.CdiDevices = []*pluginapi.CDIDevice{{Name: "vendor.example/made=" + id}}
			}
			return &plugintest.AllocateResponse{ContainerResponses: []*plugintest.Answer{answer}}, nil
		}
	})
	for i, name := range []string{"a", "b"} {
		got := r.run(name, gpu, 1)
		if d, _ := got.Device("/dev/plain"); d.Type != "c" || d.Major != 10 || d.Minor != 237 || d.Mode != 0o600 {
			t.Errorf("%s: /dev/plain is %+v", name, d)
		}
		if !byCDI {
			continue
		}
		if want := fmt.Sprintf("dev-%06d", i); got.Env["MADE"] != want {
			t.Errorf("%s: MADE is %q, want %q", name, got.Env["MADE"], want)
		}
		if d, _ := got.Device("/dev/by-cdi"); d.Type != "c" || d.Major != 10 || d.Minor != 229 {
			t.Errorf("%s: /dev/by-cdi is %+v", name, d)
		}
	}
}

// describe writes a CDI specification of all devices that the plugin has made so far.
func describe(specFile string) error {
	made, err := filepath.Glob(filepath.Join(vendor, "*-cdi"))
	if err != nil {
		return err
	}
	var all []string
	for _, path := range made {
		id := strings.TrimSuffix(filepath.Base(path), "-cdi")
		all = append(all, fmt.Sprintf(`{"name": %q, "containerEdits": {"env": ["MADE=%s"], "deviceNodes": [{"path": "/dev/by-cdi", "hostPath": %q}]}}`, id, id, path))
	}
	text := fmt.Sprintf(`{"cdiVersion": "0.6.0", "kind": "vendor.example/made", "devices": [%s]}`, strings.Join(all, ","))
	return errors.Join(
		os.MkdirAll(filepath.Dir(specFile), 0o755), os.WriteFile(specFile+".new", []byte(text), 0o644), os.Rename(specFile+".new", specFile),
	)
}
