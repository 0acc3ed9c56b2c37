//go:build e2e

package boot

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/test/cluster"
	"github.com/devmgrd/devmgrd/test/node"
)

// label is what the security module calls the process of devmgrd.
func label() string {
	if *onSELinux {
		return "system_u:system_r:devmgrd_t:s0"
	}
	return "devmgrd (enforce)"
}

// installModule installs SELinux's module as docs/install.md says.
func (h *harness) installModule() {
	h.t.Helper()
	h.types(`cp /usr/share/devmgrd/selinux/devmgrd.* /root/ && cd /root
make -f /usr/share/selinux/devel/Makefile NAME=default devmgrd.pp
semodule -i devmgrd.pp
for path in /usr/bin/devmgrd /etc/devmgrd /var/lib/devmgrd /run/devmgrd; do if [ -e $path ]; then restorecon -R $path; fi; done`)
}

// denials are those that have been told of.
var denials = map[string]bool{}

// denied returns what the security module has kept devmgrd from since the last call.
func (h *harness) denied() (lines []string) {
	h.t.Helper()
	words := `apparmor="DENIED".* profile="devmgrd"`
	if *onSELinux {
		words = "avc:  denied .*devmgrd_(t|openers_t|runtime_t|var_lib_t|conf_t|exec_t):"
	}
	for line := range strings.Lines(h.types("dmesg | { grep -E '" + words + "' || true; }")) {
		if line = strings.TrimSpace(line); !denials[line] {
			lines = append(lines, line)
		}
		denials[line] = true
	}
	return lines
}

func (h *harness) nothingIsDenied() {
	h.t.Helper()
	for _, line := range h.denied() {
		h.t.Errorf("denied: %s", line)
	}
}

// The node's security module enforces: the unmodified sample plugin registers from its pod, pods get its devices and those of a plugin on
// the host, a container without privileges reads PodResources, and commands and pages answer, also when devmgrd has the kubelet's socket.
func TestConfined_Enforcing_PluginsPodsAndReadersWork(t *testing.T) {
	h := start(t)
	h.types("echo 0 > /proc/sys/kernel/printk_ratelimit; modprobe tun") // no denial is left out; a container may not have modules loaded
	h.must(h.machine.Put(h.ctx, map[string]string{
		"/etc/cdi/vendor.json": `{"cdiVersion": "0.6.0", "kind": "vendor.example/tool", "devices": [{"name": "0", "containerEdits": {"env": ["TOOL=yes"]}}]}`,
	}))
	h.service("gpu0=/dev/net/tun:rw", "tool0=vendor.example/tool=0:cdi")
	h.isConfined()
	set, err := h.SamplePlugin()
	h.must(err)
	h.must(h.Apply(h.ctx, set))
	h.cleanup(func() {
		h.must(h.Client().AppsV1().DaemonSets(set.Namespace).Delete(h.ctx, set.Name, metav1.DeleteOptions{}))
	})
	h.must(h.WaitShown(h.soon(), node.SampleResource, 2))
	h.createsFor("sample", node.SampleResource, 1) // devmgrd makes the source of its mount
	h.running("sample")

	got := h.runs("a", 2, "/dev/gpu0")
	if opened(got, "/dev/gpu0") != "r rw w" || got.Env["TOOL"] != "yes" {
		t.Errorf("the container opens its device for %q, and has the CDI device's variable %q", opened(got, "/dev/gpu0"), got.Env["TOOL"])
	}
	h.containersAreConfined()
	h.reads("gpu0")
	h.commands("gpu0")

	h.must(h.machine.Put(h.ctx, map[string]string{
		"/etc/systemd/system/devmgrd.service.d/test.conf": "[Service]\nEnvironment=DEVMGRD_PODRESOURCES_TAKEOVER=true DEVMGRD_LOG_LEVEL=debug\n",
	}))
	restart := func() { h.types("systemctl daemon-reload; systemctl restart devmgrd"); h.ready() }
	restart()
	h.cleanup(func() {
		h.types("rm -r /etc/systemd/system/devmgrd.service.d /etc/cdi/vendor.json")
		restart()
	})
	h.isConfined()
	h.commands("gpu0")
}

