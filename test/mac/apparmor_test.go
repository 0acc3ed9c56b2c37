//go:build e2e

package mac

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/devmgrd/devmgrd/internal/plugintest"
	"github.com/devmgrd/devmgrd/test/cluster"
)

const confined = "devmgrd (enforce)"

func granted(ids []string) *plugintest.Answer {
	return &plugintest.Answer{
		Envs: map[string]string{"DEVICES": strings.Join(ids, ",")},
		Mounts: []*pluginapi.Mount{
			{ContainerPath: "/made", HostPath: "/srv/vendor/made"},
			{ContainerPath: "/there", HostPath: "/usr/share/doc"},
		},
		Devices: []*pluginapi.DeviceSpec{
			{ContainerPath: "/dev/null0", HostPath: "/dev/null", Permissions: "rw"},
			{ContainerPath: "/dev/vendor", HostPath: "/dev/vendor", Permissions: "rw"},
		},
		CdiDevices: []*pluginapi.CDIDevice{{Name: "vendor.example/gpu=0"}},
	}
}

// TestAppArmor_PackagedProfile_AllowsTheServiceAndDeniesTheRest follows the package on a machine that enforces AppArmor.
func TestAppArmor_PackagedProfile_AllowsTheServiceAndDeniesTheRest(t *testing.T) {
	if err := os.WriteFile("/proc/sys/kernel/printk_ratelimit", []byte("0\n"), 0o644); err != nil { // no denial is left out
		t.Fatal(err)
	}
	log := openLog(t)
	server, runtime := apiServer(t), runtime(t)
	kubelet(t)
	put(t, "/etc/systemd/system/devmgrd.service.d/test.conf", "[Service]\nEnvironment=DEVMGRD_PODRESOURCES_TAKEOVER=true DEVMGRD_LOG_LEVEL=debug\n")

	packages, err := filepath.Glob(payload + "/devmgrd_*.deb")
	if err != nil || len(packages) != 1 {
		t.Fatalf("packages: %q, %v", packages, err)
	}
	types(t, "dpkg", "--install", packages[0])
	loaded := types(t, "cat", "/sys/kernel/security/apparmor/profiles")
	if !strings.Contains(loaded, confined+"\n") {
		t.Fatalf("the installation has not loaded the profile:\n%s", loaded)
	}
	types(t, "systemctl", "enable", "--now", "devmgrd.socket", "devmgrd.service")
	isConfined(t)

	gpu := plugin(t)
	server.Put(pod())
	until(t, "the Node shows four devices", func() bool {
		shown := server.Node(cluster.NodeName).Status.Capacity[resourceName]
		return shown.Value() == 4
	})
	created := create(t, runtime)
	isGranted(t, created)
	commands(t)

	types(t, "systemctl", "restart", "devmgrd.service")
	isConfined(t)
	until(t, "the plugin is dialled after the restart", func() bool { return strings.Contains(types(t, "devmgrd", "plugins"), "serving") })
	isGranted(t, create(t, runtime))
	gpu.Stop()
	server.Delete("namespaces/default/pods/job")
	until(t, "the pod's devices are released", func() bool { return !strings.Contains(types(t, "devmgrd", "assignments"), "default/job") })
	if denied := log.denied(t); len(denied) > 0 {
		t.Errorf("AppArmor denied what devmgrd does:\n%s", strings.Join(denied, "\n"))
	}

	deniesTheRest(t)
	if denied := log.denied(t); len(denied) < 10 {
		t.Errorf("the log of the kernel shows %d denials, want 10 at least: the test above has read too little of it:\n%s", len(denied), strings.Join(denied, "\n"))
	}

	t.Log("stopping the units")
	types(t, "systemctl", "stop", "devmgrd.socket", "devmgrd.service")
	t.Log("purging the package")
	types(t, "dpkg", "--purge", "devmgrd")
	if loaded := types(t, "cat", "/sys/kernel/security/apparmor/profiles"); strings.Contains(loaded, confined) {
		t.Error("the purge has left the profile loaded")
	}
	if _, err := os.Lstat("/etc/apparmor.d/devmgrd"); err == nil {
		t.Error("the purge has left /etc/apparmor.d/devmgrd")
	}
}

// isConfined looks at the label of the process that runs.
func isConfined(t *testing.T) {
	t.Helper()
	pid := strings.TrimSpace(types(t, "systemctl", "show", "--value", "--property=MainPID", "devmgrd.service"))
	label, err := os.ReadFile("/proc/" + pid + "/attr/current")
	if err != nil || strings.TrimSpace(string(label)) != confined {
		t.Fatalf("devmgrd runs as %q, %v, want %q", label, err, confined)
	}
}

// create has the runtime create the pod's container, as often as the kubelet would.
func create(t *testing.T, r *adaptation.Adaptation) *api.ContainerAdjustment {
	t.Helper()
	sandbox := &api.PodSandbox{Id: "s", Uid: string(pod().UID), Namespace: "default", Name: "job", Annotations: map[string]string{"kubernetes.io/config.source": "api"}}
	var adjust *api.ContainerAdjustment
	until(t, "the container is created with its devices", func() bool {
		response, err := r.CreateContainer(t.Context(), &adaptation.CreateContainerRequest{Pod: sandbox, Container: &api.Container{Id: "c", PodSandboxId: "s", Name: "main"}})
		if err != nil || len(response.GetAdjust().GetEnv()) == 0 {
			t.Logf("CreateContainer: %v, %v", response, err)
			return false
		}
		adjust = response.Adjust
		return true
	})
	_, err := r.StopContainer(t.Context(), &adaptation.StopContainerRequest{Pod: sandbox, Container: &api.Container{Id: "c", PodSandboxId: "s", Name: "main"}})
	if err != nil {
		t.Fatal(err)
	}
	return adjust
}

