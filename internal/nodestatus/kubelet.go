package nodestatus

import (
	"fmt"
	"maps"
	"slices"

	"github.com/devmgrd/devmgrd/internal/device"
)

// sharedWithKubelet returns the resources that the kubelet manages too, and reports new ones.
func (p *Publisher) sharedWithKubelet(capacity map[device.ResourceName]int, managed map[device.ResourceName]bool) map[device.ResourceName]bool {
	both := map[device.ResourceName]bool{}
	for r := range capacity {
		if managed[r] {
			both[r] = true
		}
	}
	for _, r := range p.contention.share(both) {
		p.cfg.Log.Warn("resource also managed by kubelet; no free devices published", "resource", r)
		p.cfg.Notifier.Contested(r)
	}
	return both
}

// Limits returns the resources that the kubelet manages too.
func (p *Publisher) Limits() []device.Limit {
	all := slices.Sorted(maps.Keys(p.contention.shared()))
	if len(all) == 0 {
		return nil
	}
	return []device.Limit{{Release: "the kubelet's device manager", Text: fmt.Sprintf("it has %v too and fails new pods, so the Node shows no free devices: it forgets a plugin five minutes "+
		"after that has left, or when it starts without kubelet_internal_checkpoint", all)}}
}
