package pods

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/devmgrd/devmgrd/internal/device"
)

func TestConfined(t *testing.T) {
	yes := true
	context := func(c corev1.SecurityContext) corev1.Container { return corev1.Container{SecurityContext: &c} }
	added := func(c corev1.Capability) corev1.SecurityContext {
		return corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{c}}}
	}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"plain":         {func(*corev1.Pod) {}, true},
		"other volumes": {func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v"}} }, true},
		"a port":        {func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{context(added("NET_BIND_SERVICE"))} }, true},
		"host network":  {func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
		"host PIDs":     {func(p *corev1.Pod) { p.Spec.HostPID = true }, false},
		"host IPC":      {func(p *corev1.Pod) { p.Spec.HostIPC = true }, false},
		"host path": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/run"}}}}
		}, false},
		"privileged": {func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{{}, context(corev1.SecurityContext{Privileged: &yes})}
		}, false},
		"privileged, first": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{context(corev1.SecurityContext{Privileged: &yes})}
		}, false},
		"a debugger": {func(p *corev1.Pod) {
			c := added("SYS_PTRACE")
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{SecurityContext: &c}}}
		}, false},
		"all capabilities": {func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{context(added("ALL"))} }, false},
		"a mirror pod":     {func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }, false},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{}}}}
		test.change(p)
		if got := confined(p); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// A pod that is deleted by force leaves the API server while its processes run: it stays known, and confined, until the runtime does not have it.
func TestStore_DeletedByForce_StaysConfinedWhileItRuns(t *testing.T) {
	t.Parallel()
	runs := map[device.PodUID]bool{"a": true, "b": true}
	d := newDiary()
	s := newStore(reader{}, d, &sandboxes{runs: runs})
	free := at("b", 2)
	free.Spec.HostPID = true
	for _, p := range []*corev1.Pod{at("a", 1), free, at("never-ran", 3)} {
		s.Update(p)
		s.Delete(p)
	}
	if pod, known := s.named("a"); !known || pod.Name != "a" || !s.confined("a") {
		t.Errorf("%v, known %v, confined %v", pod, known, s.confined("a"))
	}
	for _, uid := range []device.PodUID{"b", "never-ran"} {
		if _, known := s.named(uid); known || s.confined(uid) {
			t.Errorf("%s: known %v, confined %v", uid, known, s.confined(uid))
		}
	}
	s.Replace([]any{at("c", 4)}, "4")
	if !s.confined("a") {
		t.Error("a list without the pod is no end of it")
	}
	runs["a"], runs["c"] = false, true
	s.Replace(nil, "5")
	if !s.confined("c") || s.confined("a") || len(s.outlived) != 1 {
		t.Errorf("kept: %v", s.outlived)
	}
}
