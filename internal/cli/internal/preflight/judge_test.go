package preflight_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/devmgrd/devmgrd/internal/cli/internal/preflight"
	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/kube"
	"github.com/devmgrd/devmgrd/internal/nri"
)

const gpu device.ResourceName = "vendor.example/gpu"

// fit is a node on which nothing has to be said.
func fit() preflight.Facts {
	on := true
	return preflight.Facts{
		Root:       true,
		ConfigFile: "/etc/devmgrd/config.yaml",
		State:      preflight.State{Dir: "/var/lib/devmgrd", Version: 2, Pods: 3},
		Sockets:    []preflight.Socket{{Key: "admin.socket", At: "/run/devmgrd/admin.sock"}},
		Runtime:    preflight.Runtime{Socket: "/run/containerd/containerd.sock", Name: "containerd", Version: "v2.4.2", CgroupDriver: "systemd", OCI: "runc", Systemd: true, UserNamespaces: true, Started: time.Unix(2000, 0)},
		NRI:        preflight.NRI{Socket: "/var/run/nri/nri.sock", Greeting: nri.Greeting{Runtime: "containerd", Version: "v2.4.2", RequestTimeout: 10 * time.Second, CDI: true, Rules: true, Args: true, Validates: true}},
		Containerd: preflight.Containerd{File: "/etc/containerd/config.toml", Changed: time.Unix(1000, 0), RequestTimeout: "10s", Validator: &on},
		Host:       preflight.Host{Systemd: true, Unified: true},
		API:        &preflight.API{NodeName: "n", Node: true, Rights: []kube.Right{{What: "list pods"}}},
		Kubelet:    preflight.Kubelet{CgroupDriver: "systemd"},
		Checkpoint: preflight.Checkpoint{Path: "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"},
	}
}

// remarks returns what is not ok, as "verdict check".
func remarks(t *testing.T, f preflight.Facts) string {
	var all []string
	for _, one := range preflight.Judge(f) {
		if (one.Verdict == preflight.OK) != (one.Remedy == "") || one.Text == "" || one.Check == "" {
			t.Errorf("what is not ok has a remedy, and nothing else does: %+v", one)
		}
		if one.Verdict != preflight.OK {
			all = append(all, string(one.Verdict)+" "+one.Check)
		}
	}
	return strings.Join(all, ", ")
}

