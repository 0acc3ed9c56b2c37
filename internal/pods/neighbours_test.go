package pods

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestNeighboursOf(t *testing.T) {
	t.Parallel()
	mounting := func(name, path string) *corev1.Pod {
		p := newPod(name, container("main"))
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}}
		return p
	}
	plugin := func(name string, change func(*corev1.Container)) *corev1.Pod {
		p := newPod(name, container("main"))
		change(&p.Spec.Containers[0])
		return p
	}
	own, over := mounting("devmgrd", "/var/lib/kubelet/pod-resources"), mounting("over", "/var/lib/kubelet/pod-resources")
	own.Labels = map[string]string{"app.kubernetes.io/name": "devmgrd"}
	over.Status.Phase = corev1.PodSucceeded
	validator := newPod("validator", container("main"))
	validator.Labels = map[string]string{"app": "nvidia-operator-validator"}
	var all []corev1.Pod
	for _, p := range []*corev1.Pod{
		mounting("dcgm", "/var/lib/kubelet/pod-resources/"), mounting("socket", "/var/lib/kubelet/pod-resources/kubelet.sock"),
		mounting("csi", "/var/lib/kubelet"), own, over, validator,
		plugin("env", func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "DEVICE_LIST_STRATEGY", Value: "cdi-annotations,cdi-cri"}}
		}),
		plugin("envvar", func(c *corev1.Container) {
			c.Env = []corev1.EnvVar{{Name: "DEVICE_LIST_STRATEGY", Value: "envvar"}}
		}),
		plugin("flag", func(c *corev1.Container) { c.Args = []string{"--device-list-strategy=cdi-cri"} }),
		plugin("words", func(c *corev1.Container) { c.Args = []string{"--device-list-strategy", "cdi-cri"} }),
		plugin("last", func(c *corev1.Container) { c.Args = []string{"--device-list-strategy"} }),
	} {
		all = append(all, *p)
	}
	n := NeighboursOf(all, "/var/lib/kubelet/pod-resources/kubelet.sock")
	if got, want := fmt.Sprint(n), "{[ns/dcgm ns/socket] [ns/env ns/flag ns/words] [ns/validator]}"; got != want {
		t.Errorf("found %s, want %s", got, want)
	}
	if n := NeighboursOf(all, ""); len(n.Readers) > 0 {
		t.Errorf("without a kubelet's socket %q read it", n.Readers)
	}
}
