package cluster

import "fmt"

// A toolGroup is a set of programs that one `go build` makes.
type toolGroup struct {
	name     string   // also the cache directory's
	title    string   // for people
	programs []string // the files that the build must leave

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

// A Kit names programs that are used together.
type Kit string

// The kits. Containers is what runs containers without Kubernetes, and Kubernetes is a cluster with its node; the others come on top.
const (
	Containers Kit = "containers" // containerd, runc, the images, Kubernetes' sample device plugin; fitrunc where CRI-O is chosen
	Kubernetes Kit = "kubernetes" // Containers, etcd, the control plane, the kubelet, the CNI plugins
	Consumer   Kit = "consumer"   // consumer: prints the answer of a PodResources socket
	CNIGate    Kit = "cnigate"    // cnigate: a CNI plugin that holds up the making of sandboxes
	DRADriver  Kit = "dradriver"  // dradriver: a DRA driver of network cards or CPUs
	Kubectl    Kit = "kubectl"    // kubectl: plays the commands of documents
	Helm       Kit = "helm"       // helm, of the version that checks the chart
	NodeSuite  Kit = "node suite" // e2e_node.test: Kubernetes' node end-to-end suite, which is large
)

func (k Kit) groups() []toolGroup {
	switch k {
	case Containers:
		groups := []toolGroup{runcGroup(), images(), containerdGroup(), samplePlugin()}
		if UsesCRIO() {
			groups = append(groups, fitrunc())
		}
		return groups
	case Kubernetes:
		return append(Containers.groups(), cniGroup(), kubernetesGroup())
	case Consumer:
		return []toolGroup{ours("consumer", "test/tools/consumer", "k8s.io/kubernetes")}
	case CNIGate:
		return []toolGroup{ours("cnigate", "test/cnigate", "", "../../go.mod", "../../go.sum")}
	case DRADriver:
		return []toolGroup{ours("dradriver", "test/tools/dradriver", "k8s.io/dynamic-resource-allocation")}
	case Kubectl:
		return []toolGroup{kubectl()}
	case Helm:
		return []toolGroup{helm()}
	case NodeSuite:
		return []toolGroup{nodeSuite()}
	}
	panic(fmt.Sprintf("cluster: there is no kit %q", k))
}

// ours is a program of our own, and the module whose version it depends on; "": none.
func ours(program, dir, release string, moreInputs ...string) toolGroup {
	return toolGroup{
		name: program, title: program, programs: []string{program}, release: release,
		dir: dir, packages: []string{"."}, inputs: append([]string{"."}, moreInputs...),
	}
}

// fitrunc is runc for CRI-O.
func fitrunc() toolGroup {
	return ours("fitrunc", "test/cluster/fitrunc", "", "../../../go.mod", "../../../go.sum")
}

// module is a group of the programs that are tools of test/tools/MODULE.
func module(name string, g toolGroup) toolGroup {
	g.dir, g.inputs = "test/tools/"+name, []string{"go.mod", "go.sum"}
	if g.packages == nil {
		g.packages = []string{"tool"}
	}
	return g
}

// containerdGroup is containerd of the release that is chosen.
func containerdGroup() toolGroup {
	name := ofRelease("containerd", containerdRelease())
	g := module(name, toolGroup{
		name: name, title: "containerd",
		programs: []string{"containerd", "containerd-shim-runc-v2", "ctr"},
		release:  "github.com/containerd/containerd/v2",
		tags:     "no_btrfs no_devmapper no_zfs",
	})
	if containerdRelease() == "1.7" {
		g.release = "github.com/containerd/containerd"
	}
	g.stamp = []string{g.release + "/version.Version"}
	return g
}

func runcGroup() toolGroup {
	return module("runc", toolGroup{
		name: "runc", title: "runc",
		programs: []string{"runc"},
		release:  "github.com/opencontainers/runc",
		cgo:      true,
		tags:     "seccomp", // every unprivileged container has a seccomp profile, by containerd
	})
}

func cniGroup() toolGroup {
	return module("cni", toolGroup{
		name: "cni", title: "CNI plugins",
		programs: []string{"ptp", "loopback", "host-local"},
		release:  "github.com/containernetworking/plugins",
	})
}

func images() toolGroup {
	return toolGroup{
		name: "images", title: "container images",
		programs: []string{"pause", "probe"},
		dir:      "test/cluster/images",
		packages: []string{"./pause", "./probe"},
		inputs:   []string{"."},
	}
}

// kubernetesGroup is Kubernetes of the release that is chosen.
func kubernetesGroup() toolGroup {
	name := ofRelease("k8s", kubernetesRelease())
	return module(name, toolGroup{
		name: name, title: "Kubernetes",
		programs: []string{"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubelet"},
		packages: []string{
			"go.etcd.io/etcd/server/v3", "k8s.io/kubernetes/cmd/kube-apiserver", "k8s.io/kubernetes/cmd/kube-scheduler",
			"k8s.io/kubernetes/cmd/kube-controller-manager", "k8s.io/kubernetes/cmd/kubelet",
		},
		release: "k8s.io/kubernetes",
		renames: map[string]string{"server": "etcd"},
		stamp:   kubernetesStamp,
	})
}

// samplePlugin is Kubernetes' sample device plugin, of the same release.
func samplePlugin() toolGroup {
	return module(ofRelease("k8s", kubernetesRelease()), toolGroup{
		name: ofRelease("sample-device-plugin", kubernetesRelease()), title: "the sample device plugin of Kubernetes",
		programs: []string{"sample-device-plugin"},
		packages: []string{"k8s.io/kubernetes/test/images/sample-device-plugin"},
		release:  "k8s.io/kubernetes",
	})
}

var kubernetesStamp = []string{"k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"}

func nodeSuite() toolGroup {
	return toolGroup{
		name: "e2e_node", title: "Kubernetes' node end-to-end suite",
		programs: []string{"e2e_node.test"},
		release:  "k8s.io/kubernetes",
		dir:      "test/tools/e2e_node",
		packages: []string{"k8s.io/kubernetes/test/e2e_node"},
		inputs:   []string{"."},
		suite:    true,
	}
}

func helm() toolGroup {
	return toolGroup{
		name: "helm", title: "Helm",
		programs: []string{"helm"},
		release:  "helm.sh/helm/v4",
		dir:      "packaging/helm",
		packages: []string{"helm.sh/helm/v4/cmd/helm"},
		inputs:   []string{"go.mod", "go.sum"},
	}
}

func kubectl() toolGroup {
	return module("kubectl", toolGroup{
		name: "kubectl", title: "kubectl",
		programs: []string{"kubectl"},
		release:  "k8s.io/kubernetes",
		stamp:    kubernetesStamp,
	})
}
