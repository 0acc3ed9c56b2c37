package preflight

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/lists"
)

func (j *judge) api(f Facts) {
	a := f.API
	switch {
	case a == nil:
		j.ok("api server", "none: kubernetes.mode is none")
		return
	case a.Err != nil:
		j.fail("api server", "make sure that it runs, and that the credentials are valid: kubectl --kubeconfig FILE get nodes", "%v", a.Err)
		return
	case !a.Node && a.lacks("list nodes"):
		j.ok("api server", "it answers")
	case !a.Node:
		j.fail("api server", "have the kubelet create it, or set nodeName to the name that kubectl get nodes shows", "there is no Node named %s", a.NodeName)
	default:
		j.ok("api server", "it has the Node %s", a.NodeName)
	}
	missing := 0
	for _, r := range a.Rights {
		if r.Err == nil || r.What == kube.PatchPodStatus && !f.Conditions {
			continue
		}
		missing++
		const remedy = "use the kubelet's own credentials (/etc/kubernetes/kubelet.conf), or grant the right (/usr/share/devmgrd/kubernetes/rbac.yaml)"
		const evicts = "use the kubelet's own credentials (/etc/kubernetes/kubelet.conf), or grant the right (/usr/share/devmgrd/kubernetes/rbac-eviction.yaml)"
		switch what := "devmgrd may not " + r.What; {
		case strings.HasSuffix(r.What, "events"):
			j.warn("permissions", remedy, "%s: the owners of waiting pods get no events. %v", what, r.Err)
		case r.What == kube.PatchPodStatus:
			j.warn("permissions", remedy+", or set kubernetes.podConditions to false", "%s: pods do not show the state of their devices. %v", what, r.Err)
		case strings.HasSuffix(r.What, "eviction") && !f.Evicts:
			j.warn("permissions", evicts+"; only devmgrd drain needs it", "%s: devmgrd drain cannot evict. %v", what, r.Err)
		case strings.HasSuffix(r.What, "eviction"):
			j.fail("permissions", evicts, "%s, and health.onMissingDevices or health.onDeviceFailure is evict, or wait.giveUpAfter is set: %v", what, r.Err)
		default:
			j.fail("permissions", remedy, "%s: %v", what, r.Err)
		}
	}
	if missing == 0 {
		j.ok("permissions", "devmgrd has all the rights that it needs")
	}
}

// lacks reports whether devmgrd lacks a right.
func (a *API) lacks(right string) bool {
	return slices.ContainsFunc(a.Rights, func(r kube.Right) bool { return r.What == right && r.Err != nil })
}

func (j *judge) plugins(f Facts) {
	k := f.Kubelet
	const anew = "once devmgrd runs, delete the plugin's pod on this node: its successor gets a redirected mount. A plugin that runs as a service of the host needs " +
		"/usr/share/devmgrd/systemd/host-plugin.conf. On a node with running workloads follow docs/migration.md"
	if k.Err != nil {
		if len(k.Plugins) > 0 {
			j.warn("plugins", anew, "the kubelet does not list its devices (%v), but device plugins listen in its directory: %s", k.Err, strings.Join(k.Plugins, ", "))
			return
		}
		j.warn("plugins", "start the kubelet, and check again", "the kubelet does not list its devices: %v", k.Err)
		return
	}
	with := f.withKubelet()
	for _, r := range slices.Sorted(maps.Keys(with)) {
		n := with[r]
		if f.Daemon != nil && f.Daemon.Serves[r] {
			j.fail("plugins", anew, "%s (%d devices) is registered with the kubelet and with devmgrd: devices may be assigned twice", r, n)
			continue
		}
		j.warn("plugins", anew, "%s (%d devices) is registered with the kubelet, and not with devmgrd", r, n)
	}
	if len(with) == 0 {
		j.ok("plugins", "no device plugin is registered with the kubelet")
	}
}

