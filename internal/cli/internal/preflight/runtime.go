package preflight

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/internal/kube"
)

const (
	// minRequestTimeout is containerd's default. The hook's own bound is a second, and a machine short of CPU needs some of the
	// rest.
	minRequestTimeout = 2 * time.Second
	// goodRequestTimeout is the reason for the 10 s in packaging/containerd: with less, a node with many containers may lose devmgrd
	// when it connects, since devmgrd has to answer the list of all containers in that time too.
	goodRequestTimeout = 5 * time.Second
	// longRequestTimeout bounds the time for which a devmgrd that hangs could hold up every container of the node.
	longRequestTimeout = time.Minute

	// startAccuracy is the accuracy of a process's start time.
	startAccuracy = 5 * time.Second

	oldDropIn  = `set disable = false and plugin_request_timeout = "10s" in [plugins."io.containerd.nri.v1.nri"] of containerd's main file, which has version = 2, and restart containerd; with devmgrd's drop-in containerd 1 does not start`
	dropIn     = "copy /usr/share/devmgrd/containerd/devmgrd.toml into /etc/containerd/conf.d, make sure that containerd's configuration imports it, and restart containerd"
	crioDropIn = "copy /usr/share/devmgrd/crio/devmgrd.conf into /etc/crio/crio.conf.d, and restart CRI-O, which touches no running container"
	containerd = "containerd"
	crio       = "crio"

	// rancherSocket is containerd's in k3s and RKE2, which write its configuration from a template at each start.
	rancherSocket = "/run/k3s/containerd/containerd.sock"
)

func (j *judge) runtime(f Facts) {
	if r := f.Runtime; r.Err != nil && f.Containerd.without("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime") {
		j.fail("runtime", "take cri out of disabled_plugins, and "+f.restart(), "containerd's configuration (%s) disables its CRI plugin: no kubelet can use it", f.Containerd.File)
	} else if r.Err != nil {
		j.fail("runtime", "start the runtime (systemctl start "+f.unit()+"); if its socket is elsewhere, name it with --runtime-endpoint", "no container runtime answers at %s: %v", r.Socket, r.Err)
	} else {
		j.ok("runtime", "%s %s at %s", r.Name, r.Version, r.Socket)
	}
	if f.Containerd.Err != nil {
		j.warn("containerd", "fix the file, or name the right one with --containerd-config", "%v", f.Containerd.Err)
	}
}

func (j *judge) nri(f Facts) {
	n, c := f.NRI, f.Containerd
	switch {
	case n.Err == nil:
		j.ok("nri", "on, at %s", n.Socket)
	case f.Runtime.Err != nil && n.Missing:
		j.fail("nri", "start the runtime first", "no process listens at %s", n.Socket)
	case c.without("io.containerd.nri.v1.nri"):
		j.fail("nri", "take the plugin io.containerd.nri.v1.nri out of disabled_plugins, and "+f.restart(), "containerd's configuration (%s) disables the NRI plugin", c.File)
	case isTrue(c.Disable) && f.old():
		j.fail("nri", f.advice("disable"), "NRI is off in containerd's configuration (%s)", c.File)
	case isTrue(c.Disable):
		j.fail("nri", "set disable = false in [plugins.'io.containerd.nri.v1.nri'] (devmgrd's drop-in does), and "+f.restart(), "NRI is off in containerd's configuration (%s)", c.File)
	case isTrue(c.DisableConnections):
		j.fail("nri", "set disable_connections = false in [plugins.'io.containerd.nri.v1.nri'], and "+f.restart(), "containerd's configuration (%s) disables NRI connections", c.File)
	case c.Socket != "" && c.Socket != n.Socket:
		j.fail("nri", "set nri.socket to "+c.Socket+" in devmgrd's configuration", "nri.socket is %s, but containerd's is %s", n.Socket, c.Socket)
	case n.Missing && f.old():
		j.fail("nri", "use containerd 2.0 or later, or "+f.advice("disable"), "no process listens at %s: before containerd 2.0 NRI is off by default", n.Socket)
	case n.Missing:
		j.fail("nri", f.advice("disable"), "no process listens at %s: the runtime has NRI off, or another socket", n.Socket)
	default:
		j.fail("nri", "see the runtime's log (journalctl -u "+f.unit()+")", "the runtime does not accept a plugin at %s: %v", n.Socket, n.Err)
	}
	if n.Err != nil {
		return
	}
	if !n.CDI {
		j.warn("nri", "use "+n.newer("2.1")+", if device plugins grant CDI devices", "%s %s cannot inject CDI devices: devmgrd refuses containers that are granted some", n.Runtime, n.Version)
	}
	if n.CDI && f.old() && !isTrue(c.CDI) {
		j.warn("nri", `set enable_cdi = true in [plugins."io.containerd.grpc.v1.cri"] of containerd's main file, and restart containerd, if device plugins grant CDI devices`, "CDI is off in containerd's configuration: containerd fails containers that are granted CDI devices")
	}
	if !n.Args {
		j.warn("nri", "use "+n.newer("2.2")+", or let commands read such variables themselves", "%s %s cannot replace a device plugin's variable in a command line, $(NAME): devmgrd refuses containers that have one", n.Runtime, n.Version)
	}
	if !n.Rules {
		j.warn("nri", "use "+n.newer("2.2")+", if device plugins grant them", "%s %s cannot inject device nodes with less than read and write access: devmgrd refuses containers that are granted some", n.Runtime, n.Version)
	}
}

