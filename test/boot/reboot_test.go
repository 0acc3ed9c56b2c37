//go:build e2e

package boot

import (
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/devmgrd/devmgrd/test/cluster"
)

const nic = "vendor.example/nic"

// daemonSet starts a plugin as vendors do, in a pod that has the kubelet's directory, and waits until the Node shows its device.
func (h *harness) daemonSet(device string) {
	h.t.Helper()
	const image = "localhost/plugin:1"
	h.must(h.machine.LoadImage(h.ctx, cluster.Image{Name: image, Entrypoint: []string{"/plugin"}, Files: map[string]string{"/plugin": os.Getenv(pluginVariable)}}))
	labels, dir, privileged := map[string]string{"app": "plugin"}, corev1.HostPathDirectory, true
	volume := func(name, path string) (corev1.Volume, corev1.VolumeMount) {
		return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &dir}}},
			corev1.VolumeMount{Name: name, MountPath: path}
	}
	sockets, inSockets := volume("sockets", "/var/lib/kubelet/device-plugins")
	dev, inDev := volume("dev", "/dev")
	h.must(h.Apply(h.ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "plugin", Namespace: metav1.NamespaceDefault},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				Containers: []corev1.Container{{
					Name: "plugin", Image: image, Args: []string{"/var/lib/kubelet/device-plugins", nic, device},
					SecurityContext: &corev1.SecurityContext{Privileged: &privileged}, VolumeMounts: []corev1.VolumeMount{inSockets, inDev},
				}},
				Volumes: []corev1.Volume{sockets, dev},
			}},
		},
	}))
	h.cleanup(func() { // before the pods are removed
		_ = h.Client().AppsV1().DaemonSets(metav1.NamespaceDefault).Delete(h.ctx, "plugin", metav1.DeleteOptions{})
	})
	h.must(h.WaitShown(h.soon(), nic, 1))
}

// The machine boots with pods that have devices. Each comes back with the device that it had, and with what its plugin says of it in
// this boot: the plugins start later than the pods, and one device has another number.
func TestReboot_PodsWithDevices_ComeBackWithThem(t *testing.T) {
	h := start(t)
	h.driver()
	h.service("gpu0=/dev/vendor/gpu0:rw", "gpu1=/dev/vendor/gpu1:rw")
	h.types("modprobe tun; echo tun > /etc/modules-load.d/tun.conf")
	h.daemonSet("nic0=/dev/net/tun:rw")

	before := map[string]string{}
	for _, name := range []string{"a", "b"} {
		got := h.runs(name, 1, "/dev/gpu0", "/dev/gpu1")
		device := got.Env["DEVICES"]
		before[name] = device
		if n := number(got, "/dev/"+device); n != got.Env["NUMBER_"+device] {
			t.Errorf("pod %s has %s as %s, and its plugin says %s", name, device, n, got.Env["NUMBER_"+device])
		}
	}
	numbers := h.types("stat --dereference --format=%Lr /dev/vendor/gpu0 /dev/vendor/gpu1")
	h.createsFor("network", nic, 1, "/dev/nic0")
	h.running("network")

	// In the next boot another disk comes first, and the driver takes long.
	h.types(`truncate -s 1M /var/lib/vendor/another; mkdir -p /etc/systemd/system/vendor-driver.service.d
printf '[Service]\nExecStartPre=/bin/sleep 20\n' > /etc/systemd/system/vendor-driver.service.d/slow.conf`)
	h.cleanup(func() {
		h.tries("rm -rf /etc/systemd/system/vendor-driver.service.d /etc/modules-load.d/tun.conf; systemctl daemon-reload")
	})
	h.nothingIsDenied()
	h.must(h.machine.Reboot(h.ctx))
	for name, device := range before {
		got := h.restarted(name, 1)
		if got.Env["DEVICES"] != device {
			t.Errorf("pod %s has %s after the boot; it had %s", name, got.Env["DEVICES"], device)
		}
		if n := number(got, "/dev/"+device); n != got.Env["NUMBER_"+device] {
			t.Errorf("pod %s has %s as %s after the boot, and its plugin says %s", name, device, n, got.Env["NUMBER_"+device])
		}
		if how := opened(got, "/dev/"+device); how != "r rw w" {
			t.Errorf("pod %s opens %s for %q after the boot", name, device, how)
		}
	}
	if now := h.types("stat --dereference --format=%Lr /dev/vendor/gpu0 /dev/vendor/gpu1"); now == numbers {
		t.Errorf("the devices are %s in both boots: nothing was tested", strings.Fields(now))
	}
	if got := h.restarted("network", 1); opened(got, "/dev/nic0") != "r rw w" {
		t.Errorf("the pod with the DaemonSet's device opens it for %q after the boot", opened(got, "/dev/nic0"))
	}
	h.must(h.WaitShown(h.soon(), gpu, 2))
	h.must(h.WaitShown(h.soon(), nic, 1))
}
