//go:build e2e

package e2e

import (
	"maps"
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
	r.offered(gpu, 8)
	request := func(name string) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Name: name, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: gpuClass}}
	}
	r.makeClaim("one", request("a"))
	r.makeClaim("two", request("a"), request("b"))
	alone := map[string]*corev1.Pod{"claim": using(of(uses("main", "one")), "one"), "implicit": of(limited("main", implicit, 1)), "explicit": of(limited("main", gpu, 2))}
	guarded := map[string]*corev1.Pod{"requests": using(of(uses("main", "two")), "two")}
	all := maps.Clone(alone)
	maps.Copy(all, guarded)
	had := map[string][]string{}
	for name, p := range all {
		p.Name, p.Spec.RestartPolicy = name, corev1.RestartPolicyAlways
		r.must(r.Create(r.ctx, p))
		had[name] = r.exact(name)["main"]
	}
	now := func(name string) corev1.ContainerStatus {
		p, err := r.WaitPhase(r.soon(), name, corev1.PodRunning)
		r.must(err)
		all[name] = p
		return p.Status.ContainerStatuses[0]
	}
	restarts := map[string]int32{}
	runs := func(name string) {
		r.until("the container of "+name+" runs again", func() bool { s := now(name); return s.RestartCount > restarts[name] && s.State.Running != nil })
		if got := r.exact(name)["main"]; !slices.Equal(got, had[name]) {
			t.Errorf("pod %s had %q and has %q", name, had[name], got)
		}
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
		for name := range all {
			restarts[name] = now(name).RestartCount
		}
		r.must(away.leave())
		for _, p := range all {
			r.must(r.Containers.Kill(r.ctx, node.ContainerID(p)))
		}
		for name := range guarded {
			r.until("devmgrd is "+away.how+", and the container of "+name+" waits", func() bool {
				s := now(name)
				return s.State.Waiting != nil && slices.Contains(away.waits, s.State.Waiting.Reason)
			})
		}
		for name := range alone {
			runs(name)
		}
		r.must(away.back())
		for name := range guarded {
			runs(name)
		}
		if away.how == "killed" {
			status, err := r.Command(r.ctx, "status").Output()
			r.must(err)
			if strings.Contains(string(status), "without") {
				t.Errorf("devmgrd takes containers for such without devices:\n%s", status)
			}
		}
	}
	r.distinct(slices.Collect(maps.Keys(all))...)
}
