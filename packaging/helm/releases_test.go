package helm

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v4/pkg/chart/common"
)

// policies is the group of the admission policies, of which the betas are not served by default.
const policies = "admissionregistration.k8s.io"

// TestChart_EachKubernetes_AcceptsAllObjects renders the chart for each Kubernetes of test/tools, and holds the objects against the types
// that its API server publishes: a kind that is not served, a field that is not there and a value of another type are errors.
func TestChart_EachKubernetes_AcceptsAllObjects(t *testing.T) {
	modules, err := filepath.Glob("../../test/tools/k8s*")
	if err != nil || len(modules) < 4 {
		t.Fatalf("the modules of Kubernetes are %q, %v", modules, err)
	}
	for _, module := range modules {
		k := kubernetes(t, module)
		t.Run(k.version.Version, func(t *testing.T) {
			for name, values := range map[string]object{"defaults": {}, "everything": everything()} {
				objects, err := tryRender("devmgrd", "kube-system", values, k.serves("v1", "v1beta1"))
				if mutating := k.has(policies+"/v1beta1", "MutatingAdmissionPolicy"); name == "everything" && !mutating {
					if err == nil || !strings.Contains(err.Error(), "use Kubernetes 1.36 or later") {
						t.Errorf("without MutatingAdmissionPolicy: %v", err)
					}
					continue
				}
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for _, o := range objects {
					k.accepts(t, o)
				}
			}
			// Without betas, all but the policy is served.
			values := everything()
			if _, err := tryRender("devmgrd", "kube-system", values, k.serves("v1")); (err == nil) != k.has(policies+"/v1", "MutatingAdmissionPolicy") {
				t.Errorf("rendered for an API server without betas: %v", err)
			}
			k.refuses(t)
		})
	}
}

// A release is one of Kubernetes, by what its API server publishes.
type release struct {
	version common.KubeVersion
	types   map[string]*jsonschema.Schema
}

// kubernetes reads the release of a module.
func kubernetes(t *testing.T, module string) *release {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", "k8s.io/kubernetes")
	cmd.Dir, cmd.Stderr = module, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("reading the module of %s: %v", module, err)
	}
	var source struct{ Version, Dir string }
	if err := json.Unmarshal(out, &source); err != nil {
		t.Fatal(err)
	}
	version, err := common.ParseKubeVersion(source.Version)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(source.Dir + "/api/openapi-spec/v3/api*__v*_openapi.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("Kubernetes %s has no OpenAPI documents: %v", source.Version, err)
	}
	k := &release{version: *version, types: map[string]*jsonschema.Schema{}}
	compiler := jsonschema.NewCompiler()
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var document object
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatal(err)
		}
		schemas := at(document, "components", "schemas").(object)
		if err := compiler.AddResource(file, strict(object{"components": object{"schemas": schemas}})); err != nil {
			t.Fatal(err)
		}
		for name, schema := range schemas {
			kinds, _ := at(schema, "x-kubernetes-group-version-kind").([]any)
			if len(kinds) != 1 { // the options of deletions and the like are of each group
				continue
			}
			compiled, err := compiler.Compile(file + "#/components/schemas/" + name)
			if err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprintf("%s/%s/%s", at(kinds[0], "group"), at(kinds[0], "version"), at(kinds[0], "kind"))
			k.types[strings.TrimPrefix(id, "/")] = compiled
		}
	}
	return k
}

// strict has each object of a schema refuse fields that it does not name.
func strict(schema any) any {
	switch s := schema.(type) {
	case []any:
		for i := range s {
			strict(s[i])
		}
	case object:
		_, open := s["additionalProperties"]
		if properties, named := s["properties"].(object); named && !open && len(properties) > 0 && s["type"] == "object" {
			s["additionalProperties"] = false
		}
		for _, value := range s {
			strict(value)
		}
	}
	return schema
}

// has reports whether the release has a kind.
func (k *release) has(apiVersion, kind string) bool { return k.types[apiVersion+"/"+kind] != nil }

// serves returns what Helm learns of a cluster of this release with these versions of APIs, of those of policies.
func (k *release) serves(versions ...string) *common.Capabilities {
	all := map[string]bool{"monitoring.coreos.com/v1": true}
	for id := range k.types {
		if version, served := strings.CutPrefix(filepath.Dir(id), policies+"/"); !served || slices.Contains(versions, version) {
			all[id], all[filepath.Dir(id)] = true, true
		}
	}
	return &common.Capabilities{KubeVersion: k.version, APIVersions: slices.Sorted(maps.Keys(all))}
}

// accepts holds an object against its type.
func (k *release) accepts(t *testing.T, o object) {
	t.Helper()
	apiVersion, kind := at(o, "apiVersion").(string), at(o, "kind").(string)
	if strings.HasPrefix(apiVersion, "monitoring.coreos.com/") {
		return // Prometheus's operator
	}
	schema := k.types[apiVersion+"/"+kind]
	if schema == nil {
		t.Errorf("Kubernetes %s has no %s %s", k.version.Version, apiVersion, kind)
		return
	}
	if err := schema.Validate(plain(t, o)); err != nil {
		t.Errorf("%s %s: %v", kind, at(o, "metadata", "name"), err)
	}
}

// refuses holds that the types are looked at: an object with a field too many, or a value of another type, is refused.
func (k *release) refuses(t *testing.T) {
	t.Helper()
	for name, spec := range map[string]object{"a field": {"selektor": object{}}, "a value": {"minReadySeconds": "many"}} {
		set := render(t, "devmgrd", "kube-system", object{})["DaemonSet/devmgrd"]
		maps.Copy(at(set, "spec").(object), spec)
		if err := k.types["apps/v1/DaemonSet"].Validate(plain(t, set)); err == nil {
			t.Errorf("a DaemonSet with %s that is wrong is accepted", name)
		}
	}
}

// plain returns an object as encoding/json reads it, without the fields that are null, which the API server drops.
func plain(t *testing.T, o object) any {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return value
}
