package nri

import (
	"sync/atomic"

	"github.com/devmgrd/devmgrd/internal/device"
)

// A Presence is what the runtime shows of the pods' sandboxes. The Connection keeps it up to date; components that the Connection needs may look at
// it, since it is there before: no runtime has connected yet.
type Presence struct {
	sandboxes sandboxes
	runtime   atomic.Bool // devmgrd's PID namespace shows it
}

// NewPresence returns a Presence.
func NewPresence() *Presence { return &Presence{sandboxes: sandboxes{changed: make(chan struct{}, 1)}} }

// Has reports whether the runtime has a sandbox of a pod, as of its last connection.
func (p *Presence) Has(uid device.PodUID) bool { return p.sandboxes.has(uid) }

// Static reports whether the runtime has a sandbox of a static pod, and whether the annotation of that has the pod's requests.
func (p *Presence) Static(pod device.Pod) (shown, local bool) {
	return p.sandboxes.static(pod)
}

// Changed has a value when Static may return something else.
func (p *Presence) Changed() <-chan struct{} { return p.sandboxes.changed }

// Networks returns the files of the network namespaces of a pod's sandboxes that the runtime has.
func (p *Presence) Networks(uid device.PodUID) []string { return p.sandboxes.networks(uid) }

// SeesRuntime reports whether devmgrd's PID namespace shows the container runtime, and so the processes of all containers: as of the
// last connection.
func (p *Presence) SeesRuntime() bool { return p.runtime.Load() }
