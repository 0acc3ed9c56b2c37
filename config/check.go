package config

import (
	"fmt"
	"maps"
	"net"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/devmgrd/devmgrd/internal/device"
)

const (
	maxSocketPath = 107 // a unix socket's path with its terminating zero has to fit into 108 bytes: unix(7)
	maxMessage    = 1 << 30
	maxDevices    = 10_000_000
	maxResources  = 4096
	maxSliced     = 16384            // of a resource, in slices of 64: each is an object of the API server
	maxHold       = 40 * time.Second // the kubelet waits for 45 s
	maxTotal      = 64 << 30
	maxTimeout    = time.Hour
	maxGrace      = 24 * time.Hour
	maxSuspension = 24 * time.Hour
	maxGiveUp     = 30 * 24 * time.Hour
	maxCommand    = time.Hour
	minInterval   = 10 * time.Second
	maxInterval   = 24 * time.Hour
	maxNRIWait    = time.Second // the runtime calls its plugins one after the other and drops a late one after 2 s
)

// check returns every rule that c breaks, without the source of the value.
func (c *Config) check() []Mistake {
	var r rules
	r.nodeName(c.NodeName)

	for name, n := range c.Node.Expected {
		if _, err := device.ParseResourceName(name); err != nil {
			r.broken("node.expected", quote(name)+" is not the name of an extended resource", "write one like vendor.example/gpu")
		}
		if n < 0 || n > maxDevices {
			r.broken("node.expected", fmt.Sprintf("%d devices of %s are out of range", n, quote(name)), fmt.Sprintf("choose from 0 to %d", maxDevices))
		}
	}

	p := c.Plugins
	paths := r.path("stateDir", c.StateDir) && r.path("runDir", c.RunDir)
	if paths && c.StateDir == c.RunDir {
		r.broken("stateDir", "is the same directory as runDir", "choose two directories: runDir is emptied at boot, stateDir must not be")
	}
	sockets, kubelet := r.path("plugins.socketDir", p.SocketDir), r.path("plugins.kubeletDir", p.KubeletDir)
	if sockets {
		r.socket("plugins.socketDir", path.Join(p.SocketDir, "kubelet.sock"))
	}
	if sockets && kubelet && p.Redirect && within(p.SocketDir, p.KubeletDir) {
		r.broken("plugins.socketDir", fmt.Sprintf("lies in plugins.kubeletDir (%s), where the kubelet deletes every socket when it starts", p.KubeletDir),
			"choose another directory or, on a node without a kubelet, set plugins.redirect to false")
	}
	if r.path("plugins.registryDir", p.RegistryDir) {
		switch registry := c.Plugins.KubeletRegistryDir(); {
		case sockets && (within(p.RegistryDir, p.SocketDir) || within(p.SocketDir, p.RegistryDir)):
			r.broken("plugins.registryDir", fmt.Sprintf("and plugins.socketDir (%s) overlap", p.SocketDir), "choose a directory next to it")
		case kubelet && p.Redirect && within(p.RegistryDir, registry):
			r.broken("plugins.registryDir", fmt.Sprintf("lies in %s, whose plugins the kubelet registers", registry),
				"choose another directory or, on a node without a kubelet, set plugins.redirect to false")
		}
	}
	for _, d := range []struct{ key, path string }{{"plugins.socketDir", p.SocketDir}, {"plugins.registryDir", p.RegistryDir}} {
		if own := c.PluginPodsDir(); within(d.path, own) {
			r.broken(d.key, fmt.Sprintf("lies in %s, where plugin pods have their own directories", own), "choose a directory next to it")
		}
	}
	r.duration("plugins.gracePeriod", p.GracePeriod, 0, maxGrace)
	r.duration("plugins.allocateTimeout", p.AllocateTimeout, time.Millisecond, maxTimeout)
	r.duration("plugins.preferredTimeout", p.PreferredTimeout, time.Millisecond, maxTimeout)
	r.duration("plugins.preStartTimeout", p.PreStartTimeout, time.Millisecond, maxTimeout)
	r.oneOf("plugins.onDuplicate", p.OnDuplicate, Replace, Reject)
	r.number("plugins.maxMessageBytes", p.MaxMessageBytes, maxMessage)
	r.number("plugins.maxDevices", p.MaxDevices, maxDevices)
	r.number("plugins.maxResources", p.MaxResources, maxResources)
	r.number("plugins.maxTotalBytes", p.MaxTotalBytes, maxTotal)
	r.patterns("plugins.ignoredResources", p.IgnoredResources)
	for _, s := range p.AllowedAnnotations {
		if key := strings.TrimSuffix(s, "*"); key == "" || strings.ContainsAny(key, "*, \x00\n") {
			r.broken("plugins.allowedAnnotations", quote(s)+" is not the key of an annotation", "write one like run.oci.handler, or io.katacontainers.* for all that begin so")
		}
	}
	r.oneOf("plugins.rules", p.Rules, Off, Report, Enforce)
	r.path("plugins.rulesFile", p.RulesFile)

	r.oneOf("kubernetes.mode", c.Kubernetes.Mode, Cluster, NoCluster)
	if c.Kubernetes.Kubeconfig != "" {
		r.path("kubernetes.kubeconfig", c.Kubernetes.Kubeconfig)
	}
	if r.path("nri.socket", c.NRI.Socket) {
		r.socket("nri.socket", c.NRI.Socket)
	}
	if i := c.NRI.Index; len(i) != 2 || strings.Trim(i, "0123456789") != "" {
		r.broken("nri.index", quote(i)+" is not an index", "write two digits, like 05")
	}
	r.duration("nri.maxWait", c.NRI.MaxWait, 0, maxNRIWait)
	r.oneOf("topology.policy", c.Topology.Policy, "none", "best-effort", "restricted", "single-numa-node")
	r.oneOf("topology.scope", c.Topology.Scope, "container", "pod")
	r.allocation(c.Allocation)
	r.dra(c)
	r.giveUp(c.Wait.GiveUpAfter)
	r.release(c.Release)
	r.oneOf("health.onMissingDevices", c.Health.OnMissingDevices, Ignore, Event, Evict)
	r.oneOf("health.onDeviceFailure", c.Health.OnDeviceFailure, Ignore, Event, Evict)
	r.oneOf("health.onUnlisted", c.Health.OnUnlisted, Ignore, Failure)
	r.byResource("health.onFlapping", c.Health.OnFlapping)
	for _, name := range slices.Sorted(maps.Keys(c.Health.OnFlapping)) {
		r.oneOf("health.onFlapping", c.Health.OnFlapping[name], Suspend, Ignore)
	}
	r.commands("health.command", c.Health.Command)
	r.duration("health.interval", c.Health.Interval, minInterval, maxInterval)
	r.duration("health.timeout", c.Health.Timeout, time.Second, maxCommand)
	r.duration("health.suspendFor", c.Health.SuspendFor, time.Second, maxSuspension)
	if r.path("podResources.socket", c.PodResources.Socket) {
		r.socket("podResources.socket", c.PodResources.Socket)
	}
	switch theirs := c.PodResources.KubeletSocket; {
	case theirs == "" && c.PodResources.Takeover:
		r.broken("podResources.takeover", "needs podResources.kubeletSocket, the path to take over", "set podResources.kubeletSocket, or this to false")
	case theirs == "":
	case theirs == c.PodResources.Socket:
		r.broken("podResources.socket", "is the same as podResources.kubeletSocket, which is the kubelet's",
			"choose another path; to serve at the kubelet's, too, set podResources.takeover to true")
	case r.path("podResources.kubeletSocket", theirs):
		r.socket("podResources.kubeletSocket", theirs)
	}
	if r.path("admin.socket", c.Admin.Socket) {
		r.socket("admin.socket", c.Admin.Socket)
		if c.Admin.Socket == c.PodResources.Socket {
			r.broken("admin.socket", "is the same as podResources.socket", "choose another path for one of them")
		}
	}
	if theirs := c.PodResources.KubeletSocket; theirs != "" && path.Dir(theirs) == path.Dir(c.PodResources.Socket) && c.PodResources.Takeover {
		r.broken("podResources.socket", "is in the kubelet's directory, which podResources.takeover uses", "choose another directory")
	}
	if c.Admin.Socket == c.PodResources.KubeletSocket {
		r.broken("admin.socket", "is the same as podResources.kubeletSocket", "choose another path")
	}
	r.listen("metrics.listen", c.Metrics.Listen)
	for _, name := range c.Metrics.HostNames {
		r.hostName("metrics.hostNames", name)
	}
	r.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	r.oneOf("log.format", c.Log.Format, "text", "json")
	return r.mistakes
}

