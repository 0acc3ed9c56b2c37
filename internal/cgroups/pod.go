// Package cgroups says which pod a cgroup is of. It is a base package: what proves that a pod has ended, what names the processes that keep
// a device, and what limits clients need one answer.
package cgroups

import (
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

// PodAt returns the pod whose cgroup has this path; empty: it is no pod's cgroup.
//
// The kubelet names a pod's cgroup after its own root and the pod's class and UID (cgroup_manager_linux.go, qos_container_manager_linux.go
// and pod_container_manager_linux.go). Its root is the cgroup kubepods below the setting cgroupRoot, which is / unless the kubelet is
// in a container of its own, or an operator says otherwise. With the classes guaranteed, burstable and besteffort:
//
//	driver cgroupfs, cgroupRoot /     /kubepods/pod<uid>
//	                                  /kubepods/burstable/pod<uid>
//	driver cgroupfs, cgroupRoot /a/b  /a/b/kubepods/besteffort/pod<uid>
//	driver systemd, cgroupRoot /      /kubepods.slice/kubepods-pod<uid>.slice
//	                                  /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice
//	driver systemd, cgroupRoot /a/b   /a.slice/a-b.slice/a-b-kubepods.slice/a-b-kubepods-besteffort.slice/a-b-kubepods-besteffort-pod<uid>.slice
//
// systemd's names have underscores in place of the UID's dashes. On cgroup v1 each hierarchy has these paths. In a cgroup namespace the
// path begins with .. and the common part of both is missing.
func PodAt(path string) device.PodUID {
	rest, name := cut(path)
	rest, above := cut(rest)
	if slice, is := strings.CutSuffix(name, ".slice"); is {
		at := strings.LastIndex(slice, "-pod")
		if at < 0 {
			return ""
		}
		class, uid := slice[:at], slice[at+len("-pod"):]
		root := strings.TrimSuffix(strings.TrimSuffix(class, "-burstable"), "-besteffort")
		if above != class+".slice" && above != ".." || root != "kubepods" && !strings.HasSuffix(root, "-kubepods") {
			return ""
		}
		return device.PodUID(strings.ReplaceAll(uid, "_", "-"))
	}
	uid, is := strings.CutPrefix(name, "pod")
	if above == "burstable" || above == "besteffort" {
		_, above = cut(rest)
	}
	if !is || above != "kubepods" && above != ".." {
		return ""
	}
	return device.PodUID(uid)
}

// PodOf returns the pod that a process belongs to, by its path in /proc/PID/cgroup; empty: to none. The outermost pod's cgroup counts: a pod
// may make further ones in its own.
//
// Below a service or a scope, a cgroup may be another user's: systemd delegates these, such as user@1000.service, and the kubelet's root
// is in none.
func PodOf(path string) device.PodUID {
	for at, c := range path + "/" {
		if c != '/' {
			continue
		}
		if one := path[:at]; strings.HasSuffix(one, ".service") || strings.HasSuffix(one, ".scope") {
			return ""
		} else if uid := PodAt(one); uid != "" {
			return uid
		}
	}
	return ""
}

// InService reports whether a process is in a system service of systemd, by its path in /proc/PID/cgroup. Only root adds processes to one.
func InService(path, service string) bool {
	for relative := true; relative; {
		path, relative = strings.CutPrefix(path, "/..")
	}
	rest, is := strings.CutPrefix(path, "/system.slice/"+service)
	return is && (rest == "" || rest[0] == '/')
}

// cut removes the last name from a path.
func cut(path string) (rest, name string) {
	at := strings.LastIndexByte(path, '/')
	return path[:max(at, 0)], path[at+1:]
}