// isGranted wants what the plugin has granted, which devmgrd can give only if it has seen it on the host.
func isGranted(t *testing.T, a *api.ContainerAdjustment) {
	t.Helper()
	var nodes []string
	for _, d := range a.GetLinux().GetDevices() {
		nodes = append(nodes, d.Path)
	}
	if got := strings.Join(nodes, " "); got != "/dev/null0 /dev/vendor/gpu0" && got != "/dev/vendor/gpu0 /dev/null0" {
		t.Errorf("the container gets the device nodes %q", got)
	}
	if len(a.GetMounts()) != 2 || len(a.GetCDIDevices()) != 1 {
		t.Errorf("the container gets the mounts %v and the CDI devices %v", a.GetMounts(), a.GetCDIDevices())
	}
	if info, err := os.Stat("/srv/vendor/made"); err != nil || !info.IsDir() {
		t.Errorf("the missing mount source: %v", err)
	}
}

// commands asks all that operators and their tools ask.
func commands(t *testing.T) {
	t.Helper()
	for _, words := range []string{
		"status", "plugins", "devices", "assignments", "explain default/job", "history", "check",
		"cordon " + resourceName + "/dev-000003", "uncordon " + resourceName + "/dev-000003",
		"store backup /root/state.db",
	} {
		out, err := exec.CommandContext(t.Context(), "devmgrd", strings.Fields(words)...).CombinedOutput()
		if err != nil {
			t.Logf("devmgrd %s: %v\n%s", words, err, out)
		}
		if err != nil && !strings.HasPrefix(words, "check") { // the machine has no containerd
			t.Errorf("devmgrd %s: %v", words, err)
		}
	}
	for _, page := range []string{"/metrics", "/readyz", "/"} {
		response, err := http.Get("http://127.0.0.1:9464" + page)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v\n%.2000s", page, response.Status, err, text)
		}
		if page == "/metrics" && !strings.Contains(string(text), "process_open_fds") {
			t.Error("the metrics of the process are missing")
		}
	}
}

// deniesTheRest runs the probe in the place of devmgrd, without the profile and with it.
func deniesTheRest(t *testing.T) {
	t.Helper()
	put(t, "/root/.ssh/id_probe", "secret")
	if err := os.MkdirAll("/root/probe.d", 0o755); err != nil {
		t.Fatal(err)
	}
	victim := exec.CommandContext(t.Context(), "sleep", "infinity")
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
	probe := fmt.Sprintf("mount --bind %s/probe /usr/bin/devmgrd && mount --bind /dev/null /proc/sys/kernel/core_pattern; %%s /usr/bin/devmgrd %d", payload, victim.Process.Pid)
	run := func(prefix string) map[string]string {
		results := map[string]string{}
		for line := range strings.Lines(types(t, "unshare", "--mount", "sh", "-c", fmt.Sprintf(probe, prefix))) {
			name, result, _ := strings.Cut(strings.TrimSpace(line), " ")
			results[name] = result
		}
		return results
	}
	free, under := run("exec"), run("exec aa-exec --profile=devmgrd --")
	if len(under) != len(free) || len(free) < 20 {
		t.Errorf("without the profile %d results, with it %d", len(free), len(under))
	}
	for name, result := range under {
		t.Logf("%s: without the profile %q, with it %q", name, free[name], result)
		if strings.HasPrefix(name, "allowed-") {
			if result != "ok" {
				t.Errorf("%s: %s, want ok", name, result)
			}
			continue
		}
		if free[name] != "ok" {
			t.Errorf("%s fails without the profile too, so it shows nothing: %s", name, free[name])
		}
		if !strings.Contains(result, unix.EACCES.Error()) && !strings.Contains(result, unix.EPERM.Error()) {
			t.Errorf("%s: %s, want that the profile denies it", name, result)
		}
	}
}

// A kernelLog is what the kernel has logged since it was opened.
type kernelLog struct{ file *os.File }

func openLog(t *testing.T) *kernelLog {
	t.Helper()
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "/dev/kmsg")
	t.Cleanup(func() { file.Close() })
	return &kernelLog{file}
}

// denied returns the denials of the profile since the last call.
func (l *kernelLog) denied(t *testing.T) []string {
	t.Helper()
	var all []string
	record := make([]byte, 8192)
	for {
		n, err := unix.Read(int(l.file.Fd()), record)
		if err == unix.EAGAIN {
			return all
		}
		if err == unix.EPIPE { // overwritten before it was read
			t.Error("records of the kernel's log are lost")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if line := string(record[:n]); strings.Contains(line, `apparmor="DENIED"`) && strings.Contains(line, `profile="devmgrd"`) {
			all = append(all, strings.TrimSpace(line))
		}
	}
}