func (j *judge) timeout(f Facts) {
	n := f.NRI
	if n.Err != nil {
		return
	}
	written, err := time.ParseDuration(f.Containerd.RequestTimeout)
	switch {
	case n.RequestTimeout == 0 && (err != nil || written < goodRequestTimeout):
		j.warn("nri timeout", f.advice("plugin_request_timeout"), "the runtime does not report how long it waits for an answer: 2s by default")
	case n.RequestTimeout == 0: // NRI before 0.7
		j.ok("nri timeout", "the runtime's configuration lets it wait %s for an answer", written)
	case n.RequestTimeout < minRequestTimeout:
		j.fail("nri timeout", f.advice("plugin_request_timeout"), "the runtime waits %s for an answer: devmgrd may take a second, and the runtime drops a late plugin", n.RequestTimeout)
	case n.RequestTimeout < goodRequestTimeout:
		j.warn("nri timeout", f.advice("plugin_request_timeout"), "the runtime waits %s for an answer: with many containers, or little CPU, it may drop a healthy devmgrd", n.RequestTimeout)
	case n.RequestTimeout > longRequestTimeout:
		j.warn("nri timeout", "set plugin_request_timeout to 10s", "the runtime waits %s for an answer: a devmgrd that hangs can hold up every container of the node for so long", n.RequestTimeout)
	default:
		j.ok("nri timeout", "the runtime waits %s for an answer", n.RequestTimeout)
	}
	if n.RequestTimeout > 0 && f.Containerd.Err == nil && err == nil && written != n.RequestTimeout {
		j.warn("nri timeout", f.restart(), "containerd's configuration says %s, which is not in force yet", written)
	}
}

func (j *judge) validator(f Facts) {
	n, c := f.NRI, f.Containerd
	enabled, required, file, remedy := isTrue(c.Validator), c.Required, "containerd's configuration ("+c.File+")", f.dropIn()
	if f.CRIO != nil {
		enabled, required, file, remedy = f.CRIO.Validator, f.CRIO.Required, "CRI-O's configuration", crioDropIn
	}
	const bare = "containers that are created while devmgrd is away start without their devices"
	switch {
	case n.Err != nil:
	case !n.Validates:
		j.warn("validator", "use "+n.newer("2.2"), "%s %s has no validators: %s", n.Runtime, n.Version, bare)
	case f.CRIO != nil && f.CRIO.Err != nil:
		j.warn("validator", "make sure that its default validator is on: "+crioDropIn, "%v: without a validator %s", f.CRIO.Err, bare)
	case n.Runtime != containerd && f.CRIO == nil:
		j.warn("validator", "make sure that its default validator is on", "the configuration of %s is not read: without a validator %s", n.Runtime, bare)
	case c.Err != nil: // runtime has reported it
	case !enabled:
		j.warn("validator", remedy, "the default validator is off in %s: %s", file, bare)
	case slices.ContainsFunc(required, func(name string) bool { return name == "devmgrd" || strings.HasSuffix(name, "-devmgrd") }):
		j.warn("validator", "take devmgrd out of required_plugins; packaging/kubernetes/fail-closed.yaml requires it only for pods that need it",
			"%s requires devmgrd for every container: while devmgrd is away no container starts, the network's included", file)
	case f.CRIO == nil && !f.Runtime.Started.IsZero() && c.Changed.After(f.Runtime.Started.Add(startAccuracy)):
		j.warn("validator", f.restart(), "the default validator is on in containerd's configuration, but the file is newer than the running containerd")
	case f.API != nil && f.API.Policy == kube.NoPolicy && (f.API.Asking == 0 || f.API.Unbound > 0):
		j.warn("validator", "use Kubernetes 1.36 or later, or switch the beta of 1.34 and 1.35 on (docs/install.md); static pods need the annotation in their manifests anyway",
			"the default validator is on, but the API server has no mutating admission policies, so no policy can make pods require devmgrd: %s", bare)
	case f.API != nil && f.API.Err == nil && f.API.Unbound > 0:
		j.warn("validator", "kubectl apply -f /usr/share/devmgrd/kubernetes/fail-closed.yaml, once for the cluster (Kubernetes 1.36 or later); static pods need the annotation in their manifests. Recreate the pods",
			"the default validator is on, but %d of %d pods here that request devices do not require devmgrd: %s", f.API.Unbound, f.API.Asking, bare)
	case f.API != nil && f.API.Err == nil && f.API.lacks("list pods"):
		j.ok("validator", "the default validator is on; whether pods require devmgrd is not known")
	default:
		j.ok("validator", "the default validator is on")
	}
}

