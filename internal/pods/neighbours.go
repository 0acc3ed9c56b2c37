package pods

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Neighbours are pods of a node, as namespace/name, that depend on the device manager in other ways than by requesting devices.
type Neighbours struct {
	Readers    []string // mount the directory of the kubelet's PodResources socket
	CDIPlugins []string // NVIDIA's device plugins, set to grant CDI devices
	Validators []string // NVIDIA's operator validators, which wait for the Node's capacity
}

// NeighboursOf finds the neighbours among a node's pods. socket is the kubelet's PodResources socket; empty: there is none.
func NeighboursOf(all []corev1.Pod, socket string) (n Neighbours) {
	for i := range all {
		p := &all[i]
		if ended(p) {
			continue
		}
		name := p.Namespace + "/" + p.Name
		if socket != "" && p.Labels["app.kubernetes.io/name"] != "devmgrd" && mounts(p, path.Dir(socket), socket) {
			n.Readers = append(n.Readers, name)
		}
		containers := slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
		if slices.ContainsFunc(containers, grantsCDI) {
			n.CDIPlugins = append(n.CDIPlugins, name)
		}
		if p.Labels["app"] == "nvidia-operator-validator" {
			n.Validators = append(n.Validators, name)
		}
	}
	return n
}

// mounts reports whether a container of the pod mounts one of these paths of the host.
func mounts(p *corev1.Pod, paths ...string) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.HostPath != nil && slices.Contains(paths, path.Clean(v.HostPath.Path))
	})
}

// grantsCDI reports whether a container is NVIDIA's device plugin with a strategy that grants CDI devices: by
// DEVICE_LIST_STRATEGY, or by the flag of that name.
func grantsCDI(c corev1.Container) bool {
	const variable, flag = "DEVICE_LIST_STRATEGY", "--device-list-strategy"
	for _, e := range c.Env {
		if e.Name == variable && strings.Contains(e.Value, "cdi-") {
			return true
		}
	}
	words := slices.Concat(c.Command, c.Args)
	for i, w := range words {
		if w == flag && i+1 < len(words) && strings.Contains(words[i+1], "cdi-") || strings.HasPrefix(w, flag+"=") && strings.Contains(w, "cdi-") {
			return true
		}
	}
	return false
}
