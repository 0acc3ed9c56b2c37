package reclaim

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

// shared returns a function that reports whether a device node is shared: it is known to be, or two containers have been granted it with
// different devices at this moment.
func (g *Gate) shared() func(node string) bool {
	type use struct {
		resource device.ResourceName
		ids      []device.ID
	}
	uses, both := map[string]use{}, map[string]bool{}
	if g.neighbours.Assigned != nil {
		for _, p := range g.neighbours.Assigned.Snapshot().Pods {
			for _, s := range device.Shares(p.Assignments) {
				for _, n := range s.Grant.Nodes {
					first, seen := uses[n.HostPath]
					switch {
					case !seen:
						uses[n.HostPath] = use{s.Resource, s.IDs}
					case first.resource != s.Resource || !slices.ContainsFunc(first.ids, func(id device.ID) bool { return slices.Contains(s.IDs, id) }):
						both[n.HostPath] = true
					}
				}
			}
		}
	}
	patterns := slices.Concat(sharedNodes, g.SharedNodes)
	return func(node string) bool {
		return both[node] || slices.ContainsFunc(patterns, func(p string) bool {
			matches, err := path.Match(p, node)
			return err == nil && matches
		})
	}
}
