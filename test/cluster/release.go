package cluster

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// A Feature is a part of a container runtime or of Kubernetes that older releases do not have, and that devmgrd's promises depend on.
type Feature string

// The features, by what they are for. Tests of an older release expect a refusal, or leave a part out, where it has none of them.
const (
	CDI         Feature = "CDI devices"
	Permissions Feature = "exact device permissions"
	Arguments   Feature = "variables in command lines"
	Validation  Feature = "containers that wait for devmgrd" // NRI's validators
	Policies    Feature = "mutating admission policies"
	PodGet      Feature = "PodResources Get"
	// UserNamespaces are those of pods with hostUsers: false.
	UserNamespaces Feature = "user namespaces of pods"
)

// lacking are the features that releases do not have. It is written from the releases' sources and notes, and not from devmgrd, whose
// own idea of them the tests compare.
var lacking = map[string][]Feature{
	"containerd 1.7":  {Permissions, Arguments, Validation, UserNamespaces},
	"containerd 2.0":  {CDI, Permissions, Arguments, Validation},
	"containerd 2.1":  {Permissions, Arguments, Validation},
	"Kubernetes 1.33": {Policies, PodGet},
}

// Has reports whether the releases that the environment chooses have a feature.
func Has(f Feature) bool {
	lacks := func(of, release string) bool { return slices.Contains(lacking[of+" "+release], f) }
	return (UsesCRIO() || !lacks("containerd", containerdRelease())) && !lacks("Kubernetes", kubernetesRelease())
}

func containerdRelease() string { return os.Getenv(ContainerdVariable) }
func kubernetesRelease() string { return os.Getenv(KubernetesVariable) }

// KubernetesBefore reports whether the cluster's Kubernetes is older than a release.
func KubernetesBefore(release string) bool {
	return kubernetesRelease() != "" && compareReleases(kubernetesRelease(), release) < 0
}

// PolicyVersion is the version of the API in which the cluster has mutating admission policies: "v1beta1" in releases whose API server
// has to be told to serve them.
func PolicyVersion() string {
	if slices.Contains([]string{"1.34", "1.35"}, kubernetesRelease()) {
		return "v1beta1"
	}
	return "v1"
}

// A Release is one of those that a cluster can have of containerd or of Kubernetes.
type Release struct {
	Name    string // "2.1", as the variables have it; "" for the one that is used by default
	Version string // "2.1.9"
}

// Releases returns the releases of test/tools/TOOL and test/tools/TOOL-RELEASE: the one that is used by default first, then the newest first.
func Releases(tool string) ([]Release, error) {
	source, err := sourceDir()
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(source, "test/tools", tool+"*", "go.mod"))
	if err != nil {
		return nil, err
	}
	var all []Release
	for _, file := range files {
		name := strings.TrimPrefix(strings.TrimPrefix(filepath.Base(filepath.Dir(file)), tool), "-")
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for _, module := range []string{"k8s.io/kubernetes", "github.com/containerd/containerd", "github.com/containerd/containerd/v2"} {
			if v := required(content, module); v != "" {
				all = append(all, Release{name, strings.TrimPrefix(v, "v")})
				break
			}
		}
	}
	slices.SortFunc(all, func(a, b Release) int {
		return cmp.Or(cmp.Compare(min(len(a.Name), 1), min(len(b.Name), 1)), compareReleases(b.Version, a.Version))
	})
	if len(all) == 0 || all[0].Name != "" {
		return nil, fmt.Errorf("test/tools/%s is missing; there are %v", tool, all)
	}
	return all, nil
}

// compareReleases compares versions such as 1.7 or 2.1.9.
func compareReleases(a, b string) int {
	v, err := version.ParseGeneric(a)
	w, otherErr := version.ParseGeneric(b)
	if err != nil || otherErr != nil {
		return strings.Compare(a, b)
	}
	if v.LessThan(w) {
		return -1
	}
	if w.LessThan(v) {
		return 1
	}
	return 0
}