// isConfined looks at what really runs.
func (h *harness) isConfined() {
	h.t.Helper()
	if got := h.types("tr -d '\\0' < /proc/$(systemctl show --value --property=MainPID devmgrd)/attr/current"); got != label() {
		h.t.Errorf("devmgrd runs as %s, want %s", got, label())
	}
	if !*onSELinux {
		return
	}
	if got := h.types("getenforce"); got != "Enforcing" {
		h.t.Errorf("SELinux is %s", got)
	}
	if got := h.types("cat /proc/$(systemctl show --value --property=MainPID containerd)/attr/current"); !strings.Contains(got, ":dockerd_t:") {
		h.t.Errorf("containerd runs as %s", got)
	}
	h.nothingIsDenied()
	h.types("runcon system_u:system_r:devmgrd_t:s0 /bin/true || true") // only systemd may start devmgrd's domain
	if len(h.denied()) == 0 {
		h.t.Error("the kernel's log shows no denial of what SELinux has just denied: the tests read too little of it")
	}
}

// containersAreConfined looks at the container of pod a.
func (h *harness) containersAreConfined() {
	h.t.Helper()
	if !*onSELinux {
		return // the kubelet asks for a profile only where the pod does
	}
	_, id, _ := strings.Cut(h.container("a").ContainerID, "://")
	if domain := h.types("cat /proc/$(ctr --namespace=k8s.io tasks list | awk '$1 == \"" + id + "\" {print $2}')/attr/current"); !strings.Contains(domain, ":container_t:s0:c") {
		h.t.Errorf("the container runs as %s", domain)
	}
}

// reads has a container read PodResources, which has to tell of a device.
func (h *harness) reads(want string) {
	h.t.Helper()
	tools, err := cluster.Build(h.ctx, h.t.Output(), cluster.Consumer)
	h.must(err)
	const image, directory = "localhost/consumer:1", "/run/devmgrd/pod-resources"
	h.must(h.machine.LoadImage(h.ctx, cluster.Image{Name: image, Entrypoint: []string{"/consumer"}, Files: map[string]string{"/consumer": tools.Path("consumer")}}))
	reader := node.Pod("reader", "", 0, "unix://"+directory+"/kubelet.sock")
	kind := corev1.HostPathDirectory
	reader.Spec.Volumes = []corev1.Volume{{Name: "sockets", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: directory, Type: &kind}}}}
	reader.Spec.Containers[0].Image = image
	reader.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "sockets", MountPath: directory}}
	h.must(h.Create(h.ctx, reader))
	_, err = h.WaitPhase(h.soon(), "reader", corev1.PodSucceeded)
	h.must(err)
	if log, err := h.PodLogs(h.ctx, metav1.NamespaceDefault, "reader", "main"); err != nil || !strings.Contains(log, want) {
		h.t.Errorf("the reader says %q, %v", log, err)
	}
}

// commands asks all that operators and their tools ask, of one device in particular. A part of devmgrd may not be ready for a moment on a
// machine that is emulated: then the runtime has had no answer in time, and has dropped devmgrd.
func (h *harness) commands(device string) {
	h.t.Helper()
	answers := func(script string) (out string, ok bool) {
		out, err := h.machine.Shell(h.ctx, script)
		if err != nil {
			h.t.Logf("%v\n%s", err, out)
		}
		return out, err == nil
	}
	h.until("every command succeeds", func() bool {
		_, ok := answers(`rm -f /root/state.db
for words in status plugins devices assignments "explain default/a" history check "cordon ` + gpu + `/` + device + `" "uncordon ` + gpu + `/` + device + `" "store backup /root/state.db"; do
	devmgrd $words > /root/answer || { echo "devmgrd $words fails" >&2; cat /root/answer >&2; exit 1; }
done`)
		return ok
	})
	for page, want := range map[string]string{"/metrics": "process_open_fds", "/readyz": "", "/": "<html"} {
		h.until(page+" is answered with "+want, func() bool {
			answer, ok := answers(`exec 3<>/dev/tcp/127.0.0.1/9464; printf 'GET ` + page + ` HTTP/1.0\r\nHost: localhost\r\n\r\n' >&3; cat <&3`)
			return ok && strings.Contains(answer, " 200 OK") && strings.Contains(answer, want)
		})
	}
}

