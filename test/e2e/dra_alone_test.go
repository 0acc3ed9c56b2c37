//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/devmgrd/devmgrd/test/node"
)

// With nothing but devmgrd: no setting of the kubelet or of containerd, and no policy. Containers of claims that are created while devmgrd is away have
// exactly what the plugin has granted, or are not created until devmgrd is back.
func TestDRA_DevmgrdAway_ContainersHaveTheirDevicesOrWait(t *testing.T) {
	r := start(t, "--set", "dra.resources="+gpu)
	r.class(gpu)
	r.offered(gpu, 12)
	request := func(name string) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: gpuClass}}
	}
	now := func(p *corev1.Pod) corev1.ContainerStatus {
		seen, err := r.WaitPhase(r.soon(), p.Name, corev1.PodRunning)
		r.must(err)
		return seen.Status.ContainerStatuses[0]
	}
	for _, away := range []struct {
		how         string
		leave, back func() error
		waits       []string
	}{
		{"killed", r.Devmgrd.Kill, func() error { return r.StartDevmgrd(r.soon()) }, []string{"CreateContainerError"}},
		{"stopped", func() error { return r.Devmgrd.Stop(stopLimit) }, func() error { return r.StartDevmgrd(r.soon()) }, []string{"CreateContainerError"}},
		{"hung", func() error { return r.Devmgrd.Signal(syscall.SIGSTOP) }, func() error { return r.Devmgrd.Signal(syscall.SIGCONT) },
			[]string{"RunContainerError", "CrashLoopBackOff", "CreateContainerError"}},
	} {
		t.Run(away.how, func(t *testing.T) {
			r := r.in(t)
			r.makeClaim("one", request("a"))
			r.makeClaim("two", request("a"), request("b"))
			// Other pods each time: the kubelet waits longer before each restart of a container.
			alone := []*corev1.Pod{using(of(uses("main", "one")), "one"), of(limited("main", implicit, 1)), of(limited("main", gpu, 2))}
			guarded := using(of(uses("main", "two")), "two")
			all := append(slices.Clone(alone), guarded)
			had := map[string][]string{}
			var names []string
			for i, p := range all {
				p.Name, p.Spec.RestartPolicy = fmt.Sprint(away.how, "-", i), corev1.RestartPolicyAlways
				r.must(r.Create(r.ctx, p))
				had[p.Name] = r.exact(p.Name)["main"]
				names = append(names, p.Name)
			}
			again := func(p *corev1.Pod) {
				r.until("the container of "+p.Name+" runs again", func() bool { s := now(p); return s.RestartCount > 0 && s.State.Running != nil })
				if got := r.exact(p.Name)["main"]; !slices.Equal(got, had[p.Name]) {
					t.Errorf("pod %s had %q and has %q", p.Name, had[p.Name], got)
				}
			}
			seen := map[string]*corev1.Pod{}
			for _, p := range all {
				var err error
				seen[p.Name], err = r.WaitPhase(r.soon(), p.Name, corev1.PodRunning)
				r.must(err)
			}
			r.must(away.leave())
			for _, p := range seen {
				r.must(r.Containers.Kill(r.ctx, node.ContainerID(p)))
			}
			r.until("the container of "+guarded.Name+" waits", func() bool {
				s := now(guarded)
				return s.State.Waiting != nil && slices.Contains(away.waits, s.State.Waiting.Reason)
			})
			for _, p := range alone {
				again(p)
			}
			r.must(away.back())
			again(guarded)
			status, err := r.Command(r.ctx, "status").Output()
			r.must(err)
			if strings.Contains(string(status), "without") {
				t.Errorf("devmgrd takes containers for such without devices:\n%s", status)
			}
			r.distinct(names...)
			for _, name := range names {
				r.must(r.Delete(r.ctx, name))
			}
		})
	}
}
