package preflight

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/devmgrd/devmgrd/internal/device"
)

func (j *judge) api(f Facts) {
	a := f.API
	switch {
	case a == nil:
		j.ok("api server", "none, by kubernetes.mode")
		return
	case a.Err != nil:
		j.fail("api server", "see that it runs, and that the credentials are valid: kubectl --kubeconfig FILE get nodes", "%v", a.Err)
		return
	case !a.Node && a.lacks("list nodes"):
		j.ok("api server", "it answers")
	case !a.Node:
		j.fail("api server", "have the kubelet create it, or set nodeName to the name that kubectl get nodes shows", "there is no Node named %s", a.NodeName)
	default:
		j.ok("api server", "it shows the Node %s", a.NodeName)
	}
	missing := 0
	for _, r := range a.Rights {
		if r.Err == nil {
			continue
		}
		missing++
		const remedy = "use the kubelet's own credentials (/etc/kubernetes/kubelet.conf), or grant the right (/usr/share/devmgrd/kubernetes/rbac.yaml)"
		const evicts = "use the kubelet's own credentials (/etc/kubernetes/kubelet.conf), or grant the right (/usr/share/devmgrd/kubernetes/rbac-eviction.yaml)"
		switch what := "it may not " + r.What; {
		case strings.HasSuffix(r.What, "events"):
			j.warn("permissions", remedy, "%s: the owners of pods are not told why they wait. %v", what, r.Err)
		case strings.HasSuffix(r.What, "eviction") && !f.Evicts:
			j.warn("permissions", evicts+"; without it all but devmgrd drain works", "%s: devmgrd drain does not evict. %v", what, r.Err)
		case strings.HasSuffix(r.What, "eviction"):
			j.fail("permissions", evicts, "%s, and health.onMissingDevices or health.onDeviceFailure is evict: %v", what, r.Err)
		default:
			j.fail("permissions", remedy, "%s: %v", what, r.Err)
		}
	}
	if missing == 0 {
		j.ok("permissions", "it may do all that is needed")
	}
}

// lacks reports whether devmgrd may not do that.
func (a *API) lacks(right string) bool {
	return slices.ContainsFunc(a.Rights, func(r Right) bool { return r.What == right && r.Err != nil })
}

func (j *judge) plugins(f Facts) {
	k := f.Kubelet
	const anew = "once devmgrd runs, delete the plugin's pod on this node: it comes back with its mount redirected. A plugin that runs as a service of the host needs " +
		"/usr/share/devmgrd/systemd/host-plugin.conf. On a node that has work on it follow docs/migration.md"
	if k.Err != nil {
		if len(k.Plugins) > 0 {
			j.warn("plugins", anew, "the kubelet does not answer which plugins are registered with it (%v), but device plugins listen in its directory: %s", k.Err, strings.Join(k.Plugins, ", "))
			return
		}
		j.warn("plugins", "start the kubelet, and check again", "the kubelet does not tell what is registered with it: %v", k.Err)
		return
	}
	with := f.withKubelet()
	for _, r := range slices.Sorted(maps.Keys(with)) {
		n := with[r]
		if f.Daemon != nil && f.Daemon.Serves[r] {
			j.fail("plugins", anew, "%s (%d devices) is registered with the kubelet and with devmgrd: devices may be allocated twice", r, n)
			continue
		}
		j.warn("plugins", anew, "%s (%d devices) is registered with the kubelet, and not with devmgrd", r, n)
	}
	if len(with) == 0 {
		j.ok("plugins", "no device plugin is registered with the kubelet")
	}
}

// withKubelet returns how many devices of which resource are registered with the kubelet. The kubelet's PodResources leaves out
// devices with an empty topology; its checkpoint names them. A kubelet that starts forgets which devices were healthy, so a file that
// this kubelet has written names plugins that registered with it. The kubelet does not rewrite the file when a plugin goes, so the file
// counts only while a plugin listens in the kubelet's directory, and not for a resource that devmgrd serves.
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
		if n > 0 { // else its plugin is away, and the checkpoint is looked at besides
			with[r] = n
		}
	}
	return with
}

// checkpoint looks at the kubelet's file. A kubelet that starts with resources in it holds their numbers at 0 for five minutes and
// then writes 0 once; and as long as pods of it live it fails others that ask for the same.
func (j *judge) checkpoint(f Facts) {
	c := f.Checkpoint
	if c.Err != nil {
		j.warn("checkpoint", "move it aside with the kubelet stopped, if no pod has devices of the kubelet's", "%v", c.Err)
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
	move := fmt.Sprintf("move the node in (docs/migration.md): stop the kubelet and devmgrd, devmgrd import kubelet-checkpoint %s, and start them", c.Path)
	if len(left) > 0 {
		j.fail("checkpoint", move, "%s names %s: a kubelet that is restarted claims what it names, shows 0 of it, and fails pods that ask for it", c.Path, strings.Join(left, ", "))
	}
	if len(used) > 0 {
		j.warn("checkpoint", move, "%s names %s, which the kubelet serves", c.Path, strings.Join(used, ", "))
	}
	if len(c.Resources) == 0 {
		j.ok("checkpoint", "the kubelet's file claims nothing")
	}
}
