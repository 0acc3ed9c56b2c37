package kubernetes

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/devmgrd/devmgrd/config"
	"github.com/devmgrd/devmgrd/internal/dra"
)

// TestDaemonSet compares the manifest with the unit and with the configuration's defaults, and holds what a newcomer might
// change. That it works is tested end to end.
func TestDaemonSet(t *testing.T) {
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(DaemonSet), &set); err != nil {
		t.Fatal(err)
	}
	pod := set.Spec.Template
	main := pod.Spec.Containers[0]

	// It is made by the runtime that it serves, and must not wait for itself.
	if pod.Annotations["devmgrd.io/redirect"] != "false" || len(pod.Annotations) != 1 {
		t.Errorf("its annotations are %v, want it left out of the redirect, and nothing else", pod.Annotations)
	}
	for name := range main.Resources.Limits {
		if strings.Contains(string(name), "/") {
			t.Errorf("it asks for %s", name)
		}
	}
	if main.Resources.Limits.Memory().IsZero() {
		t.Error("its memory has no limit")
	}
	collector := slices.IndexFunc(main.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
	if collector < 0 {
		t.Fatal("Go's collector does not know the memory limit")
	}
	heap, err := resource.ParseQuantity(strings.TrimSuffix(main.Env[collector].Value, "B"))
	if limit := main.Resources.Limits.Memory().Value(); err != nil || heap.Value() < limit/2 || heap.Value() > limit*4/5 {
		t.Errorf("GOMEMLIMIT is %s (%v) with a limit of %d bytes; the kernel counts more than Go does", main.Env[collector].Value, err, limit)
	}
	if links := pod.Spec.EnableServiceLinks; links == nil || *links {
		t.Error("variables of Services named devmgrd would break its configuration")
	}
	if pod.Spec.HostPID || pod.Spec.HostIPC {
		t.Error("it is no business of its who runs on the host")
	}

	unit, err := os.ReadFile("../systemd/devmgrd.service")
	if err != nil {
		t.Fatal(err)
	}
	var want []corev1.Capability
	for line := range strings.Lines(string(unit)) {
		if names, ok := strings.CutPrefix(line, "CapabilityBoundingSet="); ok {
			for name := range strings.FieldsSeq(names) {
				want = append(want, corev1.Capability(strings.TrimPrefix(name, "CAP_")))
			}
		}
	}
	secure := main.SecurityContext
	if !slices.Equal(secure.Capabilities.Add, want) || !slices.Equal(secure.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("its capabilities are %v, want those of the unit, %v, and no others", secure.Capabilities, want)
	}
	if *secure.Privileged || *secure.AllowPrivilegeEscalation || !*secure.ReadOnlyRootFilesystem {
		t.Errorf("it may do more than it has to: %+v", secure)
	}

	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(config.Options{File: empty, Set: []string{"nodeName=n1"}})
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	for _, v := range pod.Spec.Volumes {
		if v.HostPath != nil {
			sources[v.Name] = v.HostPath.Path
		}
	}
	writable := map[string]bool{} // by path, which is the same on the host
	for _, m := range main.VolumeMounts {
		source, host := sources[m.Name]
		if host && source != m.MountPath {
			t.Errorf("%s of the host is at %s, and paths have to be the same", source, m.MountPath)
		}
		if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationBidirectional {
			t.Errorf("%s would need a privileged container", m.MountPath)
		}
		writable[m.MountPath] = !m.ReadOnly
	}
	for dir, write := range map[string]bool{
		c.StateDir: true, c.RunDir: true, c.Plugins.KubeletDir: true,
		filepath.Dir(c.PodResources.KubeletSocket): false, filepath.Dir(c.NRI.Socket): false, "/dev": false,
	} {
		if is, mounted := writable[dir]; !mounted || is != write {
			t.Errorf("%s: mounted %v, writable %v, want it writable: %v", dir, mounted, is, write)
		}
	}
	for name, probe := range map[string]*corev1.Probe{"liveness": main.LivenessProbe, "readiness": main.ReadinessProbe} {
		if probe.Exec == nil || !slices.Contains(probe.Exec.Command, c.Admin.Socket) {
			t.Errorf("the %s probe does not ask %s: any user of the node may listen on a port before devmgrd does", name, c.Admin.Socket)
		}
	}
}

// TestRBAC_DefaultFile_NoEviction holds that the default rights are those that every node needs.
func TestRBAC_DefaultFile_NoEviction(t *testing.T) {
	role := func(manifests string) (all []string) {
		for document := range strings.SplitSeq(manifests, "\n---\n") {
			var r rbacv1.ClusterRole
			if err := yaml.Unmarshal([]byte(document), &r); err != nil {
				t.Fatal(err)
			}
			if r.Kind != "ClusterRole" {
				continue
			}
			for _, rule := range r.Rules {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						all = append(all, verb+" "+resource)
					}
				}
			}
		}
		slices.Sort(all)
		return all
	}
	want := []string{"create events", "get nodes", "get pods", "list nodes", "list pods", "patch events", "patch nodes/status", "patch pods/status", "watch nodes", "watch pods"}
	if got := role(RBAC); !slices.Equal(got, want) {
		t.Errorf("rbac.yaml grants %q, want %q", got, want)
	}
	if got := role(RBACEviction); !slices.Equal(got, []string{"create pods/eviction"}) {
		t.Errorf("rbac-eviction.yaml grants %q", got)
	}
	want = []string{"create resourceslices", "delete resourceslices", "get resourceclaims", "list deviceclasses", "list resourceslices", "update resourceslices", "watch resourceslices"}
	if got := role(RBACDRA); !slices.Equal(got, want) {
		t.Errorf("rbac-dra.yaml grants %q, want %q", got, want)
	}
	if !strings.Contains(RBACDRA, "s.spec.driver == '"+dra.Driver+"'") {
		t.Errorf("the policy does not name the driver %s", dra.Driver)
	}
}

// TestDaemonSetDRA holds that the patch mounts the two directories in which devmgrd makes its sockets as a DRA driver and the one for
// CDI files, and no other.
func TestDaemonSetDRA(t *testing.T) {
	var set appsv1.DaemonSet
	if err := yaml.UnmarshalStrict([]byte(DaemonSetDRA), &set); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, _, err := config.Load(config.Options{File: empty, Set: []string{"nodeName=n1"}})
	if err != nil {
		t.Fatal(err)
	}
	sockets := dra.Sockets(c.Plugins.KubeletRegistryDir(), filepath.Join(filepath.Dir(c.Plugins.KubeletDir), "plugins"))
	want := map[string]string{"kubelet-dra": filepath.Dir(sockets[0]), "kubelet-registry": filepath.Dir(sockets[1])}
	pod := set.Spec.Template.Spec
	mounts := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		mounts[m.Name] = m.MountPath
		if m.ReadOnly || m.MountPropagation != nil {
			t.Errorf("the mount %+v, want it writable and private", m)
		}
	}
	const cdi = "cdi-dynamic" // a volume of daemonset.yaml, which is mounted read-only there
	want[cdi] = c.DRA.CDIDir
	volumes := map[string]string{cdi: c.DRA.CDIDir}
	for _, v := range pod.Volumes {
		volumes[v.Name] = v.HostPath.Path
	}
	if !maps.Equal(mounts, want) || !maps.Equal(volumes, want) {
		t.Errorf("mounts %v of volumes %v, want %v", mounts, volumes, want)
	}
}
