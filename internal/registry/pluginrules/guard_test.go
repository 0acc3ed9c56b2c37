package pluginrules_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/devmgrd/devmgrd/internal/device"
	"github.com/devmgrd/devmgrd/internal/registry/pluginrules"
)

type herald []string

func (h *herald) NotAllowed(pod device.Pod, why string) { *h = append(*h, pod.Name+": "+why) }

var to = device.PodContainer{Pod: device.Pod{UID: "uid-1", Namespace: "default", Name: "train"}, Name: "main"}

func TestGuard_Enforce(t *testing.T) {
	guard, told := newGuard(pluginrules.Config{Rules: parse(t, example), Enforce: true})
	bad := device.Grant{Env: map[string]string{"LD_PRELOAD": ""}}
	for range 3 {
		for what, err := range map[string]error{
			"serve": guard.MayServe(gpu, pluginPod("tenant", "x")),
			"grant": guard.MayGrant(to, gpu, bad),
			"mount": guard.MayMount(to, gpu, "/usr/lib/vendor/a", "/etc"),
			"have":  guard.MayHave(to, gpu, "/dev/vendor0", device.HostNode{Path: "/dev/sda", Kind: "b", Major: 8}),
		} {
			var no *device.Refusal
			if !errors.As(err, &no) || no.Reason != device.PluginNotAllowed || !strings.Contains(no.Message, "rule gpu") {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := errors.Join(guard.MayServe(gpu, pluginPod("kube-system", "x")), guard.MayGrant(to, gpu, device.Grant{})); err != nil {
			t.Error(err)
		}
	}
	// A refused grant is the event of the pod that waits. A refused plugin has no other.
	if want := []string{"plugin: rule gpu does not let the plugin of pod tenant/plugin (service account x) serve vendor.example/gpu"}; !slices.Equal(*told, want) {
		t.Errorf("told %q, want %q", *told, want)
	}
}

func TestGuard_Report(t *testing.T) {
	metrics, told := prometheus.NewRegistry(), &herald{}
	guard := pluginrules.New(pluginrules.Config{Rules: parse(t, example), Notifier: told, Log: slog.New(slog.DiscardHandler), Metrics: metrics})
	for range 3 {
		if err := errors.Join(
			guard.MayServe(gpu, pluginPod("tenant", "x")),
			guard.MayServe("other.example/x", device.PluginPod{}),
			guard.MayGrant(to, gpu, device.Grant{Env: map[string]string{"LD_PRELOAD": ""}}),
			guard.MayMount(to, gpu, "/usr/lib/vendor/a", "/etc"),
		); err != nil {
			t.Error(err)
		}
	}
	want := []string{
		"plugin: rule gpu does not let the plugin of pod tenant/plugin (service account x) serve vendor.example/gpu (plugins.rules is report: nothing was refused)",
		": no rule lets a plugin serve other.example/x; if a plugin of the host may, add a rule (plugins.rules is report: nothing was refused)",
		"train: container main: rule gpu does not allow what the plugin of vendor.example/gpu grants: variable LD_PRELOAD (plugins.rules is report: nothing was refused)",
		"train: container main: rule gpu does not allow what the plugin of vendor.example/gpu grants: mount of /usr/lib/vendor/a, which leads to /etc (plugins.rules is report: nothing was refused)",
	}
	if !slices.Equal(*told, want) {
		t.Errorf("told:\n%s\nwant:\n%s", strings.Join(*told, "\n"), strings.Join(want, "\n"))
	}
	counted := map[string]float64{}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[0].GetMetric() {
		counted[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
	}
	if want := map[string]float64{
		"closed grant": 0, "closed registration": 0, "gpu grant": 2, "gpu registration": 1, "host-only grant": 0, "host-only registration": 0,
		"none grant": 0, "none registration": 1,
	}; len(families) != 1 || families[0].GetName() != "devmgrd_plugin_rule_violations_total" || !maps.Equal(counted, want) {
		t.Errorf("counted %v, want %v", counted, want)
	}
}

func TestGuard_Off(t *testing.T) {
	guard, told := newGuard(pluginrules.Config{Enforce: true})
	if err := errors.Join(guard.MayServe(gpu, device.PluginPod{}), guard.MayGrant(to, gpu, device.Grant{Env: map[string]string{"A": ""}}),
		guard.MayMount(to, gpu, "/a", "/b"), guard.MayHave(to, gpu, "/a", device.HostNode{})); err != nil || len(*told) > 0 {
		t.Error(err, *told)
	}
	if guard.NeedsAccount(gpu, device.Pod{}) {
		t.Error("a service account is asked for")
	}
}

func TestNeedsAccount(t *testing.T) {
	guard, _ := newGuard(pluginrules.Config{Rules: parse(t, example)})
	for namespace, want := range map[string]bool{"gpu-operator": true, "kube-system": false, "tenant": false} {
		if got := guard.NeedsAccount(gpu, device.Pod{Namespace: namespace}); got != want {
			t.Errorf("%s: %v", namespace, got)
		}
	}
}

// However much plugins grant, little of it is remembered.
func TestGranted_IsBounded(t *testing.T) {
	guard, _ := newGuard(pluginrules.Config{})
	for r := range 100 {
		for n := range 20 {
			env := map[string]string{strings.Repeat("x", 600): ""}
			for v := range 100 {
				env[fmt.Sprintf("V%c%d", 'A'+n, v)] = "value"
			}
			guard.Granted(device.ResourceName(fmt.Sprintf("vendor.example/r%d", r)), []device.ID{"id"}, device.Grant{Env: env})
		}
	}
	names := 0
	for _, g := range guard.Seen() {
		if len(g.Env) > 1024 || !g.Full {
			t.Errorf("%s: %d names, full: %v", g.Resource, len(g.Env), g.Full)
		}
		names += 1 + len(g.Env)
	}
	if names < 10_000 || names > 16_384 {
		t.Errorf("%d names are remembered", names)
	}
}