// withKubelet returns the number of devices that are registered with the kubelet, by resource. The kubelet's PodResources omits
// devices with an empty topology; its checkpoint names them. A starting kubelet forgets which devices were healthy, so a file
// written by the running kubelet names plugins that registered with it. The kubelet does not rewrite the file when a plugin goes.
// So the file counts only while a plugin listens in the kubelet's directory, and not for a resource that devmgrd serves.
func (f Facts) withKubelet() map[device.ResourceName]int {
	with := map[device.ResourceName]int{}
	if f.Kubelet.Err != nil {
		return with
	}
	if f.Checkpoint.Err == nil && f.Checkpoint.Current && len(f.Kubelet.Plugins) > 0 {
		for r, n := range f.Checkpoint.Healthy {
			if n > 0 && (f.Daemon == nil || !f.Daemon.Serves[r]) {
				with[r] = n
			}
		}
	}
	for r, n := range f.Kubelet.Devices {
		if n > 0 { // else its plugin is away, and the checkpoint's count stays
			with[r] = n
		}
	}
	return with
}

// checkpoint judges the kubelet's checkpoint. A kubelet that starts with resources in its checkpoint keeps their capacity at 0 for
// five minutes and then writes 0 once. As long as pods in the checkpoint live, it fails other pods that request the same resources.
func (j *judge) checkpoint(f Facts) {
	c := f.Checkpoint
	if c.Err != nil {
		j.warn("checkpoint", "stop the kubelet and move the file aside, if no pod has devices from the kubelet", "%v", c.Err)
		return
	}
	with := f.withKubelet()
	var left, used []string
	for _, r := range c.Resources {
		if with[r] > 0 && !(f.Daemon != nil && f.Daemon.Serves[r]) {
			used = append(used, string(r))
		} else {
			left = append(left, string(r))
		}
	}
	move := fmt.Sprintf("move the node in (docs/migration.md): stop the kubelet and devmgrd, run devmgrd import kubelet-checkpoint %s, and start both", c.Path)
	if len(left) > 0 {
		j.fail("checkpoint", move, "%s names %s: a restarted kubelet claims these resources, sets their capacity to 0, and fails pods that request them", c.Path, strings.Join(left, ", "))
	}
	if len(used) > 0 {
		j.warn("checkpoint", move, "%s names %s, which the kubelet serves", c.Path, strings.Join(used, ", "))
	}
	if len(c.Resources) == 0 {
		j.ok("checkpoint", "the kubelet's file claims no resource")
	}
}

// neighbours judges what depends on the kubelet's device manager: agents that read its PodResources, and NVIDIA's GPU operator.
func (j *judge) neighbours(f Facts) {
	if f.API == nil {
		return
	}
	n := f.API.Neighbours
	switch {
	case len(n.Readers) > 0 && !f.Takeover:
		j.warn("agents", "set podResources.takeover to true, or mount the directory of podResources.socket into these pods instead",
			"%s read the kubelet's PodResources, which do not list the devices that devmgrd assigns: metrics by pod will lack their pods", few(n.Readers))
	case len(n.Readers) > 0:
		j.ok("agents", "%s read PodResources at the kubelet's path, which devmgrd takes over", few(n.Readers))
	}
	if len(n.CDIPlugins) > 0 && f.NRI.Err == nil && (!f.NRI.CDI || f.old() && !isTrue(f.Containerd.CDI)) {
		j.fail("cdi", "use "+f.NRI.newer("2.1")+", or set DEVICE_LIST_STRATEGY to envvar (GPU operator: cdi.enabled=false)",
			"%s grant CDI devices, which %s %s does not inject: containers that request their devices do not start", few(n.CDIPlugins), f.NRI.Runtime, f.NRI.Version)
	}
	if len(n.Validators) > 0 && (f.Daemon == nil || !f.Daemon.servesDomain("nvidia.com")) {
		j.warn("validator pod", "once devmgrd runs, recreate the pod of the GPU's device plugin: the validator tries again",
			"%s wait for capacity of nvidia.com on the Node, for 150 s in each try, and devmgrd serves none", few(n.Validators))
	}
}

// servesDomain reports whether a plugin of a resource of this domain is connected.
func (d *Daemon) servesDomain(domain string) bool {
	for r, serves := range d.Serves {
		if serves && strings.HasPrefix(string(r), domain+"/") {
			return true
		}
	}
	return false
}

// few names the first pods.
func few(names []string) string { return strings.Join(lists.First(names, 4), ", ") }