// rules collects mistakes.
type rules struct{ mistakes []Mistake }

func (r *rules) broken(key, problem, remedy string) {
	r.mistakes = append(r.mistakes, Mistake{Key: key, Problem: problem, Remedy: remedy})
}

// nodeName requires a DNS subdomain (RFC 1123), as Kubernetes does for the name of a Node.
func (r *rules) nodeName(s string) {
	ok := s != "" && len(s) <= 253
	for label := range strings.SplitSeq(s, ".") {
		ok = ok && label != "" && strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" &&
			label[0] != '-' && label[len(label)-1] != '-'
	}
	if !ok {
		r.broken("nodeName", quote(s)+" cannot be the name of a node",
			"set it to the name that kubectl get nodes shows: lower-case letters, digits, '-' and '.', at most 253")
	}
}

// path requires a clean absolute path, so that two spellings of a directory cannot hide a contradiction.
func (r *rules) path(key, s string) bool {
	switch {
	case !path.IsAbs(s):
		r.broken(key, quote(s)+" is not an absolute path", "write it from the root, like /var/lib/devmgrd")
	case path.Clean(s) != s:
		r.broken(key, quote(s)+" is not a clean path", "write it as "+path.Clean(s))
	case strings.ContainsAny(s, "\x00\n"):
		r.broken(key, quote(s)+" contains a NUL or a line break", "remove it")
	default:
		return true
	}
	return false
}