func (j *judge) cgroups(f Facts) {
	if err := f.Kubelet.ConfigErr; err != nil {
		j.warn("kubelet", "fix the file, or name the right one with --kubelet-config", "%v", err)
	}
	r, k := f.Runtime, f.Kubelet
	driver := r.CgroupDriver
	said := driver != ""
	if !said && r.Systemd {
		driver = "systemd"
	} else if !said && r.OCI != "" {
		driver = "cgroupfs"
	}
	const same = "drain the node, then set cgroupDriver in the kubelet's configuration and SystemdCgroup in containerd's to the same driver"
	switch {
	case r.Err != nil || driver == "":
	case k.CgroupDriver != "" && k.CgroupDriver != driver && !said:
		j.fail("cgroups", same, "the kubelet's cgroup driver is %s, the runtime's is %s, and the runtime is too old to report its own to the kubelet: pods fail, or run outside of their limits", k.CgroupDriver, driver)
	case k.CgroupDriver != "" && k.CgroupDriver != driver:
		j.warn("cgroups", same, "the kubelet's file says cgroup driver %s, the runtime %s: kubelets from 1.34 on use the runtime's, older ones do not", k.CgroupDriver, driver)
	case driver == "cgroupfs" && f.Host.Systemd && f.Host.Unified:
		j.warn("cgroups", "drain the node, then set SystemdCgroup = true in containerd's runtime options", "systemd and the runtime both manage one cgroup tree (cgroup driver cgroupfs under systemd): running containers may lose their device rules when systemd reloads")
	case driver == "systemd" && r.OCI == "crun":
		j.warn("cgroups", "use runc, if device plugins grant device nodes with less than read and write access", "crun with cgroup driver systemd supports no rule that denies access to a device: containers that are granted less than read and write fail")
	default:
		j.ok("cgroups", "cgroup driver %s", driver)
	}
}

// userNamespaces judges pods with hostUsers: false, whose containers need the owners of granted mounts mapped. The kubelet asks the runtime
// the same.
func (j *judge) userNamespaces(f Facts) {
	switch r := f.Runtime; {
	case r.Err != nil:
	case !r.UserNamespaces:
		j.warn("namespaces", "use containerd 2.0 or CRI-O 1.30 or later, with runc 1.2 or crun 1.9 or later, if pods set hostUsers: false",
			"%s %s does not report that it maps mounts into a pod's own user namespace: the kubelet starts no pod with hostUsers: false", r.Name, r.Version)
	default:
		j.ok("namespaces", "mounts are mapped for pods with hostUsers: false")
	}
}

// advice returns the remedy for an NRI setting of the node's runtime.
func (f Facts) advice(what string) string {
	if f.unit() == crio {
		return map[string]string{
			"disable":                "set enable_nri = true in [crio.nri] (devmgrd's drop-in does): " + crioDropIn,
			"plugin_request_timeout": "set nri_plugin_request_timeout = \"10s\" in [crio.nri] (devmgrd's drop-in does): " + crioDropIn,
		}[what]
	}
	if f.old() {
		return oldDropIn
	}
	return f.dropIn()
}

// dropIn returns how containerd gets devmgrd's drop-in.
func (f Facts) dropIn() string {
	if rancher := f.rancher(); rancher != "" {
		return "append /usr/share/devmgrd/containerd/devmgrd.toml, without its version, to {{ template \"base\" . }} in /var/lib/rancher/" + rancher +
			"/agent/etc/containerd/config-v3.toml.tmpl, and " + f.restart()
	}
	return dropIn
}

// restart returns how containerd reads its configuration again.
func (f Facts) restart() string {
	return "restart " + f.unit() + ", which touches no running container"
}

// unit returns the runtime's systemd unit, for a remedy.
func (f Facts) unit() string {
	if f.NRI.Runtime == "cri-o" || f.Runtime.Name == "cri-o" || strings.HasSuffix(f.Runtime.Socket, "/crio.sock") {
		return crio
	}
	switch f.rancher() {
	case "k3s":
		return "k3s-agent, on a server k3s"
	case "rke2":
		return "rke2-agent, on a server rke2-server"
	}
	return containerd
}

// rancher returns whose containerd it is, k3s or rke2; empty: neither's.
func (f Facts) rancher() string {
	if f.Runtime.Socket != rancherSocket {
		return ""
	}
	if strings.HasPrefix(f.Containerd.File, "/var/lib/rancher/rke2/") {
		return "rke2"
	}
	return "k3s"
}

// old reports whether the runtime is containerd 1, whose configuration has version 2 and NRI off.
func (f Facts) old() bool {
	return (f.Runtime.Name == containerd || f.NRI.Runtime == containerd) && strings.HasPrefix(strings.TrimPrefix(cmp.Or(f.Runtime.Version, f.NRI.Version), "v"), "1.")
}

// newer returns the first release of the runtime with all features, or with those of a release of containerd.
func (n NRI) newer(release string) string {
	if n.Runtime == "cri-o" {
		return "CRI-O 1.34 or later"
	}
	return "containerd " + release + " or later"
}

// without reports whether one of these plugins is disabled as a whole.
func (c Containerd) without(plugins ...string) bool {
	return slices.ContainsFunc(plugins, func(p string) bool { return slices.Contains(c.Disabled, p) })
}

func isTrue(b *bool) bool { return b != nil && *b }
