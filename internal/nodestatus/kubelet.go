package nodestatus

import (
	"github.com/devmgrd/devmgrd/internal/device"
)

// kubeletFile is the kubelet's file with the resources that its device manager has.
const kubeletFile = "kubelet_internal_checkpoint"

// leaveToKubelet leaves no free device in the capacity of a resource that the kubelet manages too, and reports whether there is any: the kubelet would
// fail a pod that the scheduler binds by it. A resource with pods keeps a number for these: a restarting kubelet fails pods that exceed it.
// Of one without pods the Node shows what the kubelet says.
func (p *Publisher) leaveToKubelet(s situation, managed map[device.ResourceName]bool) bool {
	both := map[device.ResourceName]bool{}
	for r, n := range s.capacity {
		if !managed[r] {
			continue
		}
		both[r] = true
		s.capacity[r] = min(n, s.requested[r])
		if s.capacity[r] == 0 {
			delete(s.capacity, r)
		}
	}
	for _, r := range p.contention.share(both) {
		p.cfg.Log.Warn("resource also managed by kubelet; no free devices published", "resource", r)
		p.cfg.Notifier.Contested(r)
	}
	return len(both) > 0
}