// One fact is changed at a time, from a node on which all is well.
func TestJudge(t *testing.T) {
	if got := remarks(t, fit()); got != "" {
		t.Fatalf("of a fit node is said: %s", got)
	}
	on, off, broken := true, false, errors.New("broken")
	for name, test := range map[string]struct {
		change func(*preflight.Facts)
		want   string
	}{
		"openers answer":            {func(f *preflight.Facts) { f.Openers = &preflight.Openers{Processes: 500, CPU: time.Second} }, ""},
		"openers do not answer":     {func(f *preflight.Facts) { f.Openers = &preflight.Openers{Err: broken} }, "FAIL openers"},
		"a command":                 {func(f *preflight.Facts) { f.Commands = []preflight.Command{{Path: "/reset"}} }, ""},
		"a command is missing":      {func(f *preflight.Facts) { f.Commands = []preflight.Command{{Path: "/reset", Err: broken}} }, "FAIL commands"},
		"a command without systemd": {func(f *preflight.Facts) { f.Commands, f.Host.Systemd = []preflight.Command{{Path: "/reset"}}, false }, "FAIL commands"},
		"agents read the kubelet's": {func(f *preflight.Facts) { f.API.Neighbours.Readers = []string{"gpu-operator/dcgm"} }, "warn agents"},
		"agents, with the take-over": {func(f *preflight.Facts) {
			f.API.Neighbours.Readers, f.Takeover = []string{"gpu-operator/dcgm"}, true
		}, ""},
		"a CDI strategy": {func(f *preflight.Facts) { f.API.Neighbours.CDIPlugins = []string{"gpu-operator/plugin"} }, ""},
		"a CDI strategy, on a runtime without CDI": {func(f *preflight.Facts) {
			f.API.Neighbours.CDIPlugins, f.NRI.CDI = []string{"gpu-operator/plugin"}, false
		}, "warn nri, FAIL cdi"},
		"a validator before devmgrd": {func(f *preflight.Facts) { f.API.Neighbours.Validators = []string{"a", "b", "c", "d", "e"} }, "warn validator pod"},
		"a validator, served": {func(f *preflight.Facts) {
			f.API.Neighbours.Validators = []string{"gpu-operator/validator"}
			f.Daemon = &preflight.Daemon{Version: "v1", Serves: map[device.ResourceName]bool{"nvidia.com/gpu": true}}
		}, ""},
		"not root":                 {func(f *preflight.Facts) { f.Root = false }, "FAIL user"},
		"the defaults":             {func(f *preflight.Facts) { f.ConfigFile = "" }, ""},
		"it runs":                  {func(f *preflight.Facts) { f.Daemon = &preflight.Daemon{Version: "v1"} }, ""},
		"a part is not ready":      {func(f *preflight.Facts) { f.Daemon = &preflight.Daemon{Problems: []string{"x", "y"}} }, "FAIL daemon, FAIL daemon"},
		"no state file":            {func(f *preflight.Facts) { f.State = preflight.State{} }, ""},
		"books in use":             {func(f *preflight.Facts) { f.State = preflight.State{InUse: true} }, ""},
		"books of a newer version": {func(f *preflight.Facts) { f.State.Err = broken }, "FAIL state"},
		"damaged state file":       {func(f *preflight.Facts) { f.State.Err, f.State.Damaged = broken, true }, "warn state"},
		"a socket is taken":        {func(f *preflight.Facts) { f.Sockets[0].Err = broken }, "FAIL socket"},
		"systemd has a socket":     {func(f *preflight.Facts) { f.Sockets[0].Init = true }, ""},
		"the port is taken":        {func(f *preflight.Facts) { f.Sockets = []preflight.Socket{{Key: "metrics.listen", Err: broken}} }, "warn socket"},
		"a socket is taken by devmgrd": {func(f *preflight.Facts) {
			f.Sockets[0].Err, f.Daemon = broken, &preflight.Daemon{}
		}, ""},
		"no runtime": {func(f *preflight.Facts) {
			f.Runtime = preflight.Runtime{Err: broken}
			f.NRI = preflight.NRI{Err: broken}
		}, "FAIL runtime, FAIL nri"},
		"NRI is off": {func(f *preflight.Facts) {
			f.NRI = preflight.NRI{Err: broken, Missing: true}
			f.Containerd.Disable = &on
		}, "FAIL nri"},
		"NRI is off by default": {func(f *preflight.Facts) {
			f.NRI = preflight.NRI{Err: broken, Missing: true}
			f.Runtime.Version = "v1.7.2"
		}, "FAIL nri"},
		"NRI is elsewhere":    {func(f *preflight.Facts) { f.NRI = preflight.NRI{Err: broken}; f.Containerd.Socket = "/x" }, "FAIL nri"},
		"NRI is shut":         {func(f *preflight.Facts) { f.NRI = preflight.NRI{Err: broken}; f.Containerd.DisableConnections = &on }, "FAIL nri"},
		"NRI does not answer": {func(f *preflight.Facts) { f.NRI.Err = broken }, "FAIL nri"},
		"an old NRI": {func(f *preflight.Facts) {
			f.NRI.CDI, f.NRI.Rules, f.NRI.Args, f.NRI.Validates = false, false, false, false
		}, "warn nri, warn nri, warn nri, warn validator"},
		"the default timeout":        {func(f *preflight.Facts) { f.NRI.RequestTimeout, f.Containerd.RequestTimeout = 2*time.Second, "" }, "warn nri timeout"},
		"a timeout too short":        {func(f *preflight.Facts) { f.NRI.RequestTimeout, f.Containerd.RequestTimeout = time.Second, "1s" }, "FAIL nri timeout"},
		"a timeout too long":         {func(f *preflight.Facts) { f.NRI.RequestTimeout, f.Containerd.RequestTimeout = time.Hour, "1h" }, "warn nri timeout"},
		"a timeout to come":          {func(f *preflight.Facts) { f.Containerd.RequestTimeout = "20s" }, "warn nri timeout"},
		"no validator":               {func(f *preflight.Facts) { f.Containerd.Validator = nil }, "warn validator"},
		"the validator is off":       {func(f *preflight.Facts) { f.Containerd.Validator = &off }, "warn validator"},
		"required of all":            {func(f *preflight.Facts) { f.Containerd.Required = []string{"05-devmgrd"} }, "warn validator"},
		"a validator to come":        {func(f *preflight.Facts) { f.Containerd.Changed = time.Unix(3000, 0) }, "warn validator"},
		"no policy":                  {func(f *preflight.Facts) { f.API.Asking, f.API.Unbound = 3, 1 }, "warn validator"},
		"containerd 1.7 without CDI": {func(f *preflight.Facts) { f.Runtime.Version, f.NRI.Version = "1.7.35", "1.7.35" }, "warn nri"},
		"containerd 1.7 with CDI": {func(f *preflight.Facts) {
			f.Runtime.Version, f.NRI.Version, f.Containerd.CDI = "1.7.35", "1.7.35", &on
		}, ""},
		"no policies":         {func(f *preflight.Facts) { f.API.Policy = kube.NoPolicy }, "warn validator"},
		"no need of policies": {func(f *preflight.Facts) { f.API.Policy, f.API.Asking = kube.NoPolicy, 3 }, ""},
		"policies":            {func(f *preflight.Facts) { f.API.Policy = "v1" }, ""},
		"another runtime":     {func(f *preflight.Facts) { f.Runtime.Name, f.NRI.Runtime = "cri-o", "cri-o" }, "warn validator"},
		"CRI-O's validator is off": {func(f *preflight.Facts) {
			f.Runtime.Name, f.NRI.Runtime, f.CRIO = "cri-o", "cri-o", &preflight.CRIO{}
		}, "warn validator"},
		"CRI-O's validator is on": {func(f *preflight.Facts) {
			f.Runtime.Name, f.NRI.Runtime, f.CRIO = "cri-o", "cri-o", &preflight.CRIO{Validator: true}
		}, ""},
		"CRI-O requires devmgrd of all": {func(f *preflight.Facts) {
			f.Runtime.Name, f.NRI.Runtime, f.CRIO = "cri-o", "cri-o", &preflight.CRIO{Validator: true, Required: []string{"devmgrd"}}
		}, "warn validator"},
		"CRI-O does not say": {func(f *preflight.Facts) {
			f.Runtime.Name, f.NRI.Runtime, f.CRIO = "cri-o", "cri-o", &preflight.CRIO{Err: broken}
		}, "warn validator"},
		"CRI-O without NRI": {func(f *preflight.Facts) {
			f.Runtime.Name, f.Runtime.Version, f.NRI = "cri-o", "1.34.1", preflight.NRI{Err: broken, Missing: true}
		}, "FAIL nri"},
		"the plugin is disabled": {func(f *preflight.Facts) {
			f.NRI = preflight.NRI{Err: broken, Missing: true}
			f.Containerd.Disabled = []string{"io.containerd.nri.v1.nri"}
		}, "FAIL nri"},
		"the CRI is disabled":     {func(f *preflight.Facts) { f.Runtime.Err = broken; f.Containerd.Disabled = []string{"cri"} }, "FAIL runtime"},
		"an untold timeout":       {func(f *preflight.Facts) { f.NRI.RequestTimeout = 0 }, ""},
		"an untold short timeout": {func(f *preflight.Facts) { f.NRI.RequestTimeout, f.Containerd.RequestTimeout = 0, "" }, "warn nri timeout"},
		"large containers":        {func(f *preflight.Facts) { f.Runtime.Containers = sizes(4, 800_000) }, ""},
		"too large containers":    {func(f *preflight.Facts) { f.Runtime.Containers = sizes(4, 1_000_000) }, "warn sizes"},
		"three of them":           {func(f *preflight.Facts) { f.Runtime.Containers = append(sizes(3, 1_000_000), sizes(100, 100_000)...) }, ""},
		"too large pods": {func(f *preflight.Facts) {
			f.Runtime.Containers, f.Runtime.Sandboxes = sizes(4, 700_000), sizes(9, 250_000)
		}, "warn sizes"},
		"they keep devmgrd away": {func(f *preflight.Facts) {
			f.Runtime.Containers = sizes(4, 1_000_000)
			f.Daemon = &preflight.Daemon{Problems: []string{"nri: not connected to container runtime at X: the runtime closes each connection before it has listed its containers (it"}}
		}, "FAIL daemon, FAIL sizes"},
		"unknown sizes":            {func(f *preflight.Facts) { f.Runtime.SizesErr = broken }, "warn sizes"},
		"the runtime is elsewhere": {func(f *preflight.Facts) { f.Runtime = preflight.Runtime{Err: broken} }, "FAIL runtime"},
		"the kubelet's settings":   {func(f *preflight.Facts) { f.Kubelet.ConfigErr = broken }, "warn kubelet"},
		"nodes are not to be listed": {func(f *preflight.Facts) {
			f.API.Node, f.API.Rights = false, []kube.Right{{What: "list nodes", Err: broken}}
		}, "FAIL permissions"},
		"unreadable":             {func(f *preflight.Facts) { f.Containerd = preflight.Containerd{Err: broken} }, "warn containerd"},
		"drivers differ":         {func(f *preflight.Facts) { f.Kubelet.CgroupDriver = "cgroupfs" }, "warn cgroups"},
		"drivers differ, unsaid": {func(f *preflight.Facts) { f.Kubelet.CgroupDriver, f.Runtime.CgroupDriver = "cgroupfs", "" }, "FAIL cgroups"},
		"two managers": {func(f *preflight.Facts) {
			f.Kubelet.CgroupDriver, f.Runtime.CgroupDriver, f.Runtime.Systemd = "cgroupfs", "cgroupfs", false
		}, "warn cgroups"},
		"no systemd": {func(f *preflight.Facts) {
			f.Kubelet.CgroupDriver, f.Runtime.CgroupDriver, f.Host.Systemd = "", "cgroupfs", false
		}, ""},
		"crun":               {func(f *preflight.Facts) { f.Runtime.OCI = "crun" }, "warn cgroups"},
		"no user namespaces": {func(f *preflight.Facts) { f.Runtime.UserNamespaces = false }, "warn namespaces"},
		"no API server":      {func(f *preflight.Facts) { f.API = nil }, ""},
		"it does not answer": {func(f *preflight.Facts) { f.API = &preflight.API{Err: broken} }, "FAIL api server"},
		"no Node":            {func(f *preflight.Facts) { f.API.Node = false }, "FAIL api server"},
		"no right": {func(f *preflight.Facts) {
			f.API.Rights = []kube.Right{{What: "patch nodes/status", Err: broken}, {What: "create events", Err: broken}, {What: "create pods/eviction", Err: broken}}
		}, "FAIL permissions, warn permissions, warn permissions"},
		"no right to pods' status": {func(f *preflight.Facts) {
			f.Conditions, f.API.Rights = true, []kube.Right{{What: "patch pods/status", Err: broken}}
		}, "warn permissions"},
		"no right to pods' status, which is not used": {func(f *preflight.Facts) {
			f.API.Rights = []kube.Right{{What: "patch pods/status", Err: broken}}
		}, ""},
		"no right to evict": {func(f *preflight.Facts) {
			f.Evicts, f.API.Rights = true, []kube.Right{{What: "create pods/eviction", Err: broken}}
		}, "FAIL permissions"},
		"dra":                {func(f *preflight.Facts) { f.Claims = claims() }, ""},
		"dra, no API server": {func(f *preflight.Facts) { f.Claims = &preflight.Claims{Err: broken} }, "FAIL dra"},
		"dra, no API":        {func(f *preflight.Facts) { f.Claims = claims(); f.Claims.Served = false }, "FAIL dra"},
		"dra, no rights": {func(f *preflight.Facts) {
			f.Claims = claims()
			f.Claims.Rights[0].Err, f.Claims.Rights[1].Err = broken, broken
		}, "FAIL dra, FAIL dra"},
		"dra, CDI is off": {func(f *preflight.Facts) { f.Claims = claims(); f.Runtime.CDI.Off = true }, "FAIL cdi files"},
		"dra, another directory": {func(f *preflight.Facts) {
			f.Claims = claims()
			f.Claims.CDIDir, f.Runtime.CDI.Dirs = "/run/devmgrd/cdi", []string{"/etc/cdi", "/var/run/cdi"}
		}, "FAIL cdi files"},
		"dra, the directory through a link": {func(f *preflight.Facts) {
			f.Claims = claims()
			f.Claims.CDIDir, f.Runtime.CDI.Dirs = "/proc/self/root/tmp/", []string{"/etc/cdi", "/tmp"}
		}, ""},
		"dra, an older release": {func(f *preflight.Facts) { f.Claims = claims(); f.Claims.Older = true }, "warn dra"},
		"dra, no class":         {func(f *preflight.Facts) { f.Claims = claims(); f.Claims.Classes = nil }, "warn device class"},
		"dra, unknown classes": {func(f *preflight.Facts) {
			f.Claims = claims()
			f.Claims.Classes, f.Claims.ClassesErr = nil, broken
		}, ""},
		"dra, many devices":            {func(f *preflight.Facts) { f.Claims = claims(); f.Claims.Resources[gpu] = 33 }, "warn dra limits"},
		"dra, NUMA nodes":              {func(f *preflight.Facts) { f.Claims = claims(); f.Host.NUMANodes = 2 }, "warn dra limits"},
		"NUMA nodes, no dra":           {func(f *preflight.Facts) { f.Host.NUMANodes = 2 }, ""},
		"dra, no resource":             {func(f *preflight.Facts) { f.Claims = claims(); f.Claims.Resources = nil; f.Host.NUMANodes = 2 }, ""},
		"with the kubelet":             {func(f *preflight.Facts) { f.Kubelet.Devices = map[device.ResourceName]int{gpu: 2, "a/away": 0} }, "warn plugins"},
		"no kubelet":                   {func(f *preflight.Facts) { f.Kubelet.Err = broken }, "warn plugins"},
		"no kubelet, and yet a plugin": {func(f *preflight.Facts) { f.Kubelet.Err, f.Kubelet.Plugins = broken, []string{"x"} }, "warn plugins"},
		"with both": {func(f *preflight.Facts) {
			f.Kubelet.Devices = map[device.ResourceName]int{gpu: 2}
			f.Daemon = serving()
		}, "FAIL plugins"},
		"the kubelet's file": {func(f *preflight.Facts) { f.Checkpoint.Resources = []device.ResourceName{gpu} }, "FAIL checkpoint"},
		"the kubelet's file, in use": {func(f *preflight.Facts) {
			f.Kubelet.Devices = map[device.ResourceName]int{gpu: 2}
			f.Checkpoint.Resources = []device.ResourceName{gpu}
		}, "warn plugins, warn checkpoint"},
		"devices with an empty topology": {func(f *preflight.Facts) {
			f.Kubelet.Devices = map[device.ResourceName]int{gpu: 2}
			f.Checkpoint.Resources = []device.ResourceName{gpu, "vendor.example/usb"}
			f.Checkpoint.Healthy, f.Checkpoint.Current = map[device.ResourceName]int{gpu: 2, "vendor.example/usb": 3}, true
			f.Kubelet.Plugins = []string{"gpu.sock", "usb.sock"}
		}, "warn plugins, warn plugins, warn checkpoint"},
		"devices of an earlier kubelet's plugin": {func(f *preflight.Facts) {
			f.Kubelet.Plugins = []string{"another.sock"}
			f.Checkpoint.Resources, f.Checkpoint.Healthy = []device.ResourceName{gpu}, map[device.ResourceName]int{gpu: 2}
		}, "FAIL checkpoint"},
		"a plugin that has gone": {func(f *preflight.Facts) {
			f.Checkpoint.Resources = []device.ResourceName{gpu}
			f.Checkpoint.Healthy, f.Checkpoint.Current = map[device.ResourceName]int{gpu: 2}, true
		}, "FAIL checkpoint"},
		"a plugin that has moved to devmgrd": {func(f *preflight.Facts) {
			f.Kubelet.Plugins = []string{"another.sock"}
			f.Daemon, f.Checkpoint.Resources = serving(), []device.ResourceName{gpu}
			f.Checkpoint.Healthy, f.Checkpoint.Current = map[device.ResourceName]int{gpu: 2}, true
		}, "FAIL checkpoint"},
		"a plugin whose devices are all unhealthy": {func(f *preflight.Facts) {
			f.Kubelet.Plugins = []string{"gpu.sock"}
			f.Checkpoint.Resources = []device.ResourceName{gpu}
			f.Checkpoint.Healthy, f.Checkpoint.Current = map[device.ResourceName]int{gpu: 0}, true
		}, "FAIL checkpoint"},
		"the kubelet's file, unknown":    {func(f *preflight.Facts) { f.Kubelet.Err = broken; f.Checkpoint.Resources = []device.ResourceName{gpu} }, "warn plugins, FAIL checkpoint"},
		"the kubelet's file, unreadable": {func(f *preflight.Facts) { f.Checkpoint.Err = broken }, "warn checkpoint"},
		"the kubelet's file, ours": {func(f *preflight.Facts) {
			f.Daemon, f.Checkpoint.Resources = serving(), []device.ResourceName{gpu}
		}, "FAIL checkpoint"},
	} {
		f := fit()
		test.change(&f)
		if got := remarks(t, f); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// claims is an API server on which dra.resources needs nothing else.
func claims() *preflight.Claims {
	return &preflight.Claims{
		ClaimAccess: kube.ClaimAccess{
			Served: true, Release: "v1.36.3", Rights: []kube.Right{{What: "list resourceslices"}, {What: "create resourceslices"}},
			Classes: map[string]string{string(gpu): "gpus"},
		},
		Resources: map[device.ResourceName]int{gpu: 32},
	}
}

// Where classes cannot be listed, an operator can look instead; a missing class has the command that makes it.
func TestClasses_TheCommandIsNamed(t *testing.T) {
	f := fit()
	f.Claims = claims()
	f.Claims.ClassesErr = errors.New("x")
	says := func(want string) {
		t.Helper()
		for _, one := range preflight.Judge(f) {
			if one.Check == "device class" && strings.Contains(one.Text+one.Remedy, want) {
				return
			}
		}
		t.Errorf("nothing says %q", want)
	}
	says("kubectl get deviceclasses")
	f.Claims.ClassesErr, f.Claims.Classes = nil, nil
	says("devmgrd deviceclass vendor.example/gpu | kubectl apply -f -")
}

// sizes returns containers of this size each.
func sizes(n, bytes int) (all []preflight.Size) {
	for i := range n {
		all = append(all, preflight.Size{Name: fmt.Sprint("ns/pod-", i, ":main"), Bytes: bytes})
	}
	return all
}

// The pods that are too large are named, and not all of many.
func TestSizesAreNamed(t *testing.T) {
	f := fit()
	f.Runtime.Containers, f.Runtime.Sandboxes = append(sizes(20, 1_200_000), preflight.Size{Name: "ns/small:main", Bytes: 10}), sizes(1, 10)
	for _, one := range preflight.Judge(f) {
		if one.Check != "sizes" {
			continue
		}
		if !strings.Contains(one.Text, "ns/pod-0:main (1200000 bytes)") || strings.Contains(one.Text, "pod-8") || strings.Contains(one.Text, "small") || !strings.Contains(one.Text, "4800010 bytes") {
			t.Errorf("%s", one.Text)
		}
		return
	}
	t.Error("nothing is said of sizes")
}

func serving() *preflight.Daemon {
	return &preflight.Daemon{Serves: map[device.ResourceName]bool{gpu: true}}
}

// What has to be done fits the runtime that there is.
func TestAdvice(t *testing.T) {
	f := fit()
	f.Runtime.Name, f.Runtime.Version, f.NRI = "cri-o", "1.34.1", preflight.NRI{Err: errors.New("x"), Missing: true}
	for _, one := range preflight.Judge(f) {
		if strings.Contains(one.Remedy+one.Text, "containerd") && !strings.Contains(one.Text, ".sock") {
			t.Errorf("of CRI-O is said: %+v", one)
		}
	}
}

// containerd 1 does not start with a file of version 3, as the drop-in is.
func TestAdvice_Containerd1_IsNeverTheDropIn(t *testing.T) {
	on := true
	for _, change := range []func(*preflight.Facts){
		func(f *preflight.Facts) { f.NRI = preflight.NRI{Err: errors.New("x"), Missing: true} },
		func(f *preflight.Facts) { f.NRI = preflight.NRI{Err: errors.New("x")}; f.Containerd.Disable = &on },
		func(f *preflight.Facts) { f.NRI.RequestTimeout, f.Containerd.RequestTimeout = time.Second, "" },
		func(f *preflight.Facts) { f.NRI.RequestTimeout, f.Containerd.RequestTimeout = 0, "" },
	} {
		f, advised := fit(), false
		f.Runtime.Version, f.NRI.Version = "1.7.35", "1.7.35"
		change(&f)
		for _, one := range preflight.Judge(f) {
			if strings.Contains(one.Remedy, "copy") {
				t.Errorf("the remedy keeps containerd 1.7 from starting: %+v", one)
			}
			advised = advised || strings.Contains(one.Remedy, "version = 2")
		}
		if !advised {
			t.Errorf("nothing is advised for %+v", f.NRI)
		}
	}
}

// k3s and RKE2 write containerd's configuration from a template at each start.
func TestAdvice_K3s_IsItsTemplate(t *testing.T) {
	for distribution, file := range map[string]string{"k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"} {
		f := fit()
		f.Runtime.Socket, f.Containerd = "/run/k3s/containerd/containerd.sock", preflight.Containerd{File: file, RequestTimeout: "1s"}
		f.NRI.RequestTimeout = time.Second
		var text strings.Builder
		for _, one := range preflight.Judge(f) {
			fmt.Fprintln(&text, one.Remedy)
		}
		want := "/var/lib/rancher/" + distribution + "/agent/etc/containerd/config-v3.toml.tmpl, and restart " + distribution + "-agent, on a server " + distribution
		if !strings.Contains(text.String(), want) || strings.Contains(text.String(), "conf.d") {
			t.Errorf("no remedy says %q, or one says conf.d: %s", want, text.String())
		}
	}
}

// A remedy names the unit and the release of the node's runtime.
func TestAdvice_CRIO_IsNamed(t *testing.T) {
	f := fit()
	f.Runtime = preflight.Runtime{Socket: "/run/crio/crio.sock", Err: errors.New("x")}
	f.NRI = preflight.NRI{Greeting: nri.Greeting{Runtime: "cri-o", Version: "1.33.13", RequestTimeout: 10 * time.Second}}
	var text strings.Builder
	for _, one := range preflight.Judge(f) {
		fmt.Fprintln(&text, one.Remedy)
	}
	for _, want := range []string{"systemctl start crio", "use CRI-O 1.34 or later"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no remedy says %q: %s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "use containerd") {
		t.Errorf("a remedy is containerd's: %s", text.String())
	}
}
