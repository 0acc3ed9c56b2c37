package pluginrules_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
)

// links is a host with symbolic links and device nodes.
type links map[string]string

func (l links) Resolve(path string) string {
	if to, is := l[path]; is {
		return to
	}
	return path
}

func (l links) Node(path string) (device.HostNode, bool) {
	return device.HostNode{Path: l.Resolve(path), Kind: "c", Major: 240}, strings.HasPrefix(path, "/dev/")
}

// seen has a Guard note grants, and returns what it remembers.
func seen(t testing.TB, resource device.ResourceName, ids []device.ID, grants ...device.Grant) *device.PluginGrants {
	t.Helper()
	guard, _ := newGuard(pluginrules.Config{})
	for _, g := range grants {
		guard.Granted(resource, ids, g)
	}
	all := guard.Seen()
	if len(all) != 1 {
		t.Fatalf("%d resources are remembered", len(all))
	}
	return &all[0]
}

func newGuard(cfg pluginrules.Config) (*pluginrules.Guard, *herald) {
	h := &herald{}
	cfg.Notifier, cfg.Log, cfg.Metrics = h, slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	return pluginrules.New(cfg), h
}

func TestSuggest(t *testing.T) {
	host := links{"/dev/by-id/uuid-a": "/dev/vendor3", "/usr/lib/vendor/current": "/usr/lib/vendor-550"}
	granted := device.Grant{
		Env:         map[string]string{"VENDOR_VISIBLE_DEVICES": "secret-1", "VENDOR_SLOT_12": "secret-2"},
		Mounts:      []device.Mount{{HostPath: "/var/lib/vendor/GPU-1a2b-3c/state/"}, {HostPath: "/usr/lib/vendor/current"}},
		Nodes:       []device.Node{{HostPath: "/dev/vendor0"}, {HostPath: "/dev/vendorctl"}, {HostPath: "/dev/by-id/uuid-a"}},
		Annotations: map[string]string{"vendor.example/note": "secret-3", "cdi.k8s.io/x": "vendor.example/nic=1"},
		CDI:         []string{"vendor.example/gpu=0"},
	}
	all := []pluginrules.Observation{
		{Resource: gpu, Plugins: []device.PluginPod{pluginPod("gpu-operator", "device-plugin")}, Granted: seen(t, gpu, []device.ID{"GPU-1a2b-3c"}, granted)},
		{Resource: "host.example/fpga", Plugins: []device.PluginPod{{}}},
		{Resource: "static.example/x", Plugins: []device.PluginPod{pluginPod("kube-system", "")}, Granted: seen(t, "static.example/x", nil, device.Grant{})},
	}
	text, err := pluginrules.Suggest("worker-1", time.Unix(0, 0), all, host)
	if err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "suggested.yaml")
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(golden, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if string(text) != string(want) {
		t.Errorf("suggested (UPDATE=1 writes it):\n%s\nwant:\n%s", text, want)
	}
	if strings.Contains(string(text), "secret") {
		t.Error("values are suggested")
	}
	rules := parse(t, string(text))
	for _, o := range all {
		if bad := rules.Audit(o, host); len(bad) > 0 {
			t.Errorf("%s: what was seen is not allowed: %v", o.Resource, bad)
		}
	}
	if !strings.Contains(string(text), "/var/lib/vendor/GPU-*/state") {
		t.Error("a device's ID is not made a pattern")
	}
	// Another device of the same plugin is allowed, and nothing else.
	other := device.Grant{
		Env:    map[string]string{"VENDOR_SLOT_3": ""},
		Mounts: []device.Mount{{HostPath: "/var/lib/vendor/GPU-ffff-00/state"}},
		Nodes:  []device.Node{{HostPath: "/dev/vendor15"}},
	}
	if v := rules.Grant(gpu, other); v != nil {
		t.Error(v)
	}
	for _, bad := range []device.Grant{
		{Nodes: []device.Node{{HostPath: "/dev/vendorx"}}},
		{Mounts: []device.Mount{{HostPath: "/var/lib/vendor/a/b"}}},
		{Mounts: []device.Mount{{HostPath: "/var/lib/vendor/other/state"}}},
		{Env: map[string]string{"VENDOR_VISIBLE_DEVICES_2": ""}},
	} {
		if rules.Grant(gpu, bad) == nil {
			t.Errorf("%+v is allowed", bad)
		}
	}
	// A link that is turned elsewhere is not followed.
	host["/dev/by-id/uuid-a"] = "/dev/sda"
	if bad := rules.Audit(all[0], host); len(bad) != 1 || !strings.Contains(bad[0].Message, "leads to /dev/sda") {
		t.Errorf("%v", bad)
	}
}

