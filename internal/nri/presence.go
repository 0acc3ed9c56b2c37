package nri

import (
	"sync/atomic"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A Presence is what the runtime shows of the pods' sandboxes. The Connection keeps it up to date; components that the Connection needs may look at
// it, since it is there before. The zero value is ready to use: no runtime has connected yet.
type Presence struct {
	sandboxes sandboxes
	runtime   atomic.Bool // devmgrd's PID namespace shows it
}

// Has reports whether the runtime has a sandbox of a pod, as of its last connection.
func (p *Presence) Has(uid device.PodUID) bool { return p.sandboxes.has(uid) }

// Networks returns the files of the network namespaces of a pod's sandboxes that the runtime has.
func (p *Presence) Networks(uid device.PodUID) []string { return p.sandboxes.networks(uid) }

// SeesRuntime reports whether devmgrd's PID namespace shows the container runtime, and so the processes of all containers: as of the
// last connection.
func (p *Presence) SeesRuntime() bool { return p.runtime.Load() }
