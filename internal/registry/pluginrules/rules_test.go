package pluginrules_test

import (
	"strings"
	"testing"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
)

const gpu = "vendor.example/gpu"

const example = `
rules:
- name: gpu
  resources: [vendor.example/gpu, vendor.example/mig-*]
  plugins:
  - namespace: gpu-operator
    serviceAccount: device-plugin
  - namespace: kube-system
  grants:
    env: [VENDOR_*, EXACT]
    mounts: [/usr/lib/vendor, "/var/run/vendor-[0-9]*"]
    devices: ["/dev/vendor[0-9]*", /dev/dri, "c:195"]
    annotations: [vendor.example/*]
    cdiKinds: [vendor.example/gpu]
- name: host-only
  resources: [host.example/*]
  plugins:
  - host: true
- name: closed
  resources: [closed.example/x]
  plugins: []
  grants: {}
`

func parse(t testing.TB, text string) *pluginrules.Rules {
	t.Helper()
	rules, err := pluginrules.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func pluginPod(namespace, account string) device.PluginPod {
	return device.PluginPod{Pod: device.Pod{UID: "uid-plugin", Namespace: namespace, Name: "plugin"}, ServiceAccount: account}
}

func TestServe(t *testing.T) {
	rules := parse(t, example)
	host := device.PluginPod{}
	for _, test := range []struct {
		resource device.ResourceName
		by       device.PluginPod
		want     string // part of why not; empty: it may
	}{
		{gpu, pluginPod("gpu-operator", "device-plugin"), ""},
		{gpu, pluginPod("gpu-operator", "other"), "rule gpu does not let the plugin of pod gpu-operator/plugin (service account other) serve vendor.example/gpu"},
		{gpu, pluginPod("gpu-operator", ""), "service account not known"},
		{gpu, pluginPod("kube-system", "any"), ""},
		{gpu, pluginPod("kube-system", ""), ""},
		{gpu, pluginPod("tenant", "device-plugin"), "rule gpu"},
		{gpu, host, "rule gpu does not let a plugin of the host serve"},
		{"vendor.example/mig-1g.5gb", pluginPod("kube-system", "x"), ""},
		{"vendor.example/mig", pluginPod("kube-system", "x"), "no rule lets a plugin serve vendor.example/mig"},
		{"host.example/fpga", host, ""},
		{"host.example/fpga", pluginPod("kube-system", "x"), "rule host-only"},
		{"closed.example/x", host, "rule closed"},
		{"closed.example/x", pluginPod("kube-system", "x"), "rule closed"},
	} {
		v := rules.Serve(test.resource, test.by)
		switch {
		case test.want == "" && v != nil:
			t.Errorf("%s by %v is refused: %v", test.resource, test.by, v)
		case test.want != "" && (v == nil || !strings.Contains(v.Message, test.want)):
			t.Errorf("%s by %v: %v, want %q", test.resource, test.by, v, test.want)
		}
	}
}

func TestGrant(t *testing.T) {
	rules := parse(t, example)
	mount := func(path string) device.Grant {
		return device.Grant{Mounts: []device.Mount{{ContainerPath: "/x", HostPath: path}}}
	}
	for name, test := range map[string]struct {
		resource device.ResourceName
		grant    device.Grant
		want     string
	}{
		"nothing":              {gpu, device.Grant{}, ""},
		"allowed variables":    {gpu, device.Grant{Env: map[string]string{"VENDOR_VISIBLE": "1", "EXACT": "", "VENDOR_": ""}}, ""},
		"another variable":     {gpu, device.Grant{Env: map[string]string{"LD_PRELOAD": "/x.so", "EXACT": ""}}, "rule gpu does not allow what the plugin of vendor.example/gpu grants: variable LD_PRELOAD"},
		"exact, and longer":    {gpu, device.Grant{Env: map[string]string{"EXACTLY": ""}}, "variable EXACTLY"},
		"allowed mount":        {gpu, mount("/usr/lib/vendor"), ""},
		"below it":             {gpu, mount("/usr/lib/vendor/lib64/libx.so.1"), ""},
		"spelled otherwise":    {gpu, mount("//usr/./lib/vendor//x/"), ""},
		"above it":             {gpu, mount("/usr/lib"), "mount of /usr/lib"},
		"its sibling":          {gpu, mount("/usr/lib/vendor2"), "mount of /usr/lib/vendor2"},
		"out of it":            {gpu, mount("/usr/lib/vendor/../../../etc/shadow"), "mount of /usr/lib/vendor/../../../etc/shadow"},
		"the root":             {gpu, mount("/"), "mount of /"},
		"pattern of a mount":   {gpu, mount("/var/run/vendor-17/socket"), ""},
		"outside the pattern":  {gpu, mount("/var/run/vendor-x"), "mount of /var/run/vendor-x"},
		"allowed annotation":   {gpu, device.Grant{Annotations: map[string]string{"vendor.example/a": "1"}}, ""},
		"another annotation":   {gpu, device.Grant{Annotations: map[string]string{"run.oci.handler": "krun"}}, "annotation run.oci.handler"},
		"CDI":                  {gpu, device.Grant{CDI: []string{"vendor.example/gpu=0", "vendor.example/gpu=all"}}, ""},
		"another kind":         {gpu, device.Grant{CDI: []string{"evil.example/gpu=0"}}, "CDI device evil.example/gpu=0"},
		"CDI by annotation":    {gpu, device.Grant{Annotations: map[string]string{"cdi.k8s.io/a": "vendor.example/gpu=0"}}, ""},
		"another by it":        {gpu, device.Grant{Annotations: map[string]string{"cdi.k8s.io/a": "vendor.example/gpu=0,evil.example/x=0"}}, "CDI device evil.example/x=0"},
		"no rule":              {"other.example/x", device.Grant{}, "no rule lets a plugin grant anything for other.example/x"},
		"unchecked":            {"host.example/x", mount("/etc"), ""},
		"nothing is allowed":   {"closed.example/x", device.Grant{Env: map[string]string{"A": ""}}, "rule closed does not allow"},
		"a device, by path":    {"closed.example/x", device.Grant{Nodes: []device.Node{{HostPath: "/dev/null"}}}, "device /dev/null"},
		"many":                 {gpu, device.Grant{Env: map[string]string{"A": "", "B": "", "C": "", "D": "", "E": "", "F": ""}}, "variable A, variable B, variable C, variable D, and 2 more"},
		"values are not named": {gpu, device.Grant{Env: map[string]string{"A": "secret"}}, "grants: variable A"},
	} {
		v := rules.Grant(test.resource, test.grant)
		switch {
		case test.want == "" && v != nil:
			t.Errorf("%s: refused: %v", name, v)
		case test.want != "" && (v == nil || !strings.Contains(v.Message, test.want)):
			t.Errorf("%s: %v, want %q", name, v, test.want)
		case v != nil && strings.Contains(v.Message, "secret"):
			t.Errorf("%s: the message has a value: %v", name, v)
		}
	}
}

// A link leads anywhere: what it leads to counts too.
func TestMountAndDevice_WhereLinksLead(t *testing.T) {
	rules := parse(t, example)
	if v := rules.Mount(gpu, "/usr/lib/vendor/x", "/usr/lib/vendor/y"); v != nil {
		t.Error(v)
	}
	v := rules.Mount(gpu, "/usr/lib/vendor/x", "/etc/shadow")
	if v == nil || !strings.Contains(v.Message, "mount of /usr/lib/vendor/x, which leads to /etc/shadow") {
		t.Error(v)
	}
	for _, test := range []struct {
		granted string
		node    device.HostNode
		want    string
	}{
		{"/dev/vendor0", device.HostNode{Path: "/dev/vendor0", Kind: "c", Major: 1}, ""},
		{"/dev/dri/card0", device.HostNode{Path: "/dev/dri/card0", Kind: "c", Major: 226}, ""},
		{"/dev/vendor0", device.HostNode{Path: "/dev/sda", Kind: "b", Major: 8}, "device /dev/vendor0, which leads to /dev/sda (b:8)"},
		{"/dev/any", device.HostNode{Path: "/dev/any", Kind: "c", Major: 195}, ""},
		{"/dev/any", device.HostNode{Path: "/dev/any", Kind: "b", Major: 195}, "device /dev/any (b:195)"},
		{"/dev/any", device.HostNode{Path: "/dev/any", Kind: "c", Major: 10}, "device /dev/any (c:10)"},
	} {
		v := rules.Device(gpu, test.granted, test.node)
		if test.want == "" && v != nil || test.want != "" && (v == nil || !strings.Contains(v.Message, test.want)) {
			t.Errorf("%s, %v: %v, want %q", test.granted, test.node, v, test.want)
		}
	}
}

// Each mistake is named, with its place and what to do.
func TestParse_Mistakes(t *testing.T) {
	for text, want := range map[string][]string{
		"rules:\n- nam: x\n  resource: y": {"line 2: field nam not found in Rule", "line 3: field resource not found in Rule"},
		"rules: x":                        {"line 1: cannot unmarshal !!str `x` into []Rule"},
		"rules: [":                        {"line 1: did not find expected node content"},
		"rules: []\n---\n{}":              {"more than one YAML document"},
		"rules:":                          {"line 1: rules has no value"},
		"rules:\n- name: a\n  resources: [a.example/b]\n  plugins:\n  grants: {env: }": {
			"line 5: env has no value", "line 4: plugins has no value; write [] or {} if nothing is allowed",
		},
		"rules:\n- name: A b\n- name: ok\n  resources: [gpu, \"a.example/[\", a.example/b]\n- name: ok\n  resources: [a.example/b]\n- name: none\n  resources: [c.example/d]": {
			`rules[0] (A b): name: "A b" is not a name`, "rules[0] (A b): resources: there is none", `rules[1] (ok): resources[0]: "gpu" is no pattern`,
			`rules[1] (ok): resources[1]: "a.example/["`, "rules[2] (ok): name: another rule has it", `resources[0]: "a.example/b" is in rule ok already`,
			"rules[3] (none): name:",
		},
		"rules:\n- name: a\n  resources: [a.example/b]\n  plugins: [{}, {host: true, namespace: x}, {serviceAccount: x}]": {
			"plugins[0]: it names no namespace", "plugins[1]: a plugin of the host has no namespace", "plugins[2]: it names no namespace",
		},
		"rules:\n- name: a\n  resources: [a.example/b]\n  grants: {env: ['A=b', ''], mounts: [usr, /a/../b, /a/, '/a/[', '/a/[x/y]'], devices: ['x:1', 'c:', 'c:-1', dev], annotations: [''], cdiKinds: [a, a/b=c]}": {
			"grants.env[0]:", "grants.env[1]:", "grants.mounts[0]:", "grants.mounts[1]:", "grants.mounts[2]:", "grants.mounts[3]:", "grants.mounts[4]:", "grants.devices[0]:", "grants.devices[1]:",
			"grants.devices[2]:", "grants.devices[3]:", "grants.annotations[0]:", "grants.cdiKinds[0]:", "grants.cdiKinds[1]:",
		},
		strings.Repeat("# x\n", pluginrules.MaxFile/4+1): {"more than 1048576 bytes"},
	} {
		rules, err := pluginrules.Parse([]byte(text))
		if err == nil || rules != nil {
			t.Errorf("%.80q is taken", text)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%.80q: the error does not say %q:\n%v", text, w, err)
			}
		}
		if n := len(strings.Split(err.Error(), "\n")); n != len(want) {
			t.Errorf("%.80q: %d mistakes, want %d:\n%v", text, n, len(want), err)
		}
	}
}

func TestParse_Empty(t *testing.T) {
	for _, text := range []string{"", "{}", "rules: []", "# nothing\n"} {
		rules, err := pluginrules.Parse([]byte(text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if rules.Serve(gpu, device.PluginPod{}) == nil {
			t.Errorf("%q: a resource without a rule may be served", text)
		}
	}
}
