//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/cluster/images/report"
	"github.com/devmgrd/devmgrd/test/node"
	"github.com/devmgrd/devmgrd/test/plugintest"
)

// restarting creates a pod with one device that its kubelet starts again after a reboot.
func (r *harness) restarting(name, resource string) {
	r.t.Helper()
	pod := node.Pod(name, resource, 1, "report", "--then-sleep")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	r.must(r.Create(r.ctx, pod))
}

// runsAgain waits until a pod runs again after a reboot, and returns its report.
func (r *harness) runsAgain(name string) report.Report {
	r.t.Helper()
	r.must(r.WaitPod(r.soon(), "default", name, func(p *corev1.Pod) (bool, error) {
		if p.Status.Phase == corev1.PodFailed {
			return false, fmt.Errorf("pod %s has failed: %s", name, p.Status.Reason)
		}
		return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].RestartCount > 0 && p.Status.ContainerStatuses[0].Ready, nil
	}))
	return r.running(name)
}

// reboot cuts the power, and switches it on again. The plugins stay away.
func (r *harness) reboot(plugins ...*plugintest.Plugin) {
	r.t.Helper()
	for _, p := range plugins {
		p.Kill()
	}
	r.must(r.Devmgrd.Kill())
	r.must(r.PowerOff(r.ctx))
	r.must(os.RemoveAll(filepath.Dir(node.SocketDir)))
	r.must(r.PowerOn(r.ctx, func() error { return r.StartDevmgrd(r.ctx) }))
}

// The power fails. Everything is gone but what is on disk, and comes back one after the other, the plugin last. Pods wait
// for the plugin, are granted again what they had, and the Node's numbers never move.
func TestReboot_PluginReturnsLast_PodsWaitForIt(t *testing.T) {
	r := start(t)
	p := r.plugin(gpu, 3)
	before := map[string]string{}
	for _, name := range []string{"a", "b"} {
		r.restarting(name, gpu)
		before[name] = r.running(name).Env["DEVICES"]
	}
	numbers := r.watchNumbers(gpu)
	stuck := node.Pod("stuck", nic, 1) // its init container runs, and its restartPolicy is Never
	stuck.Spec.NodeName = r.NodeName()
	stuck.Spec.InitContainers = []corev1.Container{{Name: "init", Image: cluster.ProbeImage, Args: []string{"exit", "0"}}}
	r.must(r.Create(r.ctx, stuck))
	r.refused("stuck", "PluginMissing")

	r.reboot(p)
	r.must(r.Create(r.ctx, node.Pod("c", gpu, 1, "report", "--then-sleep")))
	for _, name := range []string{"a", "b", "c"} {
		r.refused(name, "PluginStale")
	}
	p.Serve()
	p.MustRegister()

	for _, name := range []string{"a", "b"} {
		if now := r.runsAgain(name).Env["DEVICES"]; now != before[name] || now == "" {
			t.Errorf("pod %s had %q and has %q", name, before[name], now)
		}
	}
	if c := r.running("c").Env["DEVICES"]; c == before["a"] || c == before["b"] {
		t.Errorf("the new pod has %q, and the others %q", c, before)
	}
	r.plugin(nic, 1)
	r.until("the pod that is not started again has no device", func() bool { return r.inState(nic, "free") == 1 })
	r.says("explain default/stuck", "ended", "its sandbox is gone and its restartPolicy is Never; delete the pod")
	for _, n := range numbers() {
		if n != 3 {
			t.Errorf("the Node showed %d meanwhile, want 3 all the time", n)
		}
	}
	if n := p.Calls(plugintest.Allocate); n != 5 {
		t.Errorf("Allocate was called %d times, want 5: for each pod, and again for those that had devices before", n)
	}
}

