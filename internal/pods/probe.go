package pods

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// requiredKey is the annotation, alone or with a container's name after it, by which a pod tells the runtime's validator which NRI
// plugins it cannot do without.
const requiredKey = "required-plugins.noderesource.dev"

// Bound counts the pods of a node that ask for devices, without resources that match ignored, and those of them that do not tell
// the runtime that they cannot do without devmgrd.
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