// socket requires a path short enough for a unix socket.
func (r *rules) socket(key, s string) {
	if len(s) > maxSocketPath {
		r.broken(key, fmt.Sprintf("the path of socket %s has %d bytes, and Linux allows %d", quote(s), len(s), maxSocketPath), "choose a shorter directory")
	}
}

func (r *rules) duration(key string, d, least, most time.Duration) {
	if d < least || d > most {
		r.broken(key, fmt.Sprintf("%v is out of range", d), fmt.Sprintf("choose from %v to %v", least, most))
	}
}

func (r *rules) number(key string, n, most int) {
	if n < 1 || n > most {
		r.broken(key, fmt.Sprintf("%d is out of range", n), fmt.Sprintf("choose from 1 to %d", most))
	}
}

// patterns requires names of extended resources, or a domain with /* for all of its resources.
func (r *rules) patterns(key string, list []string) {
	for _, s := range list {
		if !isPattern(s) {
			r.broken(key, quote(s)+" is not an extended resource", "write a name like vendor.example/licence, or vendor.example/* for all of a domain")
		}
	}
}

// isPattern reports whether a text is the name of an extended resource, or a domain with /*.
func isPattern(s string) bool {
	if domain, ok := strings.CutSuffix(s, "/*"); ok {
		s = domain + "/any"
	}
	_, err := device.ParseResourceName(s)
	return err == nil
}

// byResource requires patterns of resource names as keys, or "*" for all.
func (r *rules) byResource(key string, values map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if name != "*" && !isPattern(name) {
			r.broken(key, quote(name)+" is not an extended resource", `write a name like vendor.example/gpu, vendor.example/* for all of a domain, or "*" for all`)
		}
	}
}

// dra requires patterns of resource names, and an API server that has slices.
func (r *rules) dra(c *Config) {
	for _, name := range c.DRA.Resources {
		if name != "*" && !isPattern(name) {
			r.broken("dra.resources", quote(name)+" is not an extended resource", `write a name like vendor.example/gpu, vendor.example/* for all of a domain, or "*" for all`)
		}
	}
	if len(c.DRA.Resources) > 0 && c.Kubernetes.Mode == NoCluster {
		r.broken("dra.resources", "needs an API server, and kubernetes.mode is "+NoCluster, "leave it empty, or set kubernetes.mode to "+Cluster)
	}
	r.number("dra.maxDevices", c.DRA.MaxDevices, maxSliced)
	r.duration("dra.hold", c.DRA.Hold, 0, maxHold)
	r.path("dra.cdiDir", c.DRA.CDIDir)
}

