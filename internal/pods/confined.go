package pods

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// harmless are the capabilities that the Pod Security Standard "baseline" lets a container add. None leads to a device or to another
// process's files.
var harmless = []corev1.Capability{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

// confined reports whether a pod has nothing of the host's: neither its devices, which the device cgroup keeps from containers that are not
// privileged, nor a directory or a namespace in which a pod of another namespace could pass it a descriptor. A mirror pod does
// not count: it may be forged, and shows no static pod.
func confined(p *corev1.Pod) bool {
	s := &p.Spec
	if mirrored(p) || s.HostNetwork || s.HostPID || s.HostIPC || slices.ContainsFunc(s.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil }) {
		return false
	}
	contexts := make([]*corev1.SecurityContext, 0, len(s.InitContainers)+len(s.Containers)+len(s.EphemeralContainers))
	for _, c := range slices.Concat(s.InitContainers, s.Containers) {
		contexts = append(contexts, c.SecurityContext)
	}
	for _, c := range s.EphemeralContainers {
		contexts = append(contexts, c.SecurityContext)
	}
	return !slices.ContainsFunc(contexts, func(c *corev1.SecurityContext) bool {
		return c != nil && (c.Privileged != nil && *c.Privileged || c.Capabilities != nil &&
			slices.ContainsFunc(c.Capabilities.Add, func(added corev1.Capability) bool { return !slices.Contains(harmless, added) }))
	})
}
