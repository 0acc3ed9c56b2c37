package config

import (
	"strings"
	"testing"
)

func TestRules(t *testing.T) {
	long := "/" + strings.Repeat("x", 120)
	for _, c := range []struct {
		set  string // comma-free --set flags, separated by spaces
		keys string // of the mistakes, separated by spaces
	}{
		{"", ""},
		{"nodeName=a.b-c.d1", ""},
		{"nodeName=Worker", "nodeName"},
		{"nodeName=-a", "nodeName"},
		{"nodeName=a..b", "nodeName"},
		{"nodeName=" + strings.Repeat("a", 254), "nodeName"},
		{"stateDir=/a/../b", "stateDir"},
		{"stateDir=", "stateDir"},
		{"stateDir=/run/devmgrd", "stateDir"},
		{"runDir=/a/", "runDir"},
		{"runDir=" + long, "admin.socket plugins.socketDir podResources.socket release.socket"},
		{"nri.socket=" + long, "nri.socket"},
		{"plugins.socketDir=/" + strings.Repeat("x", 93), ""},
		{"plugins.socketDir=/" + strings.Repeat("x", 94), "plugins.socketDir"},
		{"plugins.socketDir=/var/lib/kubelet/device-plugins", "plugins.socketDir"},
		{"plugins.socketDir=/var/lib/kubelet/device-plugins/ours", "plugins.socketDir"},
		{"plugins.socketDir=/var/lib/kubelet/device-plugins-2", ""},
		{"plugins.socketDir=/var/lib/kubelet/device-plugins plugins.redirect=false", ""},
		{"plugins.registryDir=/run/devmgrd/device-plugins/registry", "plugins.registryDir"},
		{"plugins.registryDir=/run/devmgrd", "plugins.registryDir"},
		{"plugins.registryDir=/var/lib/kubelet/plugins_registry", "plugins.registryDir"},
		{"plugins.registryDir=/var/lib/kubelet/plugins_registry plugins.redirect=false", ""},
		{"plugins.registryDir=registry", "plugins.registryDir"},
		{"plugins.onDuplicate=reject kubernetes.mode=none topology.policy=single-numa-node topology.scope=pod", ""},
		{"plugins.onDuplicate=no kubernetes.mode=x topology.policy=loose topology.scope=node health.onMissingDevices=kill health.onDeviceFailure=kill", "health.onDeviceFailure health.onMissingDevices kubernetes.mode plugins.onDuplicate topology.policy topology.scope"},
		{"plugins.preferredTimeout=0s", "plugins.preferredTimeout"},
		{"plugins.gracePeriod=0s", ""},
		{"plugins.gracePeriod=-1s", "plugins.gracePeriod"},
		{"plugins.allocateTimeout=0s plugins.preStartTimeout=2h", "plugins.allocateTimeout plugins.preStartTimeout"},
		{"plugins.maxMessageBytes=1073741824", ""},
		{"plugins.maxMessageBytes=1073741825", "plugins.maxMessageBytes"},
		{"plugins.maxDevices=0 plugins.maxResources=-1", "plugins.maxDevices plugins.maxResources"},
		{"plugins.ignoredResources=a.example/x,b.example/*", ""},
		{"plugins.ignoredResources=cpu,*/x,kubernetes.io/*", "plugins.ignoredResources plugins.ignoredResources plugins.ignoredResources"},
		{"plugins.allowedAnnotations=run.oci.handler,io.katacontainers.*", ""},
		{"plugins.allowedAnnotations=*,a*b", "plugins.allowedAnnotations plugins.allowedAnnotations"},
		{"node.expected=a.example/x=8,a.example/y=0", ""},
		{"node.expected=cpu=8,a.example/x=-1", "node.expected node.expected"},
		{"allocation.order=*=oldest,a.example/*=pack,a.example/x=spread allocation.groups=*=numa,a.example/x=^(.*)::", ""},
		{"allocation.order=cpu=pack,a.example/x=first", "allocation.order allocation.order"},
		{"allocation.groups=a.example/x=(,**=numa,a.example/y=", "allocation.groups allocation.groups allocation.groups"},
		{"health.onFlapping=*=none,a.example/*=suspend", ""},
		{"health.onFlapping=gpu=none,a.example/*=cordon", "health.onFlapping health.onFlapping"},
		{"health.suspendFor=1s", ""},
		{"health.suspendFor=25h", "health.suspendFor"},
		{"release.check=*=openers,a.example/*=off,a.example/x=cgroup", ""},
		{"release.check=gpu=off,a.example/*=scan", "release.check release.check"},
		{"release.command=a.example/*=/usr/local/sbin/reset,a.example/x=", ""},
		{"release.command=gpu=/bin/true,a.example/x=reset", "release.command release.command"},
		{"release.timeout=1ms", "release.timeout"},
		{"release.ignore=/usr/bin/agent,agent.service,gpu-operator/*", ""},
		{"release.ignore=agent,a/b/c,/usr//bin/agent,a/[", "release.ignore release.ignore release.ignore release.ignore"},
		{"release.sharedNodes=/dev/vendor-ctl*", ""},
		{"release.sharedNodes=vendor-ctl,/dev/[", "release.sharedNodes release.sharedNodes"},
		{"wait.giveUpAfter=PluginMissing=30m,a.example/*=1h,*=24h", ""},
		{"wait.giveUpAfter=PluginGone=30m,a.example/x=soon,a.example/y=1ms", "wait.giveUpAfter wait.giveUpAfter wait.giveUpAfter"},
		{"kubernetes.kubeconfig=admin.conf", "kubernetes.kubeconfig"},
		{"nri.index=5", "nri.index"},
		{"nri.index=ab", "nri.index"},
		{"nri.maxWait=0s", ""},
		{"nri.maxWait=1001ms", "nri.maxWait"},
		{"podResources.socket=/" + strings.Repeat("x", 107), "podResources.socket"},
		{"podResources.socket=pod.sock podResources.kubeletSocket=/a/../b", "podResources.kubeletSocket podResources.socket"},
		{"podResources.socket=/var/lib/kubelet/pod-resources/kubelet.sock", "podResources.socket"},
		{"podResources.kubeletSocket=", ""},
		{"podResources.kubeletSocket= podResources.takeover=true", "podResources.takeover"},
		{"podResources.takeover=true plugins.checkpointMirror=false", ""},
		{"admin.socket=admin.sock", "admin.socket"},
		{"admin.socket=/a podResources.socket=/a", "admin.socket"},
		{"admin.socket=/var/lib/kubelet/pod-resources/kubelet.sock", "admin.socket"},
		{"podResources.socket=/var/lib/kubelet/pod-resources/own.sock podResources.takeover=true", "podResources.socket"},
		{"metrics.listen=:9464", ""},
		{"metrics.listen=[::1]:9464", ""},
		{"metrics.listen=9464", "metrics.listen"},
		{"metrics.listen=unix:/run/devmgrd/metrics.sock metrics.hostNames=a.example,b", ""},
		{"metrics.listen=unix:metrics.sock", "metrics.listen"},
		{"metrics.listen=unix:" + long, "metrics.listen"},
		{"metrics.hostNames=a.example:9464,*.example", "metrics.hostNames metrics.hostNames"},
		{"metrics.listen=localhost:http", "metrics.listen"},
		{"log.level=loud log.format=xml", "log.format log.level"},
	} {
		o := Options{File: write(t, ""), Set: strings.Fields(c.set)}
		if c.keys == "" {
			mustLoad(t, o)
			continue
		}
		var keys []string
		for _, m := range mistakes(t, o) {
			keys = append(keys, m.Key)
			if m.Problem == "" || m.Remedy == "" || m.Source == "" || strings.Contains(m.String(), "\n") {
				t.Errorf("%s: %+v", c.set, m)
			}
		}
		if got := strings.Join(keys, " "); got != c.keys {
			t.Errorf("%s: wrong keys %q, want %q", c.set, got, c.keys)
		}
	}
}

func TestNearest(t *testing.T) {
	candidates := []string{"log.level", "log.format", "nri.socket", "nri.index"}
	for s, want := range map[string]string{"log.levle": "log.level", "nri.sock": "nri.socket", "LOG.FORMAT": "log.format", "admin.sockets": "", "x": "", "nri": ""} {
		if got, _ := nearest(s, candidates); got != want {
			t.Errorf("%s: did you mean %q, want %q", s, got, want)
		}
	}
}

// TestNoGuessWithoutAReason holds words that look like keys from a distance only.
func TestNoGuessWithoutAReason(t *testing.T) {
	for _, key := range []string{"plugins.preferredDeadline", "plugins.registrations", "kubernetes.credentials", "podResources.endpoint", "topology.nodes"} {
		got := mistakes(t, Options{File: write(t, ""), Set: []string{key + "=1"}})
		if len(got) != 1 || got[0].Problem != "there is no such key" || got[0].Remedy != "remove it" {
			t.Errorf("%s: %v", key, got)
		}
	}
}