// giveUp requires reasons or patterns of resource names, and durations.
func (r *rules) giveUp(after map[string]string) {
	const key = "wait.giveUpAfter"
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if name != "*" && !isPattern(name) && device.Explain(device.Reason(name)).Meaning == "" {
			r.broken(key, quote(name)+" is neither a reason nor an extended resource",
				`write a reason that devmgrd explain shows, such as PluginMissing, a name like vendor.example/gpu, vendor.example/* or "*"`)
		}
		d, err := time.ParseDuration(after[name])
		if err != nil {
			r.broken(key, quote(after[name])+" of "+quote(name)+" is not a duration", "write it like 30m")
			continue
		}
		r.duration(key, d, time.Second, maxGiveUp)
	}
}

// commands checks commands by resource. One without words: there is none for these resources.
func (r *rules) commands(key string, all map[string]string) {
	r.byResource(key, all)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if words := strings.Fields(all[name]); len(words) > 0 {
			r.path(key, words[0])
		}
	}
}

func (r *rules) release(c Release) {
	r.byResource("release.check", c.Check)
	for _, name := range slices.Sorted(maps.Keys(c.Check)) {
		r.oneOf("release.check", c.Check[name], NoCheck, Cgroup, Openers)
	}
	r.commands("release.command", c.Command)
	r.duration("release.timeout", c.Timeout, time.Second, maxCommand)
	r.duration("release.networkTimeout", c.NetworkTimeout, 0, maxCommand)
	for _, s := range c.Ignore {
		if path.IsAbs(s) {
			r.path("release.ignore", s)
		} else if strings.HasSuffix(s, ".service") && !strings.ContainsAny(s, "/*") {
			continue
		} else if _, err := path.Match(s, ""); err != nil || strings.Count(s, "/") != 1 {
			r.broken("release.ignore", quote(s)+" is neither an executable, a service nor a pod", "write a path like /usr/bin/nvidia-persistenced, a service like nvidia-persistenced.service, or namespace/name with * for any text")
		}
	}
	for _, s := range c.SharedNodes {
		if _, err := path.Match(s, ""); err != nil || !path.IsAbs(s) {
			r.broken("release.sharedNodes", quote(s)+" is not a device node", "write a path like /dev/nvidiactl, with * for any text")
		}
	}
	if r.path("release.socket", c.Socket) {
		r.socket("release.socket", c.Socket)
	}
}

func (r *rules) allocation(a Allocation) {
	r.byResource("allocation.order", a.Order)
	for _, name := range slices.Sorted(maps.Keys(a.Order)) {
		r.oneOf("allocation.order", a.Order[name], Lowest, Pack, Spread, Oldest)
	}
	r.byResource("allocation.groups", a.Groups)
	for _, name := range slices.Sorted(maps.Keys(a.Groups)) {
		if _, err := regexp.Compile(a.Groups[name]); err != nil || a.Groups[name] == "" {
			r.broken("allocation.groups", quote(a.Groups[name])+" of "+quote(name)+" is not a regular expression", "write one like ^(.*)::, or "+NUMAGroups)
		}
	}
}

// hostName requires a name without a port, as in a Host header.
func (r *rules) hostName(key, s string) {
	if s == "" || strings.ContainsAny(s, " /:*\x00\n") {
		r.broken(key, quote(s)+" is not the name of a host", "write a name like node-1.example.com, without a port")
	}
}

// listen requires host:port with a numeric port, the path of a unix socket, or "". The host may be empty: all addresses.
func (r *rules) listen(key, s string) {
	if s == "" {
		return
	}
	if path, unix := strings.CutPrefix(s, UnixPrefix); unix {
		if r.path(key, path) {
			r.socket(key, path)
		}
		return
	}
	_, port, err := net.SplitHostPort(s)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		r.broken(key, quote(s)+" is not an address to listen on", `write host:port like 127.0.0.1:9464, unix: and a path, or "" for none`)
	}
}

func (r *rules) oneOf(key, s string, words ...string) {
	if !slices.Contains(words, s) {
		r.broken(key, quote(s)+" is not a choice", "choose one of "+strings.Join(words, ", "))
	}
}

// within reports whether a is dir or lies below it.
func within(a, dir string) bool {
	return a == dir || strings.HasPrefix(a, strings.TrimSuffix(dir, "/")+"/")
}
