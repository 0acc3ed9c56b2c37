package pods

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// requiredKey is the annotation, alone or followed by a container's name, by which a pod declares to the runtime's validator
// which NRI plugins it requires.
const requiredKey = "required-plugins.noderesource.dev"

// Bound returns the number of a node's pods that request devices, without resources that match ignored, and how many of these
// do not declare to the runtime that they require devmgrd.
func Bound(all []corev1.Pod, ignored []string) (asking, unbound int) {
	r := reader{ignoring(ignored)}
	for i := range all {
		p := &all[i]
		if seen, _ := r.pod(p); seen.ended || len(seen.demand.Demands) == 0 || mirrored(p) {
			continue
		}
		asking++
		if !slices.ContainsFunc([]string{requiredKey, requiredKey + "/pod"}, func(key string) bool { return strings.Contains(p.Annotations[key], "devmgrd") }) {
			unbound++
		}
	}
	return asking, unbound
}
