package helm

import (
	"cmp"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/lint/support"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// source is the chart's directory.
const source = "devmgrd"

// chart is what is tested: the source, or the archive of a release that the environment names.
var chart = cmp.Or(os.Getenv("CHART"), source)

type object = map[string]any

// render returns the objects that the chart makes for a release, by kind and name.
func render(t *testing.T, release, namespace string, values object) map[string]object {
	t.Helper()
	all, err := tryRender(release, namespace, values, common.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func tryRender(release, namespace string, values object, cluster *common.Capabilities) (map[string]object, error) {
	c, err := loader.Load(chart)
	if err != nil {
		return nil, err
	}
	options := common.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true, Revision: 1}
	all, err := util.ToRenderValues(c, values, options, cluster)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(c, all)
	if err != nil {
		return nil, err
	}
	found := map[string]object{}
	for name, text := range files {
		if strings.HasSuffix(name, "NOTES.txt") {
			continue
		}
		if err := decode(text, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// decode adds the objects of a manifest to those found.
func decode(manifest string, found map[string]object) error {
	for document := range strings.SplitSeq("\n"+manifest, "\n---\n") {
		var o object
		if err := yaml.UnmarshalStrict([]byte(document), &o); err != nil {
			return err
		}
		if len(o) > 0 {
			found[o["kind"].(string)+"/"+at(o, "metadata", "name").(string)] = o
		}
	}
	return nil
}

// at returns the value at a path of keys, or nil.
func at(o any, path ...string) any {
	for _, key := range path {
		m, _ := o.(object)
		o = m[key]
	}
	return o
}

func TestChart_Lint_NoMessages(t *testing.T) {
	for _, values := range []object{nil, everything()} {
		for _, m := range lint.RunAll(source, values, "kube-system").Messages {
			// The icon is for chart repositories with a page.
			if m.Severity > support.InfoSev || !strings.Contains(m.Error(), "icon is recommended") {
				t.Error(m)
			}
		}
	}
}

// everything sets each value to something else than its default.
func everything() object {
	return object{
		"image":            object{"repository": "registry.example/devmgrd", "tag": "t", "digest": "sha256:" + strings.Repeat("a", 64), "pullPolicy": "Always"},
		"imagePullSecrets": []any{object{"name": "registry"}},
		"config": object{
			"stateDir": "/srv/devmgrd/state", "runDir": "/srv/devmgrd/run",
			"plugins":      object{"kubeletDir": "/srv/kubelet/device-plugins", "ignoredResources": []any{"example.com/licence"}, "rules": "report"},
			"podResources": object{"kubeletSocket": "/srv/kubelet/pod-resources/kubelet.sock", "takeover": true},
			"nri":          object{"socket": "/srv/nri/nri.sock"},
			"metrics":      object{"listen": "0.0.0.0:9999"},
			"dra":          object{"resources": []any{"vendor.example/nic"}},
		},
		"rules":             []any{object{"name": "gpu", "resources": []any{"vendor.example/gpu"}}},
		"hostPaths":         []any{"/opt/vendor"},
		"nodeSelector":      object{"example.com/devices": "true"},
		"affinity":          object{"nodeAffinity": object{}},
		"tolerations":       []any{object{"key": "example.com/devices", "operator": "Exists"}},
		"priorityClassName": "system-cluster-critical",
		"updateStrategy":    object{"type": "OnDelete"},
		"resources":         object{"limits": object{"memory": "2Gi"}},
		"goMemoryLimit":     "1500MiB",
		"seLinuxOptions":    object{"type": "spc_t"},
		"podLabels":         object{"example.com/l": "v"},
		"podAnnotations":    object{"example.com/a": "v"},
		"extraEnv":          []any{object{"name": "EXTRA", "value": "v"}},
		"extraVolumes":      []any{object{"name": "extra", "emptyDir": object{}}},
		"extraVolumeMounts": []any{object{"name": "extra", "mountPath": "/extra"}},
		"serviceAccount":    object{"create": true, "name": "account", "annotations": object{"example.com/a": "v"}},
		"dra":               object{"enabled": true},
		"rbac":              object{"create": true, "eviction": true, "ownNodePolicy": true},
		"policies":          object{"failClosed": true, "podSize": true},
		"monitoring": object{
			"podMonitor":     object{"enabled": true, "labels": object{"l": "v"}, "interval": "15s"},
			"prometheusRule": object{"enabled": true, "labels": object{"l": "v"}},
			"dashboard":      object{"enabled": true, "labels": object{"l": "v"}},
		},
	}
}

func TestChart_NoPodConditions_NoRightToWriteThem(t *testing.T) {
	for _, on := range []bool{true, false} {
		all := render(t, "devmgrd", "kube-system", object{"config": object{"kubernetes": object{"podConditions": on}}})
		may := slices.ContainsFunc(at(all["ClusterRole/devmgrd"], "rules").([]any), func(rule any) bool {
			return slices.Contains(at(rule, "resources").([]any), any("pods/status"))
		})
		if _, limited := all["ValidatingAdmissionPolicy/devmgrd-own-pods"]; may != on || limited != on {
			t.Errorf("podConditions %v: the right is %v, its policy %v", on, may, limited)
		}
	}
}

// TestChart_SameAsBase holds that the chart and the Kustomize base, two ways to the same objects, do not part.
func TestChart_SameAsBase(t *testing.T) {
	t.Run("defaults", func(t *testing.T) { sameAsBase(t, object{}, "# The defaults.\n", "{resources: [base]}") })
	t.Run("dra", func(t *testing.T) {
		sameAsBase(t, object{"dra": object{"enabled": true}, "config": object{"dra": object{"resources": []any{"vendor.example/gpu"}}}},
			"dra:\n  resources:\n  - vendor.example/gpu\n", "{resources: [base, base/rbac-dra.yaml], patches: [{path: base/daemonset-dra.yaml}]}")
	})
}

// sameAsBase compares the chart with an overlay of the base.
func sameAsBase(t *testing.T, values object, config, overlay string) {
	t.Helper()
	values["image"] = object{"repository": "registry.example/devmgrd", "tag": "latest"}
	got := render(t, "devmgrd", "kube-system", values)
	want := base(t, overlay)
	delete(got, "Pod/devmgrd-test")
	if is := at(got["ConfigMap/devmgrd"], "data", "config.yaml"); is != config {
		t.Errorf("the configuration is %q, want %q", is, config)
	}
	delete(got, "ConfigMap/devmgrd")
	if role, more := want["ClusterRole/devmgrd"], want["ClusterRole/devmgrd-dra"]; more != nil { // the chart makes one of the two
		role["rules"] = append(role["rules"].([]any), more["rules"].([]any)...)
		delete(want, "ClusterRole/devmgrd-dra")
		delete(want, "ClusterRoleBinding/devmgrd-dra")
	}
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		t.Fatalf("the chart makes %q, the base %q", g, w)
	}
	for name := range want {
		for _, o := range []object{got[name], want[name]} {
			delete(at(o, "metadata").(object), "labels")
		}
	}
	set := got["DaemonSet/devmgrd"]
	delete(at(set, "spec", "template", "metadata", "annotations").(object), "checksum/config")
	for _, labels := range []any{at(set, "spec", "selector", "matchLabels"), at(set, "spec", "template", "metadata", "labels")} {
		delete(labels.(object), "app.kubernetes.io/instance")
	}
	main := at(set, "spec", "template", "spec", "containers").([]any)[0].(object)
	delete(main, "imagePullPolicy")
	for _, o := range []object{set, want["DaemonSet/devmgrd"]} {
		pod := at(o, "spec", "template", "spec").(object)
		byName(pod["volumes"])
		byName(pod["containers"].([]any)[0].(object)["volumeMounts"])
	}
	for name := range want {
		if !reflect.DeepEqual(squeeze(got[name]), squeeze(want[name])) {
			t.Errorf("the chart makes\n%s\nand the base\n%s", text(t, got[name]), text(t, want[name]))
		}
	}
}

// byName sorts a list of which Kubernetes merges the items by name: a patch puts its own first.
func byName(list any) {
	slices.SortFunc(list.([]any), func(a, b any) int { return strings.Compare(at(a, "name").(string), at(b, "name").(string)) })
}

// squeeze returns a value with one space for all white space in its texts: Kustomize adds lines to long ones.
func squeeze(value any) any {
	switch v := value.(type) {
	case string:
		return strings.Join(strings.Fields(v), " ")
	case []any:
		all := make([]any, len(v))
		for i := range v {
			all[i] = squeeze(v[i])
		}
		return all
	case object:
		all := object{}
		for key := range v {
			all[key] = squeeze(v[key])
		}
		return all
	}
	return value
}

// base returns what Kustomize makes of an overlay of the base, which the overlay has as the directory base.
func base(t *testing.T, overlay string) map[string]object {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir+"/base", os.DirFS("../kubernetes")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/kustomization.yaml", []byte(overlay), 0o600); err != nil {
		t.Fatal(err)
	}
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]object{}
	if err := decode(string(manifest), found); err != nil {
		t.Fatal(err)
	}
	return found
}

func text(t *testing.T, o object) string {
	t.Helper()
	b, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestChart_EachValue_IsUsed holds that each value arrives: with everything else than the default, none of the defaults that
// are texts remains.
func TestChart_EachValue_IsUsed(t *testing.T) {
	values := everything()
	found := render(t, "pool-a", "devices", values)
	var all strings.Builder
	for name, o := range found {
		if !strings.HasPrefix(name, "PrometheusRule/") && name != "ConfigMap/pool-a-devmgrd-dashboard" {
			all.WriteString(text(t, o))
		}
	}
	for _, want := range []string{
		"registry.example/devmgrd@sha256:aaaa", "imagePullPolicy: Always", "name: registry", "path: /srv/devmgrd/state", "path: /srv/devmgrd/run",
		"path: /srv/kubelet/device-plugins", "path: /srv/kubelet/pod-resources", "path: /srv/nri", "name: pool-a-devmgrd-own-events", "name: pool-a-devmgrd-own-pods",
		"containerPort: 9999", "path: /opt/vendor", "example.com/devices: \"true\"", "nodeAffinity: {}", "key: example.com/devices",
		"system-cluster-critical", "type: OnDelete", "memory: 2Gi", "1500MiB", "type: spc_t", "example.com/l: v", "example.com/a: v", "name: EXTRA",
		"mountPath: /extra", "serviceAccountName: account", "pods/eviction", "system:serviceaccount:devices:account", "[''example.com/licence'']",
		"[''/srv/kubelet/device-plugins'', ''/srv/kubelet/device-plugins/kubelet.sock'']", "expression: '[''/srv/kubelet'']'", "interval: 15s",
		"- /srv/devmgrd/run/admin.sock", "name: devmgrd-pod-size", "name: pool-a-devmgrd-own-node", "vendor.example/gpu",
		"name: pool-a-devmgrd-own-slices", "- resourceslices", "vendor.example/nic", "path: /srv/kubelet/plugins/devmgrd.io", "mountPath: /srv/kubelet/plugins_registry",
	} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("nothing has %s", want)
		}
	}
	for _, left := range []string{"/var/lib/kubelet", "/var/lib/devmgrd", "/run/devmgrd", "9464", "ghcr.io", "kube-system"} {
		if strings.Contains(all.String(), left) {
			t.Errorf("%s is there still", left)
		}
	}
	mounts := at(found["DaemonSet/pool-a-devmgrd"], "spec", "template", "spec", "containers").([]any)[0].(object)["volumeMounts"].([]any)
	for _, m := range mounts {
		if at(m, "name") == "pod-resources" && at(m, "readOnly") != nil {
			t.Error("with podResources.takeover its directory is read-only")
		}
	}
	groups := at(found["PrometheusRule/pool-a-devmgrd"], "spec", "groups").([]any)
	if len(groups) == 0 || !strings.Contains(text(t, found["ConfigMap/pool-a-devmgrd-dashboard"]), "devmgrd_devices") {
		t.Error("the alerts or the dashboards are missing")
	}
}

// TestChart_ListensByEnvironment_PodMonitorKnowsThePort renders what docs/watch.md advises: an address that only the node knows.
func TestChart_ListensByEnvironment_PodMonitorKnowsThePort(t *testing.T) {
	found := render(t, "devmgrd", "kube-system", object{
		"monitoring": object{"podMonitor": object{"enabled": true}},
		"extraEnv": []any{
			object{"name": "HOST", "valueFrom": object{"fieldRef": object{"fieldPath": "status.hostIP"}}},
			object{"name": "DEVMGRD_METRICS_LISTEN", "value": "$(HOST):9465"},
		},
	})
	if found["PodMonitor/devmgrd"] == nil {
		t.Error("the PodMonitor is missing")
	}
	main := at(found["DaemonSet/devmgrd"], "spec", "template", "spec", "containers").([]any)[0].(object)
	ports, _ := main["ports"].([]any)
	if len(ports) != 1 || at(ports[0], "containerPort") != float64(9465) {
		t.Errorf("the ports are %v, want 9465", ports)
	}
}

func TestChart_Mistake_NamesIt(t *testing.T) {
	for _, c := range []struct {
		values object
		says   string
	}{
		{object{"nodeSelectr": object{}}, "nodeSelectr"},
		{object{"image": object{"digest": "latest"}}, "digest"},
		{object{"goMemoryLimit": "750Mi"}, "goMemoryLimit"},
		{object{"hostPaths": []any{"opt/vendor"}}, "hostPaths"},
		{object{"config": object{"dra": object{"resources": []any{"*"}}}}, "set dra.enabled"},
		{object{"monitoring": object{"podMonitor": object{"enabled": true}}}, "set config.metrics.listen to an address of the node"},
		{object{"monitoring": object{"podMonitor": object{"enabled": true}}, "config": object{"metrics": object{"listen": "unix:/run/x.sock"}}}, "set config.metrics.listen to HOST:PORT"},
	} {
		if _, err := tryRender("devmgrd", "kube-system", c.values, common.DefaultCapabilities); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v does not name %q", c.values, err, c.says)
		}
	}
}

// TestChart_Links_AreShippedFiles holds that the chart has no copies.
func TestChart_Links_AreShippedFiles(t *testing.T) {
	files, err := os.ReadDir(source + "/files")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if f.Type() != os.ModeSymlink {
			t.Errorf("%s is a copy", f.Name())
		}
		if _, err := os.Stat(source + "/files/" + f.Name()); err != nil {
			t.Error(err)
		}
	}
}
