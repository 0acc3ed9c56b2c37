package cgroups

import (
	"path"
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
)

// podCgroup names a pod's cgroup as the kubelet does: cgroup_manager_linux.go, ToCgroupfs and ToSystemd.
func podCgroup(systemd bool, cgroupRoot, class, uid string) string {
	var names []string
	for name := range strings.SplitSeq(cgroupRoot+"/kubepods/"+class+"/pod"+uid, "/") {
		if name != "" {
			names = append(names, name)
		}
	}
	if !systemd {
		return "/" + path.Join(names...)
	}
	slice, all := "", "/"
	for _, name := range names {
		slice = strings.TrimPrefix(slice+"-"+strings.ReplaceAll(name, "-", "_"), "-")
		all = path.Join(all, slice+".slice")
	}
	return all
}

func TestPodOf_EachWayOfTheKubelet(t *testing.T) {
	for _, uid := range []string{"11111111-2222-3333-4444-555555555555", "0123456789abcdef0123456789abcdef"} {
		for _, systemd := range []bool{false, true} {
			for _, root := range []string{"", "/kubelet", "/k3s", "/a/b-c", "/docker/0123abcd/kubelet"} {
				for _, class := range []string{"", "burstable", "besteffort"} {
					pod := podCgroup(systemd, root, class, uid)
					for _, below := range []string{"", "/cri-containerd-0123.scope", "/crio-0123.scope/container", "/0123", "/0123/pod" + strings.ReplaceAll(uid, "1", "9")} {
						if got := PodOf(pod + below); got != device.PodUID(uid) {
							t.Errorf("%s: %q, want %q", pod+below, got, uid)
						}
					}
					if got := PodAt(pod); got != device.PodUID(uid) {
						t.Errorf("%s is the cgroup of %q, want %q", pod, got, uid)
					}
					if got := PodAt(path.Dir(pod)); got != "" {
						t.Errorf("%s is the cgroup of %q", path.Dir(pod), got)
					}
				}
			}
		}
	}
}

func TestPodOf_InACgroupNamespace(t *testing.T) {
	for cgroup, want := range map[string]device.PodUID{
		"/../../kubepods-burstable-pod1_a.slice/cri-containerd-0.scope":                     "1-a",
		"/../../../kubepods-besteffort.slice/kubepods-besteffort-pod1_a.slice/crio-0.scope": "1-a",
		"/../../../../kubepods.slice/kubepods-pod1_a.slice/cri-containerd-0.scope":          "1-a",
		"/../../pod1-a/0":             "1-a",
		"/../../../besteffort/pod1-a": "1-a",
		"/../../../../user.slice/user-1000.slice/user@1000.service/kubepods/pod1-a": "",
		"/../../../../user.slice/user-1000.slice/user@1000.service/pod1-a":          "",
	} {
		if got := PodOf(cgroup); got != want {
			t.Errorf("%s: %q, want %q", cgroup, got, want)
		}
	}
}

// systemd delegates the cgroup of a user's manager to the user, who names those below it.
func TestPodOf_CgroupOfAnotherUser_IsNoPods(t *testing.T) {
	const uid = "11111111-2222-3333-4444-555555555555"
	for _, cgroup := range []string{
		"/user.slice/user-1000.slice/user@1000.service/pod" + uid + "/x",
		"/user.slice/user-1000.slice/user@1000.service/kubepods/pod" + uid,
		"/user.slice/user-1000.slice/user@1000.service/kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
		"/user.slice/user-1000.slice/user@1000.service/kubepods-podX/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice",
		"/machine.slice/libpod-0123.scope/kubepods/burstable/pod" + uid,
		"/podman/pod" + uid, "/pod" + uid, "/kubepods/x/pod" + uid, "/burstable/pod" + uid, "/kubepods/pod",
		"/kubepods.slice/kubepods-burstable-pod" + uid + ".slice", "/a.slice/a-pod" + uid + ".slice",
		"/system.slice/podman.service", "/user.slice/user-0.slice/session-1.scope", "/kubepods.slice", "/", "",
	} {
		if got := PodOf(cgroup); got != "" {
			t.Errorf("%s is of pod %s", cgroup, got)
		}
	}
}

func TestInService(t *testing.T) {
	for cgroup, want := range map[string]bool{
		"/system.slice/agent.service": true, "/system.slice/agent.service/below": true, "/../../../system.slice/agent.service": true,
		"/system.slice/agent.service-2.service": false, "/system.slice/other.service": false, "/": false, "": false,
		"/user.slice/user-1000.slice/user@1000.service/app.slice/agent.service":    false,
		"/user.slice/user-1000.slice/user@1000.service/system.slice/agent.service": false,
	} {
		if got := InService(cgroup, "agent.service"); got != want {
			t.Errorf("%s: %v", cgroup, got)
		}
	}
}