// What plugins make in Allocate is gone after a reboot: files, device nodes and definitions of CDI devices are on file
// systems in memory, and device nodes are numbered differently. No pod starts with what was granted before.
func TestReboot_GrantsAreGone_AreGrantedAgain(t *testing.T) {
	r := start(t)
	const dir = "/run/vendor"
	r.must(os.MkdirAll(dir, 0o755))
	boot := 0
	minors := func(id string) uint32 { // dev-000000 and dev-000001 change places at each boot
		if (id == "dev-000000") == (boot == 0) {
			return 11
		}
		return 3
	}
	grants := map[string]func(id string) (*plugintest.Answer, error){
		"file": func(string) (*plugintest.Answer, error) {
			path := filepath.Join(dir, "file")
			return &plugintest.Answer{Mounts: []*pluginapi.Mount{{ContainerPath: "/file", HostPath: path}}},
				os.WriteFile(path, fmt.Appendf(nil, "boot %d", boot), 0o644)
		},
		"cdi": func(id string) (*plugintest.Answer, error) {
			spec := fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":"vendor.example/cdi","devices":[{"name":%q,"containerEdits":{"env":["CDI=boot %d"]}}]}`, id, boot)
			if err := os.MkdirAll("/var/run/cdi", 0o755); err != nil {
				return nil, err
			}
			return &plugintest.Answer{CdiDevices: []*pluginapi.CDIDevice{{Name: "vendor.example/cdi=" + id}}},
				os.WriteFile("/var/run/cdi/vendor.json", []byte(spec), 0o644)
		},
		"node": func(id string) (*plugintest.Answer, error) {
			path := filepath.Join(dir, id)
			os.Remove(path)
			return &plugintest.Answer{Devices: []*pluginapi.DeviceSpec{{HostPath: path, ContainerPath: "/dev/vendor", Permissions: "rw"}}},
				unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minors(id))))
		},
		"path": func(id string) (*plugintest.Answer, error) { // the name of the node is another one
			path := filepath.Join(dir, fmt.Sprintf("path%d", minors(id)))
			os.Remove(path)
			return &plugintest.Answer{Devices: []*pluginapi.DeviceSpec{{HostPath: path, ContainerPath: "/dev/vendor", Permissions: "rw"}}},
				unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(1, minors(id))))
		},
	}
	pods := map[string]string{"file": "file", "cdi": "cdi", "node-0": "node", "node-1": "node", "path-0": "path", "path-1": "path"}
	if r.lacks(cluster.CDI) {
		delete(grants, "cdi")
		delete(pods, "cdi")
	}
	var plugins []*plugintest.Plugin
	for name, grant := range grants {
		p := r.plugin("vendor.example/"+name, 2, func(p *plugintest.Plugin) {
			p.OnAllocate = func(ctx context.Context, request *plugintest.AllocateRequest) (*plugintest.AllocateResponse, error) {
				a, err := grant(request.ContainerRequests[0].DevicesIds[0])
				if err != nil {
					return nil, err
				}
				a.Envs = map[string]string{"DEVICES": request.ContainerRequests[0].DevicesIds[0]}
				return plugintest.Grants(a)(ctx, request)
			}
		})
		plugins = append(plugins, p)
	}
	check := func(name string, got report.Report) {
		t.Helper()
		switch kind := pods[name]; kind {
		case "file":
			if m, ok := got.Mount("/file"); !ok {
				t.Errorf("pod %s lacks its file: %v", name, m)
			}
			if text, err := os.ReadFile(filepath.Join(dir, "file")); err != nil || string(text) != fmt.Sprint("boot ", boot) {
				t.Errorf("pod %s has the file %q, %v", name, text, err)
			}
		case "cdi":
			if want := fmt.Sprint("boot ", boot); got.Env["CDI"] != want {
				t.Errorf("pod %s has CDI=%q, want %q", name, got.Env["CDI"], want)
			}
		default:
			if d, _ := got.Device("/dev/vendor"); d.Minor != minors(got.Env["DEVICES"]) {
				t.Errorf("pod %s has %s with the number %d, want %d", name, got.Env["DEVICES"], d.Minor, minors(got.Env["DEVICES"]))
			}
		}
	}
	before := map[string]string{}
	for name, kind := range pods {
		r.restarting(name, "vendor.example/"+kind)
		got := r.running(name)
		check(name, got)
		before[name] = got.Env["DEVICES"]
	}

	r.reboot(plugins...)
	boot = 1
	r.must(os.RemoveAll(dir))
	r.must(os.MkdirAll(dir, 0o755))
	r.must(os.RemoveAll("/var/run/cdi"))
	for name := range pods {
		r.refused(name, "PluginStale")
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("devmgrd has made %v, %v", left, err)
	}
	for _, p := range plugins {
		p.Serve()
		p.MustRegister()
	}
	for name := range pods {
		got := r.runsAgain(name)
		check(name, got)
		if got.Env["DEVICES"] != before[name] {
			t.Errorf("pod %s had %s and has %s", name, before[name], got.Env["DEVICES"])
		}
	}
}
