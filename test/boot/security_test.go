//go:build e2e

package boot

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// denials are those that have been reported.
var denials = map[string]bool{}

// nothingIsDenied looks for what the security module has kept devmgrd from.
func (h *harness) nothingIsDenied() {
	h.t.Helper()
	words := `apparmor="DENIED".* profile="devmgrd"`
	if *onSELinux {
		words = "avc:  denied .*devmgrd_(t|runtime_t|var_lib_t|conf_t|exec_t):"
	}
	for line := range strings.Lines(h.tries("dmesg | grep -E '" + words + "'")) {
		if !denials[line] {
			h.t.Errorf("denied: %s", line)
		}
		denials[line] = true
	}
}

// The node enforces SELinux: devmgrd runs in its domain and containers in theirs, the unmodified sample plugin registers, a pod gets a
// device of a plugin on the host, and a container without privileges reads PodResources.
func TestSELinux_Enforcing_PluginsPodsAndReadersWork(t *testing.T) {
	if !*onSELinux {
		t.Skip("the machine enforces AppArmor; -selinux is for one that enforces SELinux")
	}
	h := start(t, "gpu0=/dev/net/tun:rw")
	h.types("modprobe tun") // a container may not have the kernel load modules
	if got := h.types("getenforce"); got != "Enforcing" {
		t.Fatalf("SELinux is %s", got)
	}
	if got := h.types("cat /proc/$(systemctl show --value --property=MainPID containerd)/attr/current"); !strings.Contains(got, ":dockerd_t:") {
		t.Errorf("containerd runs as %s", got)
	}
	set, err := h.SamplePlugin()
	h.must(err)
	h.must(h.Apply(h.ctx, set))
	t.Cleanup(func() {
		_ = h.Client().AppsV1().DaemonSets(set.Namespace).Delete(h.ctx, set.Name, metav1.DeleteOptions{})
	})
	h.must(h.WaitShown(h.soon(), node.SampleResource, 2))
	h.createsFor("sample", node.SampleResource, 1)
	h.running("sample")

	got := h.runs("a", 1, "/dev/gpu0")
	if opened(got, "/dev/gpu0") != "r rw w" {
		t.Errorf("the container opens its device for %q", opened(got, "/dev/gpu0"))
	}
	_, id, _ := strings.Cut(h.container("a").ContainerID, "://")
	if domain := h.types("cat /proc/$(ctr --namespace=k8s.io tasks list | awk '$1 == \"" + id + "\" {print $2}')/attr/current"); !strings.Contains(domain, ":container_t:s0:c") {
		t.Errorf("the container runs as %s", domain)
	}

	tools, err := cluster.Build(h.ctx, t.Output())
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
	if log, err := h.PodLogs(h.ctx, metav1.NamespaceDefault, "reader", "main"); err != nil || !strings.Contains(log, "gpu0") {
		t.Errorf("the reader says %q, %v", log, err)
	}
}
