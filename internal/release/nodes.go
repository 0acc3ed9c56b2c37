package release

import (
	"path"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// sharedNodes are patterns of device nodes that processes without any one device open: a driver's control nodes, and nodes of the
// kernel that plugins grant along with their devices.
var sharedNodes = []string{
	"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-nvlink", "/dev/nvidia-nvswitchctl", "/dev/nvidia-caps/*", "/dev/nvidia-caps-imex-channels/*",
	"/dev/kfd", "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc",
	"/dev/vfio/vfio", "/dev/iommu", "/dev/infiniband/rdma_cm", "/dev/gdrdrv",
	"/dev/fuse", "/dev/kvm", "/dev/net/tun", "/dev/vhost-net", "/dev/vhost-vsock", "/dev/vsock",
	"/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/console", "/dev/ptmx", "/dev/shm/*", "/dev/dma_heap/*", "/dev/mem", "/dev/kmsg",
}

// grants remembers which devices each node has been granted with, to find the shared nodes.
type grants struct {
	patterns []string // of shared nodes
	first    map[device.ResourceName]map[string][]device.ID
	shared   map[string]bool
}

// maxNodes bounds the nodes that grants remembers for a resource.
const maxNodes = 16384

func newGrants(patterns []string) *grants {
	return &grants{patterns: append(slices.Clone(sharedNodes), patterns...), first: map[device.ResourceName]map[string][]device.ID{}, shared: map[string]bool{}}
}

// learn notes the nodes that a pod's devices have been granted with. A node granted with other devices before is shared.
func (g *grants) learn(r device.ResourceName, ids []device.ID, nodes []device.HostNode) {
	known := g.first[r]
	if known == nil {
		known = map[string][]device.ID{}
		g.first[r] = known
	}
	for _, n := range nodes {
		before, seen := known[n.Path]
		switch {
		case !seen && len(known) < maxNodes:
			known[n.Path] = ids
		case seen && !slices.ContainsFunc(before, func(id device.ID) bool { return slices.Contains(ids, id) }):
			g.shared[n.Path] = true
		}
	}
}

// isShared reports whether a node is known to be shared.
func (g *grants) isShared(node string) bool {
	return g.shared[node] || slices.ContainsFunc(g.patterns, func(p string) bool {
		matches, err := path.Match(p, node)
		return err == nil && matches
	})
}