// Four resources use up all room for names. What is granted of others is remembered, and where there is no room, the suggestion allows nothing more.
func TestGranted_OtherResourcesUseUpTheRoom_IsRemembered(t *testing.T) {
	guard, _ := newGuard(pluginrules.Config{})
	names := func(prefix string, n int) device.Grant {
		env := map[string]string{}
		for i := range n {
			env[fmt.Sprintf("%s_%d", prefix, i)] = ""
		}
		return device.Grant{Env: env}
	}
	for i := range 20 {
		guard.Granted(device.ResourceName(fmt.Sprintf("junk.example/%d", i)), nil, names("JUNK", 2000))
	}
	guard.Granted(gpu, nil, names("VENDOR", 64))
	guard.Granted("vendor.example/nic", nil, names("NIC", 65))
	seen := map[device.ResourceName]*device.PluginGrants{}
	for _, g := range guard.Seen() {
		seen[g.Resource] = &g
	}
	if g := seen[gpu]; g == nil || len(g.Env) != 64 || g.Full {
		t.Errorf("of %s are remembered %v", gpu, g)
	}
	nic := seen["vendor.example/nic"]
	if nic == nil || len(nic.Env) != 64 || !nic.Full {
		t.Fatalf("of vendor.example/nic are remembered %v", nic)
	}
	text, err := pluginrules.Suggest("n", time.Unix(0, 0), []pluginrules.Observation{{Resource: "vendor.example/nic", Granted: nic}}, links{})
	if err != nil {
		t.Fatal(err)
	}
	if parse(t, string(text)).Grant("vendor.example/nic", device.Grant{Env: map[string]string{"OTHER": ""}}) == nil {
		t.Errorf("anything may be granted:\n%s", text)
	}
	for i := range 600 {
		guard.Granted(device.ResourceName(fmt.Sprintf("more.example/%d", i)), nil, names("MORE", 1))
	}
	if all := guard.Seen(); len(all) > 520 || all[len(all)-1].Resource != "" || !all[len(all)-1].Full {
		t.Errorf("%d resources are remembered, and others are not said to be left out", len(all))
	}
}

// The names of a grant are short parts of long texts. They keep none of these in memory.
func TestGranted_ShortPartsOfLongTexts_KeepNoText(t *testing.T) {
	guard, _ := newGuard(pluginrules.Config{})
	const long = 1 << 20
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	for i := range 16 {
		tail := strings.Repeat("x", long)
		guard.Granted(gpu, nil, device.Grant{
			CDI:    []string{fmt.Sprintf("vendor.example/class-%d=%s", i, tail)},
			Mounts: []device.Mount{{HostPath: fmt.Sprintf("/a%d/%s/..", i, tail)}},
		})
	}
	if n := heap(); n > before+4*long {
		t.Errorf("32 names keep %d MiB", (n-before)>>20)
	}
	if len(guard.Seen()[0].CDIKinds) != 16 {
		t.Error("they are not remembered")
	}
}

// What is suggested is a file that Parse takes, and it allows all that was seen, whatever names plugins choose.
func FuzzSuggest(f *testing.F) {
	f.Add("vendor.example/gpu", "GPU-1", "VENDOR_1", "/usr/lib/*[x", "/dev/a?\\b", "vendor.example/x", "a.example/b=c", "ns", "sa")
	f.Add("a.b/c", "id", "é\xffé", "//a/../..//b/", "/dev/\n:", "", "=", "", "")
	f.Add("a.b/C_d", "0000:3b:00.0", "PCI_0000:3b:00.0", "/sys/0000:3b:00.0", "/dev/vfio/42", "k: [x", "v/c=1", "null", "true")
	f.Fuzz(func(t *testing.T, resource, id, env, mount, node, annotation, cdi, namespace, account string) {
		r, err := device.ParseResourceName(resource)
		if err != nil {
			return
		}
		g := device.Grant{
			Env: map[string]string{env: "v"}, Mounts: []device.Mount{{ContainerPath: "/m", HostPath: mount}},
			Nodes: []device.Node{{HostPath: node, Permissions: "rw"}}, Annotations: map[string]string{annotation: "v"}, CDI: []string{cdi},
		}
		for _, s := range []string{env, mount, node, annotation, cdi, namespace, account} {
			if s != strings.ToValidUTF8(s, "") || strings.ContainsAny(s, "\x00\n\r\u0085\u2028\u2029") { // gRPC takes no invalid UTF-8
				return
			}
		}
		if g.Check() != nil || strings.Contains(cdi, ",") {
			return
		}
		o := pluginrules.Observation{Resource: r, Granted: seen(t, r, []device.ID{device.ID(id)}, g)}
		if o.Granted.Full {
			return
		}
		pod := device.PluginPod{}
		if namespace != "" {
			pod = pluginPod(namespace, account)
		}
		o.Plugins = []device.PluginPod{pod}
		text, err := pluginrules.Suggest("n", time.Unix(0, 0), []pluginrules.Observation{o}, links{})
		if err != nil {
			t.Fatal(err)
		}
		rules, err := pluginrules.Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if bad := rules.Audit(o, links{}); len(bad) > 0 {
			t.Fatalf("%v\n%s", bad[0], text)
		}
		if v := rules.Grant(r, g); v != nil {
			t.Fatalf("%v\n%s", v, text)
		}
	})
}