// What devmgrd does not do, its AppArmor profile denies: a probe in the place of its binary tries it, without the profile and with it.
func TestAppArmor_PackagedProfile_DeniesTheRest(t *testing.T) {
	if *onSELinux {
		t.Skip("the machine enforces SELinux; without -selinux it enforces AppArmor")
	}
	h := start(t)
	probe, err := os.ReadFile(os.Getenv(probeVariable))
	h.must(err)
	h.must(h.machine.Put(h.ctx, map[string]string{"/usr/local/bin/probe": string(probe), "/root/.ssh/id_probe": "secret"}))
	h.types("echo 0 > /proc/sys/kernel/printk_ratelimit; chmod 755 /usr/local/bin/probe; mkdir -p /root/probe.d")
	h.cleanup(func() {
		h.types("rm -r /usr/local/bin/probe /root/probe.d /root/.ssh/id_probe /srv/probe.d")
	})
	run := func(prefix string) map[string]string {
		results := map[string]string{}
		script := `sleep infinity & trap "kill $!" EXIT; mount --bind /usr/local/bin/probe /usr/bin/devmgrd; mount --bind /dev/null /proc/sys/kernel/core_pattern; ` + prefix + ` /usr/bin/devmgrd $!`
		for line := range strings.Lines(h.types("unshare --mount bash -eu -c '" + script + "'")) {
			name, result, _ := strings.Cut(strings.TrimSpace(line), " ")
			results[name] = result
		}
		return results
	}
	free := run("")
	h.nothingIsDenied()
	under := run("aa-exec --profile=devmgrd --")
	if denied := h.denied(); len(denied) < 10 {
		t.Errorf("the kernel's log shows %d denials, want 10 at least: the tests read too little of it:\n%s", len(denied), strings.Join(denied, "\n"))
	}
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

// The same with the resource offered through Dynamic Resource Allocation, after restarts of devmgrd and of the kubelet too.
func TestConfined_ThroughDRA_PodsGetTheDevicesOfTheirClaims(t *testing.T) {
	h := start(t)
	h.types("echo 0 > /proc/sys/kernel/printk_ratelimit; modprobe tun")
	address := h.types("ls /sys/bus/pci/devices | head -1") // a device that exists, for its attributes
	h.service(address+"=/dev/net/tun:rw", "gpu1=/dev/net/tun:rw")
	object := &resourceapi.DeviceClass{}
	h.must(yaml.UnmarshalStrict([]byte(h.types("devmgrd deviceclass "+gpu)), object))
	classes := h.Client().ResourceV1().DeviceClasses()
	_, err := classes.Create(h.ctx, object, metav1.CreateOptions{})
	h.must(err)
	h.must(h.machine.Put(h.ctx, map[string]string{
		"/etc/systemd/system/devmgrd.service.d/test.conf": "[Service]\nEnvironment=DEVMGRD_DRA_RESOURCES=" + gpu + " DEVMGRD_LOG_LEVEL=debug\n",
	}))
	restart := func() { h.types("systemctl daemon-reload; systemctl restart devmgrd"); h.ready() }
	restart()
	h.cleanup(func() {
		h.removePods("")
		h.types("rm -r /etc/systemd/system/devmgrd.service.d")
		restart()
		h.must(h.WaitShown(h.soon(), gpu, 2))
		h.must(classes.Delete(h.ctx, object.Name, metav1.DeleteOptions{}))
	})
	h.must(h.WaitShown(h.soon(), gpu, -1))
	h.isConfined()
	sliced := func() (devices []resourceapi.Device) {
		all, err := h.Client().ResourceV1().ResourceSlices().List(h.ctx, metav1.ListOptions{})
		h.must(err)
		for _, slice := range all.Items {
			devices = append(devices, slice.Spec.Devices...)
		}
		return devices
	}
	h.until("the slices show both devices", func() bool { return len(sliced()) == 2 })
	if !slices.ContainsFunc(sliced(), func(d resourceapi.Device) bool {
		bus := d.Attributes["resource.kubernetes.io/pciBusID"].StringValue
		return bus != nil && *bus == address
	}) {
		t.Errorf("no device has the PCI address %s: %v", address, sliced())
	}

	if got := h.runs("a", 1, "/dev/"+address, "/dev/gpu1"); opened(got, "/dev/"+got.Env["DEVICES"]) != "r rw w" {
		t.Errorf("the container has %q and opens it for %q", got.Env["DEVICES"], opened(got, "/dev/"+got.Env["DEVICES"]))
	}
	h.containersAreConfined()
	restart()
	h.types("systemctl restart kubelet")
	h.must(h.WaitNodeReady(h.soon()))
	h.until("the slices show both devices again", func() bool { return len(sliced()) == 2 })
	h.runs("b", 1)
	h.commands("gpu1")
	if h.holds("a") == h.holds("b") || h.restarts("a")+h.restarts("b") > 0 {
		t.Errorf("the pods have %s and %s, and were restarted %d and %d times", h.holds("a"), h.holds("b"), h.restarts("a"), h.restarts("b"))
	}
}
