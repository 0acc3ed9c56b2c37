package cluster

// A toolGroup is a set of programs that one `go build` makes.
type toolGroup struct {
	name     string   // also the cache directory's
	title    string   // for people
	programs []string // the files that the build must leave
	first    string   // how long the first build takes, for people; "" when that is not worth saying

	dir      string   // where to build, below the source root
	packages []string // what to build
	inputs   []string // files and folders, below dir, whose content decides whether the cached build still holds
	release  string   // the module, required by dir/go.mod, whose version names the group; "" for our own
	renames  map[string]string

	suite bool // the packages are tests, of which "go test -c" makes the program
	cgo   bool
	tags  string
	stamp []string // variables to be set to the release, which Go's own build does not do
}

// These variables choose a release for a cluster: containerd "2.1" is the one of test/tools/containerd-2.1, Kubernetes "1.35" the one of
// test/tools/k8s-1.35. Unset, it is the newest.
const (
	ContainerdVariable = "TESTCLUSTER_CONTAINERD"
	KubernetesVariable = "TESTCLUSTER_KUBERNETES"
)

// ofRelease is the name of a group of an older release, which has a module of its own.
func ofRelease(name, release string) string {
	if release == "" {
		return name
	}
	return name + "-" + release
}

// containerdGroup is containerd of the release that is chosen.
func containerdGroup() toolGroup {
	g := toolGroup{
		name: ofRelease("containerd", containerdRelease()), title: "containerd", first: "about a minute the first time",
		programs: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
		release:  "github.com/containerd/containerd/v2",
		tags:     "no_btrfs no_devmapper no_zfs",
	}
	if containerdRelease() == "1.7" {
		g.release = "github.com/containerd/containerd"
	}
	g.stamp = []string{g.release + "/version.Version"}
	return g
}

func toolGroups() []toolGroup {
	module := func(g toolGroup) toolGroup {
		g.dir = "test/tools/" + g.name
		g.packages = []string{"tool"}
		g.inputs = []string{"go.mod", "go.sum"}
		return g
	}
	return []toolGroup{
		module(toolGroup{
			name: ofRelease("k8s", kubernetesRelease()), title: "Kubernetes", first: "about 6 minutes the first time",
			programs: []string{
				"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet", "sample-device-plugin",
			},
			release: "k8s.io/kubernetes",
			renames: map[string]string{"server": "etcd"},
			stamp:   []string{"k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"},
		}),
		module(containerdGroup()),
		module(toolGroup{
			name: "runc", title: "runc",
			programs: []string{"runc"},
			release:  "github.com/opencontainers/runc",
			cgo:      true,
			tags:     "seccomp", // containerd returns every unprivileged container a seccomp profile
		}),
		module(toolGroup{
			name: "cni", title: "CNI plugins",
			programs: []string{"ptp", "loopback", "host-local"},
			release:  "github.com/containernetworking/plugins",
		}),
		{
			name: "consumer", title: "a reader of PodResources",
			programs: []string{"consumer"},
			release:  "k8s.io/kubernetes",
			dir:      "test/tools/consumer",
			packages: []string{"."},
			inputs:   []string{"."},
		},
		{
			name: "cnigate", title: "a CNI plugin of our own",
			programs: []string{"cnigate"},
			dir:      "test/cnigate",
			packages: []string{"."},
			inputs:   []string{".", "../../go.mod", "../../go.sum"},
		},
		{
			name: "fitrunc", title: "runc for CRI-O",
			programs: []string{"fitrunc"},
			dir:      "test/cluster/fitrunc",
			packages: []string{"."},
			inputs:   []string{".", "../../../go.mod", "../../../go.sum"},
		},
		{
			name: "images", title: "container images",
			programs: []string{"pause", "probe"},
			dir:      "test/cluster/images",
			packages: []string{"./pause", "./probe"},
			inputs:   []string{"."},
		},
	}
}

// nodeSuite is Kubernetes' node end-to-end suite. It is none of the cluster's tools: few need it, and it is large.
func nodeSuite() toolGroup {
	return toolGroup{
		name: "e2e_node", title: "Kubernetes' node end-to-end suite", first: "5 to 10 minutes the first time",
		programs: []string{"e2e_node.test"},
		release:  "k8s.io/kubernetes",
		dir:      "test/tools/e2e_node",
		packages: []string{"k8s.io/kubernetes/test/e2e_node"},
		inputs:   []string{"."},
		suite:    true,
	}
}

// helm is none of the cluster's tools either. Its version is the one that checks the chart.
func helm() toolGroup {
	return toolGroup{
		name: "helm", title: "Helm", first: "about a minute the first time",
		programs: []string{"helm"},
		release:  "helm.sh/helm/v4",
		dir:      "packaging/helm",
		packages: []string{"helm.sh/helm/v4/cmd/helm"},
		inputs:   []string{"go.mod", "go.sum"},
	}
}

// nicDriver is a driver of claims that the end-to-end tests have next to devmgrd.
func nicDriver() toolGroup {
	return toolGroup{
		name: "nicdriver", title: "a DRA driver of our own", first: "about a minute the first time",
		programs: []string{"nicdriver"},
		release:  "k8s.io/dynamic-resource-allocation",
		dir:      "test/tools/nicdriver",
		packages: []string{"."},
		inputs:   []string{"."},
	}
}

// kubectl plays the commands of documents.
func kubectl() toolGroup {
	return toolGroup{
		name: "kubectl", title: "kubectl", first: "about a minute the first time",
		programs: []string{"kubectl"},
		release:  "k8s.io/kubernetes",
		dir:      "test/tools/kubectl",
		packages: []string{"tool"},
		inputs:   []string{"go.mod", "go.sum"},
		stamp:    []string{"k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"},
	}
}
